//! Restart: the machine's reboot, which no disk that hangs holds up for ever.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use linux::world::World;
use linux::{kernel_call, reset};
use nix::sys::reboot::{RebootMode, reboot};

use crate::deadline::within;

/// How long the disks may complete no request while they have to write what is in memory.
const SILENT: Duration = Duration::from_secs(60);

/// How long the kernel has for a reboot. It first shuts every device down, and waits without end for one that its driver still examines
/// (`device_shutdown` in Linux's `drivers/base/core.c` takes the lock of each); most watchdogs are stopped by then
/// (`watchdog_reboot_notifier` in `drivers/watchdog/watchdog_core.c`).
const REBOOT: Duration = Duration::from_secs(60);

/// Has the disks write what is in memory; what a disk that does not answer has to write is lost.
pub(crate) fn write_everything(world: &World) {
    let what = "the disks to write everything";
    kernel_call::until_silent(world, what, SILENT, nix::unistd::sync);
}

/// Reboots. Returns only if that fails.
pub(crate) fn restart(world: &World) -> anyhow::Error {
    write_everything(world);
    world.consoles.release();
    let orderly: anyhow::Result<Infallible> = within(world, "the kernel to reboot", REBOOT, || {
        Ok(reboot(RebootMode::RB_AUTOBOOT)?)
    });
    let Err(error) = orderly;
    tracing::error!("{error:#}; the machine is reset at once");
    match reset::now(world).context("resetting the machine") {
        Ok(()) => error,
        Err(reset) => error.context(format!("{reset:#}")),
    }
}
