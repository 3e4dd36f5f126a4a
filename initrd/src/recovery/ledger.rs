//! The ledger in `state`: failed boots, and boots that reached their handoff after a failure.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use image::paths::{STATE_LEDGER, STATE_MARK};
use image::report::Report;
use serde::{Deserialize, Serialize};

/// One line of the ledger: a failed boot, or one that reached its handoff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    /// Seconds since 1970, by a clock that may be wrong.
    time: u64,
    /// The failure's report; none for a boot that reached its handoff.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    report: Option<Report>,
}

/// How many of the last boots in a row ended with the same step and sentence as `report`.
fn in_a_row(ledger: &str, report: &Report) -> usize {
    ledger
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Entry>(line).ok())
        .take_while(|entry| {
            entry
                .report
                .as_ref()
                .is_some_and(|old| old.step == report.step && old.what == report.what)
        })
        .count()
}

/// Writes a failure to the ledger in `state`; returns how many in a row it makes, none if there is no ledger yet.
pub(super) fn note(state: &Path, report: &Report) -> Option<usize> {
    let path = state.join(STATE_LEDGER);
    // The folder also exists in the read-only root; only a mounted `state` has this mark.
    if !state.join(STATE_MARK).exists() {
        return None;
    }
    let entry = Entry {
        time: now(),
        report: Some(report.clone()),
    };
    append(&path, &entry).ok()?;
    Some(in_a_row(&fs::read_to_string(path).ok()?, report))
}

/// Notes that this boot reaches its handoff, if the ledger has failures; an empty ledger stays unwritten.
pub(crate) fn note_success(state: &Path) {
    let path = state.join(STATE_LEDGER);
    let Ok(ledger) = fs::read_to_string(&path) else {
        return;
    };
    let last = ledger.lines().last();
    let failed = last
        .and_then(|line| serde_json::from_str::<Entry>(line).ok())
        .is_some_and(|entry| entry.report.is_some());
    let good = Entry {
        time: now(),
        report: None,
    };
    if failed && let Err(error) = append(&path, &good) {
        tracing::warn!("writing the ledger: {error}");
    }
}

fn append(path: &Path, entry: &Entry) -> std::io::Result<()> {
    let mut line = serde_json::to_string(entry)?;
    line.push('\n');
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
