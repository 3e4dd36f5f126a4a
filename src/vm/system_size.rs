//! The size of a machine's system disk: by the manifest of its image, in the UKI beside the image's disk.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::layout::{GIB, Sizes};

use crate::format::{cpio, initrd, uki};

/// Size of a node's system disk: space for both root slots and a `var`.
const SYSTEM_SIZE: u64 = 16 * GIB;
/// What is left on a larger disk above the least that the image wants: for what a config has on the system disk.
const ROOM: u64 = 4 * GIB;

/// Bytes of a system disk for the image with this disk: [`SYSTEM_SIZE`], or more if the image's `[disk]` wants more.
pub(super) fn of_image(disk: &Path) -> u64 {
    match read(disk) {
        Ok(sizes) => of(&sizes),
        // A disk alone, or the image of another version: its boot says whether the disk is large enough.
        Err(error) => {
            tracing::debug!("{} gets the usual size: {error:#}", disk.display());
            SYSTEM_SIZE
        }
    }
}

fn of(sizes: &Sizes) -> u64 {
    SYSTEM_SIZE.max(sizes.least_disk().saturating_add(ROOM))
}

/// The sizes of the image with this disk.
fn read(disk: &Path) -> Result<Sizes> {
    let folder = disk.parent().context("a disk in no folder")?;
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|suffix| suffix == "efi") {
            found.push(path);
        }
    }
    ensure!(found.len() == 1, "{} UKIs beside it", found.len());
    let bytes = fs::read(&found[0]).context("reading the UKI")?;
    let initrd = uki::section(&bytes, ".initrd")?.context("no initramfs in the UKI")?;
    of_initrd(initrd)
}

/// The sizes in the manifest of an initramfs.
fn of_initrd(initrd: &[u8]) -> Result<Sizes> {
    let archive = initrd::unpack(initrd)?;
    let manifest = initrd::manifest(&cpio::read(&archive)?)?;
    Ok(manifest.context("no manifest in the initramfs")?.sizes)
}

#[cfg(test)]
mod tests {
    use image::manifest::Manifest;

    use super::*;
    use crate::format::initrd::tests::{sample, with_manifest};

    fn with_sizes(sizes: Sizes) -> Vec<u8> {
        let manifest = Manifest {
            sizes,
            ..sample("etcd:3.6.8-0")
        };
        with_manifest(&manifest.to_text())
    }

    #[test]
    fn a_system_disk_has_room_for_all_partitions_of_its_image() {
        let usual = of_initrd(&with_sizes(Sizes::default())).unwrap();
        assert_eq!(of(&usual), SYSTEM_SIZE);
        let wanted = Sizes {
            root: 8 * GIB,
            var_minimum: 20 * GIB,
            ..Sizes::default()
        };
        let read = of_initrd(&with_sizes(wanted)).unwrap();
        assert_eq!(read, wanted);
        assert!(of(&read) >= wanted.least_disk() + GIB);
    }

    #[test]
    fn a_disk_without_a_uki_has_the_usual_size() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_image(&folder.path().join("disk.raw")), SYSTEM_SIZE);
    }
}
