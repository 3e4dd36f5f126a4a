//! Times of the kernel's log on a console: start of `/init`, handoff, the root's systemd.

use image::report::HANDED_OFF;

/// The kernel's message before it executes `/init`.
const INIT: &str = "Run /init as init process";
/// The first message of every systemd, around its version.
const SYSTEMD: (&str, &str) = ("systemd[1]: systemd ", " running in system mode");

/// Message of an initrd's journal when its systemd ends all processes before it switches to the root. "Switching root."
/// itself goes to that journal, not to the kernel's log.
const ENDED: (&str, &str) = ("systemd-journald[", "]: Received SIGTERM from PID 1");

/// The kind of initrd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ours, with slipway-init.
    Slipway,
    /// An initrd with systemd.
    Systemd,
}

/// Times of one boot, seconds since the kernel's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Boot {
    /// The start of `/init`.
    pub(crate) init: f64,
    /// The initrd's message of the handoff.
    pub(crate) handoff: f64,
    /// The first message of the root's systemd.
    pub(crate) system: f64,
}

/// A line's time, in seconds, and its text: `[    1.234567] text`, anywhere in the line.
fn timed(line: &str) -> Option<(f64, &str)> {
    let (_, rest) = line.split_once('[')?;
    let (time, text) = rest.split_once("] ")?;
    Some((time.trim().parse().ok()?, text))
}

/// The three times, if all of them are on the console.
#[must_use]
pub(crate) fn find(console: &str, kind: Kind) -> Option<Boot> {
    // The last line may be incomplete.
    let (whole, _) = console.rsplit_once('\n')?;
    let mut lines = whole.lines().filter_map(timed);
    let (init, _) = lines.find(|(_, text)| text.starts_with(INIT))?;
    let hands_over = |text: &str| match kind {
        Kind::Slipway => text.starts_with("slipway-init: ") && text.ends_with(HANDED_OFF),
        Kind::Systemd => text.starts_with(ENDED.0) && text.contains(ENDED.1),
    };
    let (handoff, _) = lines.find(|(_, text)| hands_over(text.trim_end()))?;
    let is_systemd = |text: &str| {
        text.strip_prefix(SYSTEMD.0)
            .is_some_and(|rest| rest.contains(SYSTEMD.1))
    };
    let (system, _) = lines.find(|(_, text)| is_systemd(text))?;
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
    fn the_roots_systemd_is_distinguished_from_the_initrds() {
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
    fn an_incomplete_boot_has_no_times() {
        assert_eq!(find("", Kind::Slipway), None);
        let whole: Vec<&str> = OURS.split_inclusive('\n').collect();
        for lines in 0..whole.len() {
            assert_eq!(find(&whole[..lines].concat(), Kind::Slipway), None);
        }
        // An incomplete line does not count.
        assert_eq!(find(OURS.trim_end(), Kind::Slipway), None);
    }

    #[test]
    fn lines_without_a_time_are_ignored() {
        assert_eq!(timed("[  OK  ] Started"), None);
        assert_eq!(timed("no bracket"), None);
        assert_eq!(timed("\r[   12.000001] x"), Some((12.000_001, "x")));
    }
}
