//! What a test needs of the host that it runs on: root, loop devices, programs.

#![allow(clippy::unwrap_used, reason = "test code may panic")]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ioctl;
use crate::programs::Programs;
use crate::world::World;

/// A variable of the environment: with it a test that cannot check what it is there for fails, as in CI.
const NO_SKIP: &str = "SLIPWAY_NO_SKIP";

/// Says that a test checks nothing on this host, and why.
///
/// # Panics
/// If `SLIPWAY_NO_SKIP` is set.
pub fn skipped(why: &str) {
    assert!(
        std::env::var_os(NO_SKIP).is_none(),
        "the test was skipped, and {NO_SKIP} is set: {why}"
    );
    // Past the test's own capture, which shows nothing of a test that passes.
    writeln!(std::io::stderr(), "skipped: {why}").ok();
}

/// Whether this is root; if not, [`skipped()`] says so.
///
/// # Panics
/// As [`skipped()`].
#[must_use]
pub fn is_root() -> bool {
    let is = nix::unistd::geteuid().is_root();
    if !is {
        skipped("mounts and programs started by a chroot need root");
    }
    is
}

/// The programs of this host, started in this world; none, as [`skipped()`] says, without root or one of `needed`, given by their paths.
///
/// # Panics
/// As [`skipped()`].
pub fn programs(world: World, needed: &[&str]) -> Option<Programs> {
    let missing: Vec<&&str> = needed
        .iter()
        .filter(|path| !Path::new(path).exists())
        .collect();
    if !missing.is_empty() {
        skipped(&format!("this host has no {missing:?}"));
    }
    (missing.is_empty() && is_root()).then(|| Programs::of_host(Arc::new(world)))
}

/// A loop device with partitions, whose content is an unnamed file. The kernel detaches it when it is dropped.
#[derive(Debug)]
pub struct LoopDisk {
    /// The kernel's name.
    pub name: String,
    /// The device, open for reading and writing.
    pub device: File,
    /// Its content, for reading: the device's cache does not show what is written to it here.
    pub file: File,
}

impl LoopDisk {
    /// A disk of zeros; size and sector in bytes. None, as [`skipped()`] says, without root or loop devices.
    ///
    /// # Panics
    /// As [`skipped()`], and if no loop device is free.
    #[must_use]
    pub fn new(size: u64, sector: u32) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let Ok(control) = File::open("/dev/loop-control") else {
            skipped("this host has no /dev/loop-control");
            return None;
        };
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        // Another process may take the free one first.
        let attach = |_| {
            let name = format!("loop{}", ioctl::free_loop(&control).unwrap());
            let mut options = File::options();
            let device = options.read(true).write(true).open(path_of(&name)).unwrap();
            let done = ioctl::attach_loop_disk(&device, &file, sector);
            done.ok().map(|()| (name, device))
        };
        let (name, device) = (0..20).find_map(attach).expect("no free loop device");
        Some(Self { name, device, file })
    }

    /// Its node in `/dev`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new("/dev").join(name)
}
