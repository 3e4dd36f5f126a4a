//! A reset of the machine if its reboot hangs. The kernel shuts each device down first, and waits without end for one that its driver
//! still examines (`device_shutdown` in Linux's `drivers/base/core.c`): a disk that does not answer. Most watchdogs are stopped by then
//! (`watchdog_reboot_notifier` in `drivers/watchdog/watchdog_core.c`).

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use linux::reset;
use linux::world::World;

pub(crate) const DESCRIPTION: &str =
    "resets the machine in three minutes, if its reboot hangs until then; systemd starts it";
/// How long the kernel has for a reboot. What is in memory is on the disks before; a controller with a large cache takes a minute or two
/// to write that.
const REBOOT: Duration = Duration::from_secs(180);

/// Of the kinds of systemd-shutdown(8), those after which the machine runs again. A machine that is to stay off is left as it is.
fn runs_again(kind: &str) -> bool {
    ["reboot", "kexec"].contains(&kind)
}

/// The command, with the kind of the shutdown.
pub(crate) fn command(name: &str, kind: &str) -> ExitCode {
    match reset_later(&World::real(), kind) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}; a reboot that hangs is not ended");
            ExitCode::FAILURE
        }
    }
}

fn reset_later(world: &World, kind: &str) -> Result<()> {
    match runs_again(kind) {
        true => reset::later(world, REBOOT).map(drop),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    #[test]
    fn only_a_machine_that_is_to_run_again_is_reset() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, namespace) = (folder.path().join("proc"), "self/ns/pid");
        std::fs::create_dir_all(proc.join("self/ns")).unwrap();
        std::os::unix::fs::symlink("pid:[4026531836]", proc.join(namespace)).unwrap();
        let world = World::below(folder.path(), Clock::Real);
        // Without the kernel's file: what would have asked for it fails.
        for (kind, asks) in [
            ("reboot", true),
            ("kexec", true),
            ("poweroff", false),
            ("halt", false),
            ("exit", false),
        ] {
            assert_eq!(reset_later(&world, kind).is_err(), asks, "{kind}");
        }
    }
}
