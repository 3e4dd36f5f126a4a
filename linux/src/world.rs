//! The machine as one struct: paths, clock, watchdog. Tests pass another one.
//!
//! The init expects: `/dev`, `/proc`, `/sys` and `/run` as folders of the initramfs (made if absent),
//! and the files named in [`image::paths`] as `INITRD_…`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use image::guid::Guid;
use nix::time::{ClockId, clock_gettime};

use crate::console::Consoles;
use crate::disk_reader::Readers;
use crate::nvme::Answers;
use crate::watchdog::Watchdog;

/// The paths and clocks of the machine.
#[derive(Debug)]
pub struct World {
    /// The initramfs itself: `/`.
    pub initrd: PathBuf,
    /// procfs.
    pub proc: PathBuf,
    /// sysfs.
    pub sys: PathBuf,
    /// Device nodes.
    pub dev: PathBuf,
    /// Runtime files; the running node sees the same folder.
    pub run: PathBuf,
    /// Where the root is assembled.
    pub sysroot: PathBuf,
    /// The clocks.
    pub clock: Clock,
    /// The watchdog; [`crate::waiter`] feeds it.
    pub watchdog: Watchdog,
    /// The consoles that have been written to.
    pub consoles: Consoles,
    /// What NVMe disks have answered.
    pub nvme: Answers,
    /// Which disks have answered, and the processes that ask them.
    pub readers: Readers,
}

/// The time, real or a test's.
#[derive(Debug)]
pub enum Clock {
    /// The kernel's clocks.
    Real,
    /// A clock of tests: microseconds since boot; each sleep advances it.
    Fake(std::sync::atomic::AtomicI64),
}

impl World {
    /// The machine that the init runs on.
    pub fn real() -> Self {
        Self::below(Path::new("/"), Clock::Real)
    }

    /// A world whose every path is below `root`.
    pub fn below(root: &Path, clock: Clock) -> Self {
        Self {
            initrd: root.to_owned(),
            proc: root.join("proc"),
            sys: root.join("sys"),
            dev: root.join("dev"),
            run: root.join("run"),
            sysroot: root.join(image::paths::SYSROOT.trim_start_matches('/')),
            clock,
            watchdog: Watchdog::default(),
            consoles: Consoles::default(),
            nvme: Answers::default(),
            readers: Readers::default(),
        }
    }

    /// A path of the contract (absolute) inside the initramfs.
    pub fn in_initrd(&self, path: &str) -> PathBuf {
        self.initrd.join(path.trim_start_matches('/'))
    }

    /// A path of the contract (absolute) inside the root that is being assembled.
    pub fn in_sysroot(&self, path: &str) -> PathBuf {
        self.sysroot.join(path.trim_start_matches('/'))
    }

    /// A path of the contract below `/run`, which the running node sees too.
    pub fn in_run(&self, path: &str) -> PathBuf {
        let below = path.trim_start_matches("/run").trim_start_matches('/');
        self.run.join(below)
    }

    /// Microseconds since the machine started, suspended time included (`CLOCK_BOOTTIME`).
    pub fn micros(&self) -> i64 {
        match &self.clock {
            Clock::Real => clock_gettime(ClockId::CLOCK_BOOTTIME)
                .map_or(0, |at| at.tv_sec() * 1_000_000 + at.tv_nsec() / 1000),
            Clock::Fake(at) => at.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    /// A random GUID from the kernel.
    ///
    /// # Errors
    /// If procfs is not mounted.
    pub fn random_guid(&self) -> Result<Guid> {
        let path = self.proc.join("sys/kernel/random/uuid");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        text.trim().parse().map_err(anyhow::Error::msg)
    }

    /// The number of this boot; empty without procfs.
    #[must_use]
    pub fn boot_id(&self) -> String {
        let file = self.proc.join("sys/kernel/random/boot_id");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.trim().to_owned()
    }

    /// Sleeps. Loops sleep by a [`crate::waiter::Waiter`], which keeps the watchdog fed.
    pub(crate) fn sleep(&self, time: Duration) {
        match &self.clock {
            Clock::Real => std::thread::sleep(time),
            Clock::Fake(at) => {
                let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
                at.fetch_add(micros, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contract_paths_land_below_their_roots() {
        let world = World::below(Path::new("/w"), Clock::Real);
        assert_eq!(
            world.in_initrd(image::paths::INITRD_MANIFEST),
            Path::new("/w/etc/slipway/manifest.json")
        );
        assert_eq!(
            world.in_run(image::paths::RUN_MANIFEST),
            Path::new("/w/run/slipway/manifest.json")
        );
        assert_eq!(
            world.in_sysroot(image::paths::ETCD),
            Path::new("/w/sysroot/var/lib/etcd")
        );
    }
}
