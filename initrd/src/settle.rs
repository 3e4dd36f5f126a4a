//! Settle: before the first write of a first boot, and before a reset, all devices are there, so that the choice between two
//! that look alike is not left to chance.

use std::time::Duration;

use anyhow::Result;
use image::fault::Fault;
use linux::block;
use linux::disk_answers;
use linux::modules::Network;
use linux::settle::Settling;
use linux::uevent::Monitor;
use linux::waiter::Waiter;
use linux::world::World;

use crate::context::Boot;
use crate::root::{self, Root};

/// How long a disk that does not answer is waited for, before a decision that a wrong choice of the disk would make
/// destructive.
pub(crate) const SILENT: Duration = Duration::from_secs(120);

/// Loads the drivers of all devices, waits until the devices have settled, and refuses a second disk with this root, and a
/// disk that does not answer.
///
/// # Errors
/// A [`Fault`] that names the disks.
pub(crate) fn wait(boot: &Boot, root: &Root) -> Result<()> {
    wait_within(boot, root, SILENT)
}

fn wait_within(boot: &Boot, root: &Root, silent: Duration) -> Result<()> {
    until(boot, Duration::ZERO, silent, |_| false)?;
    // With a root in memory no disk has a `state`, and the config's disks are chosen with the same care when they are planned.
    if root.disk.is_some() {
        refuse_silent(&boot.world)?;
    }
    root::refuse_copies(boot, root)
}

/// Refuses to go on while a disk does not answer. It may hold the root too, with the `state` of a node that is provisioned: a
/// first boot on the other disk would wipe what that node's config names.
///
/// # Errors
/// A [`Fault`] that names the disk.
pub(crate) fn refuse_silent(world: &World) -> Result<(), Fault> {
    let silent = block::unanswered(world);
    if silent.is_empty() {
        return Ok(());
    }
    Err(
        Fault::new("a disk does not answer, and may hold the state or the config of this node")
            .expected("an answer of every disk before the first write of a first boot, or before a reset")
            .found(disk_answers::list(&silent))
            .fix("examine the disk and its cables; replace it, or detach it if nothing on it is needed"),
    )
}

/// Loads the drivers of all devices and waits until these have settled, `least` at least, and every disk has answered,
/// `silent` at most, or until `found` finds what is looked for; its argument is whether it is asked for the last time. Gives
/// whether it was found.
///
/// # Errors
/// If the kernel's device events cannot be received.
pub(crate) fn until(
    boot: &Boot,
    least: Duration,
    silent: Duration,
    mut found: impl FnMut(bool) -> bool,
) -> Result<bool> {
    boot.modules.load_for_devices(Network::Without);
    let monitor = Monitor::open()?;
    let mut waiter = Waiter::until(&boot.world, silent);
    let mut settling = Settling::begin(&boot.world);
    let mut settled = false;
    loop {
        settled = settled || settling.is_over();
        if settled && waiter.elapsed() >= least {
            if waiter.is_over() || block::unanswered(&boot.world).is_empty() {
                return Ok(found(true));
            }
            waiter.say("every disk to answer");
        }
        if found(false) {
            return Ok(true);
        }
        waiter.examined();
        monitor.wait(Settling::pause());
        // A driver may have uncovered a device whose driver is not loaded yet.
        boot.modules.load_for_disks();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use linux::block::Disk;
    use linux::disk_reader::Readers;
    use linux::programs::Programs;
    use linux::samples::{hanging, wake};
    use linux::world::Clock;

    use super::*;
    use crate::root::Search;

    #[test]
    fn nothing_is_written_by_a_first_boot_while_a_disk_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::below(folder.path(), Clock::Real);
        world.readers = Readers::with_patience(Duration::from_secs(2));
        fs::create_dir_all(&world.dev).unwrap();
        for name in ["vda", "vdb"] {
            let disk = world.sys.join("block").join(name);
            fs::create_dir_all(&disk).unwrap();
            fs::write(disk.join("size"), "2048\n").unwrap();
        }
        fs::write(world.dev.join("vda"), "content").unwrap();
        let node = world.dev.join("vdb");
        hanging(&node);
        let world = Arc::new(world);
        let boot = Boot::of_tests(&world);
        let mut root = Root {
            programs: Programs::of_image(Arc::clone(&world)),
            disk: Some(Disk::default()),
            verity: None,
            search: Search::default(),
        };
        let error = wait_within(&boot, &root, Duration::from_secs(3)).unwrap_err();
        let found = error.downcast::<Fault>().unwrap().found.unwrap();
        assert!(
            found.starts_with("vdb, which has not answered for "),
            "{found}"
        );
        // With a root in memory there is no `state` that could be missed.
        root.disk = None;
        wait_within(&boot, &root, Duration::ZERO).unwrap();
        // It is waited for.
        root.disk = Some(Disk::default());
        std::thread::scope(|scope| {
            let awake = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                wake(&node)
            });
            wait_within(&boot, &root, Duration::from_secs(60)).unwrap();
            drop(awake.join().unwrap());
        });
    }
}
