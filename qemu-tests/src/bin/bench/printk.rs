//! The kernel's own times on a console: from the start of `/init` to the system's systemd.

/// What the kernel says just before it executes `/init`.
const INIT: &str = "Run /init as init process";
/// What every systemd says first of all, with its version between these two.
const SYSTEMD: (&str, &str) = ("systemd[1]: systemd ", " running in system mode");

/// Times of one boot, seconds since the kernel's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Boot {
    /// When `/init` was started.
    pub(crate) init: f64,
    /// When the root's systemd spoke.
    pub(crate) system: f64,
}

/// A line's time, in seconds, and its text: `[    1.234567] text`, wherever in the line it begins.
fn timed(line: &str) -> Option<(f64, &str)> {
    let (_, rest) = line.split_once('[')?;
    let (time, text) = rest.split_once("] ")?;
    Some((time.trim().parse().ok()?, text))
}

/// Finds the two moments. An initrd with its own systemd has it speak before, so that the root's is the
/// `systemds`-th one.
#[must_use]
pub(crate) fn find(console: &str, systemds: usize) -> Option<Boot> {
    // The last line may still be growing.
    let (whole, _) = console.rsplit_once('\n')?;
    let lines = || whole.lines().filter_map(timed);
    let (init, _) = lines().find(|(_, text)| text.starts_with(INIT))?;
    let speaks = |text: &str| {
        text.strip_prefix(SYSTEMD.0)
            .is_some_and(|rest| rest.contains(SYSTEMD.1))
    };
    let (system, _) = lines()
        .filter(|(time, text)| *time >= init && speaks(text))
        .nth(systemds.checked_sub(1)?)?;
    Some(Boot { init, system })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "\
Booting from ROM..
[    0.000000] Linux version 6.12.48+deb13-cloud-amd64
[    1.501234] Run /init as init process
[    1.502000]   with arguments:
[    1.700001] systemd[1]: systemd 257.8-1 running in system mode (+PAM -AUDIT)
[    1.700002] systemd[1]: Detected virtualization qemu.
junk [  OK  ] Reached target
[    6.250000] systemd[1]: systemd 257.9-1 running in system mode (+PAM)
[    6.3";

    #[test]
    fn the_root_s_systemd_is_told_from_the_initrd_s() {
        let first = Boot {
            init: 1.501234,
            system: 1.700001,
        };
        let second = Boot {
            init: 1.501234,
            system: 6.25,
        };
        assert_eq!(find(CONSOLE, 1), Some(first));
        assert_eq!(find(CONSOLE, 2), Some(second));
        assert_eq!(find(CONSOLE, 3), None);
        assert_eq!(find(CONSOLE, 0), None);
    }

    #[test]
    fn what_is_not_there_yet_is_not_found() {
        assert_eq!(find("", 1), None);
        assert_eq!(find("[    1.5] Run /init as init process\n", 1), None);
        let cut = "[ 1.5] Run /init as init process\n[ 2.0] systemd[1]: systemd 257 running in system mode (";
        assert_eq!(find(cut, 1), None);
        assert_eq!(
            find(&format!("{cut})\n"), 1).map(|boot| boot.system),
            Some(2.0)
        );
    }

    #[test]
    fn lines_without_a_time_are_passed_over() {
        assert_eq!(timed("[  OK  ] Started"), None);
        assert_eq!(timed("no bracket"), None);
        assert_eq!(timed("\r[   12.000001] x"), Some((12.000_001, "x")));
    }
}
