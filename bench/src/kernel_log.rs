//! The kernel's own times on a console: from the start of `/init` over the handoff to the root's systemd.

use image::report::HANDED_OFF;

/// What the kernel says just before it executes `/init`.
const INIT: &str = "Run /init as init process";
/// What every systemd says first of all, with its version between these two.
const SYSTEMD: (&str, &str) = ("systemd[1]: systemd ", " running in system mode");

/// What the journal of an initrd's own systemd says when that systemd ends everything in order to become the root's;
/// "Switching root." itself goes to that journal, not to the kernel's log.
const ENDED: (&str, &str) = ("systemd-journald[", "]: Received SIGTERM from PID 1");

/// Whose initrd it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ours: the init is no systemd.
    Slipway,
    /// One with a systemd of its own.
    Systemd,
}

/// Times of one boot, seconds since the kernel's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Boot {
    /// When `/init` was started.
    pub(crate) init: f64,
    /// When the initrd's init said that it hands over to the root's.
    pub(crate) handoff: f64,
    /// When the root's systemd spoke.
    pub(crate) system: f64,
}

/// A line's time, in seconds, and its text: `[    1.234567] text`, wherever in the line it begins.
fn timed(line: &str) -> Option<(f64, &str)> {
    let (_, rest) = line.split_once('[')?;
    let (time, text) = rest.split_once("] ")?;
    Some((time.trim().parse().ok()?, text))
}

/// Finds the three moments, once all of them are there.
#[must_use]
pub(crate) fn find(console: &str, kind: Kind) -> Option<Boot> {
    // The last line may still be growing.
    let (whole, _) = console.rsplit_once('\n')?;
    let mut lines = whole.lines().filter_map(timed);
    let (init, _) = lines.find(|(_, text)| text.starts_with(INIT))?;
    let hands_over = |text: &str| match kind {
        Kind::Slipway => text.starts_with("slipway-init: ") && text.ends_with(HANDED_OFF),
        Kind::Systemd => text.starts_with(ENDED.0) && text.contains(ENDED.1),
    };
    let (handoff, _) = lines.find(|(_, text)| hands_over(text.trim_end()))?;
    let speaks = |text: &str| {
        text.strip_prefix(SYSTEMD.0)
            .is_some_and(|rest| rest.contains(SYSTEMD.1))
    };
    let (system, _) = lines.find(|(_, text)| speaks(text))?;
    Some(Boot {
        init,
        handoff,
        system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "\
Booting from ROM..
[    0.000000] Linux version 6.12.48+deb13-cloud-amd64
[    1.501234] Run /init as init process
[    1.502000]   with arguments:
[    1.700001] systemd[1]: systemd 257.8-1 running in system mode (+PAM -AUDIT)
[    1.700002] systemd[1]: Detected virtualization qemu.
junk [  OK  ] Reached target
[    6.100000] systemd-journald[176]: Received SIGTERM from PID 1 (systemd).
[    6.250000] systemd[1]: systemd 257.9-1 running in system mode (+PAM)
[    6.3";
    const OURS: &str = "\
[    1.500000] Run /init as init process\r
[    1.900000] slipway-init: handing off to the root's init\r
slipway-handoff: {}\r
[    2.100000] systemd[1]: systemd 257.9-1 running in system mode (+PAM)\r
";

    #[test]
    fn the_root_s_systemd_is_told_from_the_initrd_s() {
        let peer = Boot {
            init: 1.501234,
            handoff: 6.1,
            system: 6.25,
        };
        let ours = Boot {
            init: 1.5,
            handoff: 1.9,
            system: 2.1,
        };
        assert_eq!(find(PEER, Kind::Systemd), Some(peer));
        assert_eq!(find(OURS, Kind::Slipway), Some(ours));
        assert_eq!(find(PEER, Kind::Slipway), None);
        assert_eq!(find(OURS, Kind::Systemd), None);
    }

    #[test]
    fn what_is_not_there_yet_is_not_found() {
        assert_eq!(find("", Kind::Slipway), None);
        let whole: Vec<&str> = OURS.split_inclusive('\n').collect();
        for lines in 0..whole.len() {
            assert_eq!(find(&whole[..lines].concat(), Kind::Slipway), None);
        }
        // A line that is still growing does not count.
        assert_eq!(find(OURS.trim_end(), Kind::Slipway), None);
    }

    #[test]
    fn lines_without_a_time_are_passed_over() {
        assert_eq!(timed("[  OK  ] Started"), None);
        assert_eq!(timed("no bracket"), None);
        assert_eq!(timed("\r[   12.000001] x"), Some((12.000_001, "x")));
    }
}
