//! The ESP that this boot came from, mounted only while it is read or written.

use std::path::Path;

use anyhow::{Context, Result};
use image::guid::Guid;
use image::paths::RUN_ESP;

use crate::block;
use crate::mount;
use crate::mount::Flags;
use crate::world::World;

/// Mounts the boot loader's partition writable, does `work` in its folder, and unmounts it again. FAT's driver must be
/// there.
///
/// # Errors
/// If the partition is on no disk or does not mount, or what `work` fails with.
pub fn within<T>(world: &World, loader: Guid, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let disks = block::disks(world);
    let partition = disks
        .iter()
        .flat_map(|disk| &disk.partitions)
        .find(|partition| partition.guid == Some(loader))
        .with_context(|| format!("the boot loader's partition {loader} is on no disk"))?;
    let folder = world.in_run(RUN_ESP);
    mount::folder(&folder, 0o700)?;
    let flags = Flags::MS_NODEV | Flags::MS_NOSUID | Flags::MS_NOEXEC;
    mount::mount(&partition.path, &folder, "vfat", flags, "umask=0077")?;
    let done = work(&folder);
    mount::unmount(&folder)?;
    done
}
