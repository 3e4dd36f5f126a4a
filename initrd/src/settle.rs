//! Settle: before the first write of a first boot, and before a reset, all devices are there, so that the choice between two
//! that look alike is not left to chance.

use std::time::Duration;

use anyhow::Result;
use linux::modules::Network;
use linux::settle::Settling;
use linux::uevent::Monitor;
use linux::waiter::Waiter;

use crate::context::Boot;
use crate::root::{self, Root};

/// Loads the drivers of all devices, waits until the devices have settled, and refuses a second disk with this root.
///
/// # Errors
/// A [`Fault`](image::fault::Fault) that names both disks.
pub(crate) fn wait(boot: &Boot, root: &Root) -> Result<()> {
    until(boot, Duration::ZERO, |_| false)?;
    root::refuse_copies(boot, root)
}

/// Loads the drivers of all devices and waits until these have settled, `least` at least, or until `found` finds what is
/// looked for; its argument is whether it is asked for the last time. Gives whether it was found.
///
/// # Errors
/// If the kernel's device events cannot be received.
pub(crate) fn until(
    boot: &Boot,
    least: Duration,
    mut found: impl FnMut(bool) -> bool,
) -> Result<bool> {
    boot.modules.load_for_devices(Network::Without);
    let monitor = Monitor::open()?;
    let mut waiter = Waiter::for_ever(&boot.world);
    let mut settling = Settling::begin(&boot.world);
    while waiter.elapsed() < least || !settling.is_over() {
        if found(false) {
            return Ok(true);
        }
        waiter.examined();
        monitor.wait(Settling::pause());
        // A driver may have uncovered a device whose driver is not loaded yet.
        boot.modules.load_for_disks();
    }
    Ok(found(true))
}
