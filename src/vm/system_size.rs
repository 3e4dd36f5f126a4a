//! The size of a machine's system disk: by the manifest of its image, in the UKI beside the image's disk.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::layout::{GIB, Sizes};
use image::manifest::Manifest;
use image::paths::INITRD_MANIFEST;

use crate::format::{cpio, uki};

/// Size of a node's system disk: space for both root slots and a `var`.
const SYSTEM_SIZE: u64 = 16 * GIB;
/// What is left on a larger disk above the least that the image wants: for what a config has on the system disk.
const ROOM: u64 = 4 * GIB;
/// Size limit of an unpacked initramfs; a larger one is damaged.
const INITRD_LIMIT: u64 = 512 << 20;

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
    let mut archive = Vec::new();
    zstd::stream::read::Decoder::new(cpio::behind(initrd)?)?
        .take(INITRD_LIMIT)
        .read_to_end(&mut archive)
        .context("unpacking the initramfs")?;
    let entries = cpio::read(&archive)?;
    let name = INITRD_MANIFEST.trim_start_matches('/');
    let manifest = entries.iter().find(|entry| entry.name == name);
    let manifest = manifest.context("no manifest in the initramfs")?;
    let text = std::str::from_utf8(manifest.content)?;
    Ok(Manifest::parse(text).map_err(anyhow::Error::msg)?.sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initrd(sizes: &Sizes) -> Vec<u8> {
        let manifest = serde_json::json!({
            "contract": image::manifest::CONTRACT,
            "image": {"name": "a", "version": "1"},
            "architecture": "x86-64",
            "kernel": "6.12",
            "epoch": 1,
            "sizes": sizes,
            "kubernetes": {"version": "v1.36.3", "kubeletSha256": "", "images": {}},
            "platforms": [],
            "node": image::node::NodeSettings::default(),
        });
        let mut archive = cpio::Archive::new();
        let text = manifest.to_string();
        archive
            .file(INITRD_MANIFEST, 0o644, text.as_bytes())
            .unwrap();
        let archive = archive.finish().unwrap();
        zstd::stream::encode_all(&archive[..], 1).unwrap()
    }

    #[test]
    fn a_system_disk_has_room_for_all_partitions_of_its_image() {
        let usual = of_initrd(&initrd(&Sizes::default())).unwrap();
        assert_eq!(of(&usual), SYSTEM_SIZE);
        let wanted = Sizes {
            root: 8 * GIB,
            var_minimum: 20 * GIB,
            ..Sizes::default()
        };
        let read = of_initrd(&initrd(&wanted)).unwrap();
        assert_eq!(read, wanted);
        assert!(of(&read) >= wanted.least_disk() + GIB);
    }

    #[test]
    fn a_disk_without_a_uki_has_the_usual_size() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_image(&folder.path().join("disk.raw")), SYSTEM_SIZE);
    }
}
