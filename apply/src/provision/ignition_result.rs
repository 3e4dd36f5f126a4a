//! `/etc/.ignition-result.json`: that this node was provisioned, when, and by how many configs.

use anyhow::Result;
pub(crate) use image::paths::IGNITION_RESULT as PATH;
use serde_json::{Value, json};

use crate::tree::Tree;

/// Writes the report; it contains an earlier one.
pub(crate) fn write(tree: &Tree, user_config: bool, boot_id: &str, now: u64) -> Result<()> {
    let entry = tree.entry(PATH)?;
    let previous: Option<Value> = match entry.stat() {
        Some(meta) if meta.is_file() => serde_json::from_slice(&entry.read()?).ok(),
        _ => None,
    };
    let mut report = json!({
        "provisioningBootID": boot_id,
        "provisioningDate": date(now),
        "userConfigProvided": user_config,
    });
    if let Some(previous) = previous {
        report["previousReport"] = previous;
    }
    let text = serde_json::to_string_pretty(&report)? + "\n";
    tree.write(&entry, text.as_bytes(), 0o600, (0, 0))
}

/// RFC 3339 in UTC. The calendar: days since 0000-03-01 in eras of 400 years.
fn date(now: u64) -> String {
    let (days, seconds) = (now / 86_400 + 719_468, now % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (
        day - (153 * month + 2) / 5 + 1,
        if month < 10 { month + 3 } else { month - 9 },
    );
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_told() {
        for (now, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_265_163, "2026-11-21T12:46:03Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(super::date(now), text);
        }
    }
}
