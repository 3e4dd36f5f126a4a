//! Watchdog: armed early, fed by the progress of a wait, handed to systemd.
//!
//! Interface: <https://docs.kernel.org/watchdog/watchdog-api.html>. Nothing but [`crate::waiter`] feeds it, so that a hang of
//! the init itself resets the machine.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// How long the init may go without progress, unless the kernel command line says otherwise. systemd sets its own time when
/// it takes over.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The armed watchdog, or none.
#[derive(Debug, Default)]
pub struct Watchdog {
    device: Mutex<Option<File>>,
    /// The time with which it is armed once its driver is there.
    wanted: Mutex<Option<Duration>>,
}

/// The ioctls of the watchdog that the init needs.
mod ioctl {
    #![allow(unsafe_code, missing_docs)]
    nix::ioctl_readwrite!(set_timeout, b'W', 6, nix::libc::c_int);

    /// Sets the timeout in seconds; returns the one that the hardware accepted.
    pub(super) fn timeout(device: &std::fs::File, seconds: i32) -> nix::Result<i32> {
        use std::os::fd::AsRawFd;
        let mut value = seconds;
        // SAFETY: the descriptor is open for the time of the call and the pointer is to a live int, as
        // WDIOC_SETTIMEOUT wants.
        unsafe { set_timeout(device.as_raw_fd(), &raw mut value) }?;
        Ok(value)
    }

    nix::ioctl_read!(get_timeout, b'W', 7, nix::libc::c_int);

    /// The timeout that counts now, in seconds.
    pub(super) fn current(device: &std::fs::File) -> nix::Result<i32> {
        use std::os::fd::AsRawFd;
        let mut value = 0;
        // SAFETY: as above; WDIOC_GETTIMEOUT writes the int.
        unsafe { get_timeout(device.as_raw_fd(), &raw mut value) }?;
        Ok(value)
    }
}

/// The time that counts, in words: a driver refuses one beyond its longest, and keeps the one that it had.
fn taken(
    seconds: i32,
    set: nix::Result<i32>,
    current: impl FnOnce() -> nix::Result<i32>,
) -> String {
    let refused = match set {
        Ok(took) => return format!("{took} s"),
        Err(error) => error,
    };
    let counts = current().map_or_else(|_| "an unknown time".to_owned(), |own| format!("{own} s"));
    tracing::warn!("the watchdog does not take {seconds} s ({refused}); it counts {counts}");
    counts
}

impl Watchdog {
    /// From now on [`Watchdog::arm`] arms it with this time; before, it does nothing.
    pub fn want(&self, timeout: Duration) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Some(timeout);
    }

    /// Opens the first watchdog, which arms it, and sets its time. Called after each of its drivers, so that a driver that
    /// hangs beside it is counted already. Gives its name and the time that the hardware took; `Ok(None)` if it is not
    /// wanted, armed already, or not there.
    ///
    /// # Errors
    /// If a watchdog exists and cannot be opened.
    pub fn arm(&self, dev: &Path, sys: &Path) -> Result<Option<String>> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let path = dev.join("watchdog0");
        let Some(timeout) = wanted.filter(|_| path.exists()) else {
            return Ok(None);
        };
        let device = OpenOptions::new()
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
        let set = ioctl::timeout(&device, seconds);
        let took = taken(seconds, set, || ioctl::current(&device));
        let name = std::fs::read_to_string(sys.join("class/watchdog/watchdog0/identity"))
            .unwrap_or_default();
        if let Ok(mut slot) = self.device.lock() {
            *slot = Some(device);
        }
        *wanted = None;
        self.feed();
        Ok(Some(format!("{} ({took})", name.trim())))
    }

    /// Restarts the timeout. Without an armed watchdog nothing happens.
    pub(crate) fn feed(&self) {
        if let Ok(mut slot) = self.device.lock()
            && let Some(device) = slot.as_mut()
            && let Err(error) = device.write_all(b"\0")
        {
            tracing::warn!("feeding the watchdog: {error}");
        }
    }

    /// Closes the device without disarming (no magic character was written): it keeps counting until systemd,
    /// which opens it as one of its first acts, feeds it.
    pub fn hand_over(&self) {
        self.feed();
        if let Ok(mut slot) = self.device.lock() {
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_time_is_the_one_that_the_hardware_counts() {
        use nix::errno::Errno;
        let never = || -> nix::Result<i32> { unreachable!("the driver took one") };
        assert_eq!(taken(120, Ok(118), never), "118 s");
        assert_eq!(taken(120, Err(Errno::EINVAL), || Ok(60)), "60 s");
        let none = taken(120, Err(Errno::EINVAL), || Err(Errno::EOPNOTSUPP));
        assert_eq!(none, "an unknown time");
    }

    #[test]
    fn it_is_armed_once_with_the_time_that_is_wanted_and_when_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (dev, sys) = (folder.path().join("dev"), folder.path().join("sys"));
        let identity = sys.join("class/watchdog/watchdog0/identity");
        for path in [&dev, identity.parent().unwrap()] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(&identity, "a watchdog\n").unwrap();
        let watchdog = Watchdog::default();
        let device = dev.join("watchdog0");
        watchdog.want(Duration::from_secs(20));
        assert_eq!(watchdog.arm(&dev, &sys).unwrap(), None);
        fs::write(&device, "").unwrap();
        let armed = watchdog.arm(&dev, &sys).unwrap();
        assert_eq!(armed.as_deref(), Some("a watchdog (an unknown time)"));
        assert_eq!(watchdog.arm(&dev, &sys).unwrap(), None);
        // Once when it was armed, once when it is handed over; then no more, and never the V that would disarm it.
        watchdog.hand_over();
        watchdog.feed();
        assert_eq!(fs::read(&device).unwrap(), b"\0\0");
        // Nobody wants it.
        assert_eq!(Watchdog::default().arm(&dev, &sys).unwrap(), None);
    }
}
