//! The policy after a report: reboot, or stay up with it.

/// Failures in a row for one reason after which the node stays up.
const ENOUGH: usize = 3;

/// The action after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Report, ten seconds, reboot.
    Reboot,
    /// The report stays on the consoles.
    StayUp,
}

/// The policy of DESIGN.md: with a readable ledger the third failure in a row for one reason stays up; without one the
/// boot counter decides, and when it is exhausted or absent the node stays up.
pub(super) fn policy(ledger: Option<usize>, tries_left: Option<u32>) -> Policy {
    match (ledger, tries_left) {
        (Some(count), _) if count < ENOUGH => Policy::Reboot,
        (None, Some(1..)) => Policy::Reboot,
        _ => Policy::StayUp,
    }
}

/// The boot loader's remaining tries for this image; none without boot counting.
///
/// The variable names the boot entry's file with its counter, as `\EFI\Linux\demo+2-1.efi`
/// (<https://systemd.io/AUTOMATIC_BOOT_ASSESSMENT/>).
pub(super) fn tries_left(path: &str) -> Option<u32> {
    let stem = path.rsplit_once('.')?.0;
    let counter = stem.rsplit_once('+')?.1;
    counter.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use anyhow::anyhow;
    use image::paths::STATE_MARK;
    use linux::refusal::report;

    use super::*;
    use crate::recovery::ledger::{note, note_success};

    #[test]
    fn the_third_failure_for_one_reason_stays_up() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(STATE_MARK), "").unwrap();
        let one = report("config", &anyhow!("broken"));
        let other = report("config", &anyhow!("otherwise"));
        let mut seen = Vec::new();
        for report in [&one, &one, &other, &one, &one, &one] {
            seen.push(policy(note(folder.path(), report), None));
        }
        let (r, s) = (Policy::Reboot, Policy::StayUp);
        assert_eq!(seen, [r, r, r, r, r, s]);
        note_success(folder.path());
        assert_eq!(policy(note(folder.path(), &one), None), Policy::Reboot);
    }

    #[test]
    fn without_a_ledger_the_boot_counter_decides() {
        let folder = tempfile::tempdir().unwrap();
        let report = report("root", &anyhow!("broken"));
        assert_eq!(note(folder.path(), &report), None);
        for (path, expected) in [
            ("\\EFI\\Linux\\demo_1+2-1.efi", Policy::Reboot),
            ("\\EFI\\Linux\\demo_1+3.efi", Policy::Reboot),
            ("\\EFI\\Linux\\demo_1+0-3.efi", Policy::StayUp),
            ("\\EFI\\Linux\\demo_1.efi", Policy::StayUp),
        ] {
            assert_eq!(policy(None, tries_left(path)), expected, "{path}");
        }
    }
}
