//! Links to the disk that the root is on, as Fedora CoreOS has them: the mount units of a config may name its partitions so.

use std::fs;

use anyhow::{Context, Result};
use image::layout::BOOT_DISK;
use image::paths::RUN_BOOT_DISK;
use linux::mount;
use linux::world::World;

use crate::root::Root;

/// Writes udev's rules for the links; a root in memory is on no disk.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn link(world: &World, root: &Root) -> Result<()> {
    let Some(disk) = &root.disk else {
        return Ok(());
    };
    let path = world.in_run(RUN_BOOT_DISK);
    if let Some(folder) = path.parent() {
        mount::folder(folder, 0o755)?;
    }
    fs::write(&path, rules(&disk.name)).with_context(|| format!("writing {}", path.display()))
}

/// The kernel's name lasts for this boot: the disk is in use.
fn rules(disk: &str) -> String {
    let (link, block) = (
        format!("SYMLINK+=\"disk/by-id/{BOOT_DISK}"),
        "SUBSYSTEM==\"block\", ENV{DEVTYPE}",
    );
    format!(
        "{block}==\"disk\", KERNEL==\"{disk}\", {link}\"\n\
         {block}==\"partition\", KERNELS==\"{disk}\", {link}-part%n\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_and_its_partitions_have_links() {
        assert_eq!(
            rules("nvme0n1"),
            "SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"disk\", KERNEL==\"nvme0n1\", \
             SYMLINK+=\"disk/by-id/coreos-boot-disk\"\n\
             SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"partition\", KERNELS==\"nvme0n1\", \
             SYMLINK+=\"disk/by-id/coreos-boot-disk-part%n\"\n"
        );
    }
}
