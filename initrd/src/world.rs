//! World: mounts the kernel's file systems, and speeds up the loading of modules.

use std::fs;

use anyhow::Result;
use image::timeline::Span;
use linux::mount::{self, Flags};
use linux::world::World;

use crate::context::Early;

/// Mounts the kernel's file systems, and records the kernel's own time.
pub(crate) fn set_up(early: &Early) -> Result<()> {
    let world = &early.world;
    early.timeline.add(kernel_time(world));
    let quiet = Flags::MS_NOSUID | Flags::MS_NOEXEC | Flags::MS_NODEV;
    for (kind, path, flags, options) in [
        ("proc", &world.proc, quiet, ""),
        ("sysfs", &world.sys, quiet, ""),
        ("devtmpfs", &world.dev, Flags::MS_NOSUID, "mode=0755"),
        (
            "tmpfs",
            &world.run,
            Flags::MS_NOSUID | Flags::MS_NODEV,
            "mode=0755,size=20%",
        ),
    ] {
        mount::folder(path, 0o755)?;
        mount::mount(kind, path, kind, flags, options)?;
    }
    expedite(world, true);
    Ok(())
}

/// The kernel's own time, from its start until it started this program.
fn kernel_time(world: &World) -> Span {
    Span {
        source: "kernel".to_owned(),
        name: "kernel".to_owned(),
        start: 0,
        end: Some(world.micros()),
        note: None,
    }
}

/// Expedites RCU: while modules load, the kernel waits for it dozens of times, and each wait is milliseconds shorter
/// when expedited. Best effort.
pub(crate) fn expedite(world: &World, on: bool) {
    let path = world.sys.join("kernel/rcu_expedited");
    if let Err(error) = fs::write(&path, if on { "1\n" } else { "0\n" }) {
        tracing::warn!("{}: {error}", path.display());
    }
}
