//! The policy after a report: reboot, reboot after a while, or stay up with it.

use image::layout::BOOT_TRIES;
use linux::firmware::Counter;

use crate::loader::Entry;

/// Failures in a row for one reason after which the node stays up.
const ENOUGH: usize = 3;

/// The action after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Report, ten seconds, reboot.
    Reboot,
    /// Report, ten minutes, reboot.
    RebootLater,
    /// The report stays on the consoles.
    StayUp,
}

/// While the loader counts, it takes another slot sooner or later, and a reboot lets it; once it
/// has none left, or does not count, the third failure in a row for one reason (`ledger`, if it is readable) stays up.
///
/// Without a ledger there is nothing to count by. A blessed entry has booted this node before, so that the cause is most likely
/// outside of the image, and may pass: a disk or a controller that is late after a power failure.
pub(super) fn policy(ledger: Option<usize>, entry: Entry) -> Policy {
    match (ledger, entry) {
        (_, Entry::Counted(counter)) if loader_may_choose_another(counter) => Policy::Reboot,
        (Some(count), _) if count < ENOUGH => Policy::Reboot,
        (None, Entry::Blessed) => Policy::RebootLater,
        _ => Policy::StayUp,
    }
}

/// Whether a reboot can lead to another image. With tries left this one is tried again, and not for ever. Without, the
/// loader sorts it behind every other entry: it comes again, with one more boot done, only if it is the last that there is
/// (`boot_entry_compare` and `boot_entry_bump_counters` in systemd's `src/boot/boot.c`).
fn loader_may_choose_another(counter: Counter) -> bool {
    counter.left > 0 || counter.done <= BOOT_TRIES
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
        let one = report("config", &anyhow!("broken on vda"));
        let the_same = report("config", &anyhow!("broken on vdb"));
        let other = report("config", &anyhow!("otherwise"));
        let mut seen = Vec::new();
        for report in [&one, &one, &other, &one, &the_same, &one] {
            seen.push(policy(note(folder.path(), report), Entry::Unknown));
        }
        let (r, s) = (Policy::Reboot, Policy::StayUp);
        assert_eq!(seen, [r, r, r, r, r, s]);
        note_success(folder.path());
        let noted = note(folder.path(), &one);
        assert_eq!(policy(noted, Entry::Unknown), Policy::Reboot);
    }

    #[test]
    fn a_torn_or_damaged_line_of_the_ledger_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(STATE_MARK), "").unwrap();
        let path = folder.path().join(image::paths::STATE_LEDGER);
        let one = report("config", &anyhow!("broken"));
        assert_eq!(note(folder.path(), &one), Some(1));
        for damage in [&b"{\"time\": 1, \"rep"[..], &[0xff, 0, b'\n']] {
            let ledger = fs::read(&path).unwrap();
            fs::write(&path, [&ledger, damage].concat()).unwrap();
        }
        assert_eq!(note(folder.path(), &one), Some(2));
    }

    #[test]
    fn a_node_reboots_as_long_as_the_loader_may_choose_another_entry() {
        let (reboot, later, stay) = (Policy::Reboot, Policy::RebootLater, Policy::StayUp);
        for (entry, without_ledger, third_failure) in [
            ("demo_1+2-1", reboot, reboot),
            ("demo_1+3", reboot, reboot),
            // The last try: the other slot is next, if there is one.
            ("demo_1+0-3", reboot, reboot),
            // The loader had the choice and came back.
            ("demo_1+0-4", stay, stay),
            // Marked as bad by hand.
            ("demo_1+0-1", reboot, reboot),
            // Blessed: the loader chooses it again, and the cause may have passed.
            ("demo_1", later, stay),
            ("demo+x-1", stay, stay),
        ] {
            // The loader names the path of an entry whose boots it counts.
            let path = format!("\\EFI\\Linux\\{entry}.efi");
            let found = Entry::of(entry.contains('+').then_some(path.as_str()), true);
            assert_eq!(policy(None, found), without_ledger, "{entry}");
            assert_eq!(policy(Some(ENOUGH), found), third_failure, "{entry}");
            assert_eq!(policy(Some(1), found), reboot, "{entry}");
        }
        // A direct boot, and one by PXE.
        let none = Entry::of(None, false);
        assert_eq!(policy(None, none), stay);
        assert_eq!(policy(Some(ENOUGH), none), stay);
        assert_eq!(policy(Some(1), none), reboot);
    }
}
