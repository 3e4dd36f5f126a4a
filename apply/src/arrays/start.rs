//! Starts an array that an earlier boot made, as udev's rules do: member by member as they appear, and without missing
//! members at the deadline.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{node, uuid_in};
use crate::device;
use crate::device::Device;
use image::fault::Fault;
use linux::block;
use linux::disk_answers::with_silent;
use linux::disk_reader::Reads;
use linux::modules::Modules;
use linux::modules::Network;
use linux::probe;
use linux::probe::Stretch;
use linux::programs;
use linux::programs::Programs;
use linux::tools::{Tool, load_module};
use linux::uevent;
use linux::world::World;

/// How long to wait for all members before the array starts without some: as long as `mdadm-last-resort@.timer`.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts the array `name` with this UUID; returns its node.
///
/// # Errors
/// If too few members appear in time.
pub fn start(modules: &Modules, root: &Programs, name: &str, uuid: &str) -> Result<PathBuf> {
    let world = &root.world;
    let mdadm = Tool::Mdadm.find(root)?;
    load_module(root, "md_mod")?;
    let mut seen = BTreeSet::new();
    let what = format!("the members of the array {name}");
    let whole = uevent::wait_for(world, &what, Some(PATIENCE), || {
        for member in members(world, &mut seen) {
            let path = member.path.to_string_lossy();
            let examined = programs::run(root, &mdadm, &["--examine", "--export", &path])?;
            if uuid_in(&examined.stdout).as_deref() != Some(uuid) {
                continue;
            }
            // mdadm refuses an outdated member by its exit code; the others start without it.
            let added = programs::run(root, &mdadm, &["--incremental", &path])?;
            tracing::info!("disks: {path}: {}", added.stderr.trim());
        }
        let running = running(world, name);
        if running.is_none() {
            modules.load_for_disks();
            modules.load_for_devices(Network::Without);
        }
        Ok(running)
    })?;
    if let Some(device) = whole {
        return Ok(device);
    }
    tracing::warn!("disks: starting the array {name} without its absent members");
    let started = programs::succeed(root, &mdadm, &["--run", &format!("/dev/md/{name}")]);
    started.with_context(|| {
        let fault = Fault::new(format!(
            "the array {name}, which /var is on, does not start"
        ))
        .expected(format!("enough members of the array {uuid}"))
        .found("too few")
        .fix("attach its disks again");
        with_silent(world, fault)
    })?;
    running(world, name).with_context(|| format!("the array {name} is not running"))
}

/// The devices that may be members and were not seen before. One that does not answer comes once it has.
fn members(world: &World, seen: &mut BTreeSet<String>) -> Vec<Device> {
    let mut devices = device::all(world);
    devices.retain(|device| !device.busy() && !seen.contains(&device.name));
    let reads = devices.iter().map(|device| {
        let reads = Reads {
            path: device.path.clone(),
            stretches: block::edges(device.size, probe::EDGE),
        };
        (device.disk().to_owned(), reads)
    });
    let heard = block::ask(world, reads);
    devices.retain(|device| heard.has(device.disk()));
    seen.extend(devices.iter().map(|device| device.name.clone()));
    devices
        .into_iter()
        .filter(|device| {
            let known = File::open(&device.path)
                .map_err(anyhow::Error::from)
                .and_then(|file| probe::known(Stretch::whole(&file, device.size)));
            known.is_ok_and(|names| names.contains(&probe::RAID))
        })
        .collect()
}

/// The node of an array, if it runs.
pub(super) fn running(world: &World, name: &str) -> Option<PathBuf> {
    let device = node(world, name).ok()?;
    let kernel = device.file_name()?;
    let state = world.sys.join("class/block").join(kernel);
    let state = fs::read_to_string(state.join("md/array_state")).ok()?;
    (!["clear", "inactive"].contains(&state.trim())).then_some(device)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, symlink};
    use std::time::Instant;

    use super::*;
    use crate::fake::{Machine, write};
    use linux::disk_answers::still_silent;
    use linux::disk_reader::Readers;
    use linux::samples::{hanging, wake};

    #[test]
    fn members_are_seen_once_and_only_free_ones_with_the_metadata() {
        let machine = Machine::new();
        for (name, number) in [("vda", "254:0"), ("vdb", "254:16"), ("vdc", "254:32")] {
            let (_, file) = machine.add(name, &format!("x/{name}"), number, 0, 4 << 20);
            if name != "vda" {
                file.write_all_at(b"\xfc\x4e\x2b\xa9", 4096).unwrap();
            }
        }
        machine.mounted("25 1 254:32 / / rw - ext4 /dev/vdc rw\n");
        let mut seen = BTreeSet::new();
        let found = members(&machine.world, &mut seen);
        let names: Vec<&str> = found.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["vdb"]);
        assert!(members(&machine.world, &mut seen).is_empty());
    }

    #[test]
    fn a_member_that_hangs_is_added_when_it_answers() {
        let mut machine = Machine::new();
        machine.world.readers = Readers::with_patience(Duration::from_secs(2));
        machine.mounted("");
        for (name, number) in [("vdb", "254:16"), ("vdc", "254:32")] {
            let (_, file) = machine.add(name, &format!("x/{name}"), number, 0, 4 << 20);
            file.write_all_at(b"\xfc\x4e\x2b\xa9", 4096).unwrap();
        }
        let (node, kept) = (machine.world.dev.join("vdb"), machine.world.dev.join("x"));
        fs::rename(&node, &kept).unwrap();
        hanging(&node);
        let mut seen = BTreeSet::new();
        let mut names = || -> Vec<String> {
            let found = members(&machine.world, &mut seen);
            found.into_iter().map(|device| device.name).collect()
        };
        assert_eq!(names(), ["vdc"]);
        // The process has the pipe open; whoever reads next has the disk.
        let awake = wake(&node);
        fs::rename(&kept, &node).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while !still_silent(&machine.world).is_empty() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(awake);
        assert_eq!(names(), ["vdb"]);
    }

    #[test]
    fn an_array_runs_when_the_kernel_says_so() {
        let machine = Machine::new();
        let world = &machine.world;
        machine.add("md127", "virtual/block/md127", "9:127", 0, 1 << 20);
        fs::create_dir_all(world.dev.join("md")).unwrap();
        assert_eq!(running(world, "pair"), None);
        symlink("../md127", world.dev.join("md/pair")).unwrap();
        let state = world.sys.join("devices/virtual/block/md127/md/array_state");
        for (text, runs) in [
            ("inactive", false),
            ("clear", false),
            ("clean", true),
            ("read-auto", true),
        ] {
            write(&state, &format!("{text}\n"));
            assert_eq!(running(world, "pair").is_some(), runs, "{text}");
        }
    }
}
