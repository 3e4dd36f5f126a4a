//! Watchdog: armed early, fed by the progress of a wait, handed to systemd.
//!
//! Interface: <https://docs.kernel.org/watchdog/watchdog-api.html>. Nothing but [`crate::waiter`] feeds it, so that a hang of
//! the init itself resets the machine.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};

/// How long the init may go without progress. Long enough for an fsck of a large disk between two feeds
/// under software emulation; systemd sets its own time when it takes over.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The armed watchdog, or none.
#[derive(Debug, Default)]
pub struct Watchdog {
    device: Mutex<Option<File>>,
}

/// Setting the timeout is the one ioctl of the watchdog that the init needs.
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
}

impl Watchdog {
    /// Opens the first watchdog, which arms it. Best effort: `Ok(None)` if the machine has none.
    ///
    /// # Errors
    /// If a watchdog exists and cannot be opened.
    pub fn arm(&self, dev: &Path, sys: &Path) -> Result<Option<String>> {
        let path = dev.join("watchdog0");
        if !path.exists() {
            return Ok(None);
        }
        let device = OpenOptions::new()
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        let seconds = i32::try_from(TIMEOUT.as_secs()).unwrap_or(i32::MAX);
        let took = ioctl::timeout(&device, seconds).unwrap_or(seconds);
        let name = std::fs::read_to_string(sys.join("class/watchdog/watchdog0/identity"))
            .unwrap_or_default();
        if let Ok(mut slot) = self.device.lock() {
            *slot = Some(device);
        }
        self.feed();
        Ok(Some(format!("{} ({took} s)", name.trim())))
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
