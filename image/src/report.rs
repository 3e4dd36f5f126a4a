//! The report of a failure: a text on every console for people, one line for programs.

use serde::{Deserialize, Serialize};

/// Prefix of the machine-readable line, on the console and on the serial port.
pub const LINE: &str = "slipway-report: ";
/// The virtio serial port to which the report's line goes too, where a machine has one.
pub const PORT: &str = "slipway.report";
/// Prefix of the line on the console just before the init executes the root's init: `slipway-handoff: {json}`, a
/// [`Handoff`].
pub const HANDOFF_LINE: &str = "slipway-handoff: ";

/// The init's last message in the kernel's log, after its name.
pub const HANDED_OFF: &str = "handing off to the root's init";

/// Facts on the init's run, printed at the handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handoff {
    /// Microseconds of the kernel's boot clock.
    pub micros: i64,
    /// Peak resident memory of the init, KiB (`VmHWM` of `proc_pid_status(5)`); `None` if the kernel does not report
    /// it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peak_kib: Option<u64>,
    /// Whether the node's config differs from the one that it was provisioned with. The new one is not applied.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub config_changed: bool,
}

impl Handoff {
    /// The last complete line of this kind in a console's text: nodes are booted several times on one console.
    #[must_use]
    pub fn find(console: &str) -> Option<Self> {
        let (_, rest) = console.rsplit_once(HANDOFF_LINE)?;
        let (line, _) = rest.split_once('\n')?;
        serde_json::from_str(line.trim()).ok()
    }
}

/// A failure, as shown to the operator at the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The step of the boot line.
    pub step: String,
    /// What failed, as one sentence.
    pub what: String,
    /// What was expected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected: Option<String>,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fix: Option<String>,
}

impl Report {
    /// A code of the failure that is the same at each boot: its step and sentence without what may differ between two
    /// boots, as `root/the-hash-tree-on-is-damaged`. Kernel names of devices, numbers, UUIDs, paths, addresses and quoted
    /// words are left out.
    #[must_use]
    pub fn code(&self) -> String {
        let words = self
            .what
            .split_whitespace()
            .filter(|word| is_constant(word));
        let words: Vec<String> = words
            .map(|word| {
                let letters = word.chars().filter(|c| c.is_alphanumeric() || *c == '-');
                letters.collect::<String>().to_lowercase()
            })
            .filter(|word| !word.is_empty())
            .collect();
        format!("{}/{}", self.step, words.join("-"))
    }
}

/// One line of the ledger [`STATE_LEDGER`](crate::paths::STATE_LEDGER), JSON: a failed boot, or one that reached its handoff
/// after a failed one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerEntry {
    /// Seconds since 1970, by a clock that may be wrong.
    pub time: u64,
    /// The failure's report; none for a boot that reached its handoff.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub report: Option<Report>,
}

impl LedgerEntry {
    /// The entries of a ledger, the newest first. A line that does not parse, as one that a power cut tore, is passed over.
    pub fn newest_first(ledger: &str) -> impl Iterator<Item = Self> {
        ledger
            .lines()
            .rev()
            .filter_map(|line| serde_json::from_str(line).ok())
    }
}

/// Whether a word of a sentence is neither a name nor a number.
fn is_constant(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
    let is_disk = ["sd", "vd", "hd", "xvd"].iter().any(|prefix| {
        bare.strip_prefix(prefix).is_some_and(|rest| {
            (1..=2).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_lowercase())
        })
    });
    !is_disk && !word.contains(|c: char| c.is_ascii_digit() || ['"', '/', '='].contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_leaves_out_what_differs_between_two_boots() {
        let code = |step: &str, what: &str| {
            let report = Report {
                step: step.to_owned(),
                what: what.to_owned(),
                expected: None,
                found: None,
                fix: None,
            };
            report.code()
        };
        for (one, other, code_of_both) in [
            (
                "the hash tree on vda3 is damaged",
                "the hash tree on nvme0n1p3 is damaged",
                "root/the-hash-tree-on-is-damaged",
            ),
            (
                "mounting /dev/sda at /var: Input/output error (os error 5)",
                "mounting /dev/sdb at /var: Input/output error (os error 6)",
                "root/mounting-at-error-os-error",
            ),
            (
                "probing sda: the device is gone",
                "probing sdaa: the device is gone",
                "root/probing-the-device-is-gone",
            ),
        ] {
            assert_eq!(code("root", one), code_of_both);
            assert_eq!(code("root", other), code_of_both);
        }
        assert_ne!(code("root", "a"), code("etcd", "a"));
    }

    #[test]
    fn a_torn_line_of_the_ledger_hides_no_other() {
        let ledger = concat!(
            r#"{"time":1,"report":{"step":"root","what":"a"}}"#,
            "\n{\"time\": 2, \"rep\n",
            r#"{"time":3}"#,
            "\n"
        );
        let entries: Vec<(u64, bool)> = LedgerEntry::newest_first(ledger)
            .map(|entry| (entry.time, entry.report.is_some()))
            .collect();
        assert_eq!(entries, [(3, false), (1, true)]);
    }

    #[test]
    fn the_last_whole_handoff_is_found() {
        let text = "a\nslipway-handoff: {\"micros\":5}\r\nb\n[    2.1] slipway-handoff: {\"micros\":7,\"peakKib\":3}\r\n";
        assert_eq!(
            Handoff::find(text),
            Some(Handoff {
                micros: 7,
                peak_kib: Some(3),
                config_changed: false,
            })
        );
        assert_eq!(Handoff::find("slipway-handoff: {\"micros\":5"), None);
        let written = serde_json::to_string(&Handoff {
            micros: 5,
            peak_kib: None,
            config_changed: false,
        });
        assert_eq!(written.unwrap(), r#"{"micros":5}"#);
        let text = "slipway-handoff: {\"micros\":5,\"configChanged\":true}\n";
        assert!(Handoff::find(text).unwrap().config_changed);
    }
}
