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
    restart_after_panic(world);
    Ok(())
}

/// A panic of the kernel, which the end of this program is too, restarts the machine after ten seconds unless the command line
/// says otherwise: the kernel's own watchdog does not count any more then. Best effort.
fn restart_after_panic(world: &World) {
    let path = world.proc.join("sys/kernel/panic");
    let done = fs::read_to_string(&path).and_then(|text| match text.trim() {
        "0" => fs::write(&path, "10\n"),
        _ => Ok(()),
    });
    if let Err(error) = done {
        tracing::warn!("{}: {error}", path.display());
    }
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

#[cfg(test)]
mod tests {
    use linux::world::Clock;

    use super::*;

    #[test]
    fn a_panic_restarts_the_machine_unless_the_command_line_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let setting = world.proc.join("sys/kernel/panic");
        fs::create_dir_all(setting.parent().unwrap()).unwrap();
        for (before, after) in [("0\n", "10\n"), ("-1\n", "-1\n"), ("30\n", "30\n")] {
            fs::write(&setting, before).unwrap();
            restart_after_panic(&world);
            assert_eq!(fs::read_to_string(&setting).unwrap(), after);
        }
    }
}
