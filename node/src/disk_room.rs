//! The room on the node's own file systems: `/var`, and the etcd volume where there is one.

use image::paths::ETCD;
use linux::world::World;
use serde::Serialize;

/// Where the file systems are mounted.
const MOUNTS: [&str; 2] = ["/var", ETCD];
/// With fewer bytes a file system is full: the journal of the bring-up and a kubelet's certificate do not fit.
const LEAST: u64 = 1 << 20;
/// With less than this part of it left a file system is worth a line.
const LITTLE: u64 = 10;

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Disk {
    /// Where it is mounted.
    pub(crate) path: &'static str,
    /// All of it, bytes.
    pub(crate) size: u64,
    /// What may still be written, bytes.
    pub(crate) free: u64,
}

/// The file systems that can be asked, each once.
pub(crate) fn disks(world: &World) -> Vec<Disk> {
    let mut ids = Vec::new();
    let asked = MOUNTS.iter().filter_map(|path| {
        let found = nix::sys::statvfs::statvfs(&world.in_initrd(path)).ok()?;
        let is_new = !ids.contains(&found.filesystem_id());
        ids.push(found.filesystem_id());
        is_new.then(|| Disk {
            path,
            size: found.blocks() * found.fragment_size(),
            free: found.blocks_available() * found.fragment_size(),
        })
    });
    asked.collect()
}

impl Disk {
    pub(crate) const fn is_full(&self) -> bool {
        self.free < LEAST
    }

    /// Whether little is left.
    pub(crate) const fn is_short(&self) -> bool {
        self.free < self.size / LITTLE
    }

    /// How much is left.
    pub(crate) fn text(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "{} has {} of {} MiB left",
            self.path,
            mib(self.free),
            mib(self.size)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    #[test]
    fn a_file_system_is_told_once_and_is_full_or_short_by_what_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert!(disks(&world).is_empty());
        for path in MOUNTS {
            std::fs::create_dir_all(world.in_initrd(path)).unwrap();
        }
        let found = disks(&world);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].size > 0);
        let disk = |free| Disk {
            path: "/var",
            size: 100 << 20,
            free,
        };
        for (free, full, short) in [
            (0, true, true),
            (9 << 20, false, true),
            (10 << 20, false, false),
        ] {
            let disk = disk(free);
            assert_eq!((disk.is_full(), disk.is_short()), (full, short), "{disk:?}");
        }
        assert_eq!(disk(9 << 20).text(), "/var has 9 of 100 MiB left");
    }
}
