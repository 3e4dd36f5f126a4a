//! File modes: the special bits, and which modes are plausible.

/// The special bits: setuid, setgid, sticky.
pub(crate) const SPECIAL: i64 = 0o7000;

/// Whether a mode is implausible as it is, but plausible with its decimal digits read as octal ones: the leading zero
/// was forgotten.
#[must_use]
pub(crate) fn is_octal_in_decimal(mode: i64, directory: bool) -> bool {
    let digits = mode.to_string();
    let meant = i64::from_str_radix(&digits, 8)
        .ok()
        .filter(|_| digits.len() <= 4);
    meant.is_some_and(|meant| !is_plausible(mode, directory) && is_plausible(meant, directory))
}

/// Whether these permissions are plausible: the group has no right that the owner lacks, and others none that the group
/// lacks; write or execute permission implies read permission; at least one class may read; special bits occur only
/// where they have an effect.
fn is_plausible(mode: i64, directory: bool) -> bool {
    if mode == 0 {
        return true;
    }
    let (other, group, owner) = (mode & 7, mode >> 3 & 7, mode >> 6 & 7);
    let sane = |bits: i64| bits == 0 || bits & 4 != 0;
    // A higher class keeps every right of the lower one, and gains execute permission only with read permission.
    let grows = |less: i64, more: i64| less & !more == 0 && !(less & 5 == 4 && more & 1 != 0);
    let plain = [other, group, owner].into_iter().all(sane)
        && grows(other, group)
        && grows(group | other, owner)
        && owner & 4 != 0;
    let (executes, writes) = (owner & 1 != 0, owner & 2 != 0);
    let special = match directory {
        true => executes && mode & 0o4000 == 0 && (mode & 0o3000 == 0 || writes),
        false => {
            let raised = mode & 0o6000 != 0;
            mode & 0o1000 == 0 && (!raised || (executes && other & 2 == 0))
        }
    };
    plain && special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_nobody_sets_are_known() {
        for (mode, directory, expected) in [
            (0o644, false, true),
            (0o755, false, true),
            (0o600, false, true),
            (0o4755, false, true),
            (0o755, true, true),
            (0o1777, true, true),
            (0o2775, true, true),
            (0, false, true),
            (644, false, false),
            (755, false, false),
            (600, false, false),
            (755, true, false),
            (700, true, false),
            (0o644, true, false),
            (0o4644, false, false),
            (0o4757, false, false),
            (0o1644, false, false),
            (0o4755, true, false),
            (0o046, false, false),
            (0o744, false, false),
        ] {
            assert_eq!(
                is_plausible(mode, directory),
                expected,
                "{mode:o} {directory}"
            );
        }
        for (mode, octal_meant) in [(644, true), (0o644, false), (999, false), (0, false)] {
            assert_eq!(is_octal_in_decimal(mode, false), octal_meant, "{mode}");
        }
    }
}
