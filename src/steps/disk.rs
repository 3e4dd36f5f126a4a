//! Disk: the complete disk as a raw file: ESP, root and hash tree in a GUID partition table.
//!
//! The init creates the other partitions of a node on first boot, so the image stays small. The file is
//! sparse: zeros are never written.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use image::addon;
use image::layout::{
    ALIGNMENT, ATTRIBUTE_NO_AUTO, ATTRIBUTE_READ_ONLY, Architecture, BOOT_TRIES, LABEL_ESP,
    LABEL_ROOT_A, LABEL_VERITY_A, SectorSize, Sizes, TYPE_ESP, root_guid, verity_guid,
};
use image::manifest::ImageId;
use image::verity::RootHash;

use crate::format::gpt::{Partition, Table, seeded};
use crate::format::{fat, sparse};
use crate::host::session::Session;
use crate::install::tools::Tools;
use crate::steps::bootable::{self, Bootable};
use crate::steps::root::Root;

/// systemd-boot in the tools tree, and its path in the ESP that every firmware tries by default.
const fn boot_loader(architecture: Architecture) -> (&'static str, &'static str) {
    match architecture {
        Architecture::X86_64 => (
            "usr/lib/systemd/boot/efi/systemd-bootx64.efi",
            "/EFI/BOOT/BOOTX64.EFI",
        ),
        Architecture::Arm64 => (
            "usr/lib/systemd/boot/efi/systemd-bootaa64.efi",
            "/EFI/BOOT/BOOTAA64.EFI",
        ),
    }
}

/// Path of systemd-boot's settings.
const LOADER_CONF: &str = "/loader/loader.conf";
/// The SBOM in the ESP, so that a disk alone lists its components. For people: no program trusts it.
pub const SBOM: &str = "/slipway/sbom.cdx.json";
/// systemd-boot starts the newest entry at once; holding a key still shows the menu.
const LOADER_CONF_TEXT: &[u8] = b"timeout 0\neditor no\n";
/// A written disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The raw file.
    pub path: PathBuf,
    /// Bytes of the file, holes included.
    pub size: u64,
}

/// The inputs of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The tools tree, which has the boot loader.
    pub tools: &'a Tools,
    /// Kernel, initramfs and command line.
    pub bootable: &'a Bootable,
    /// The root.
    pub root: &'a Root,
    /// Name and version of the image.
    pub image: &'a ImageId,
    /// The machines that the image is for.
    pub architecture: Architecture,
    /// Sizes of the partitions.
    pub sizes: &'a Sizes,
    /// The logical sectors of the disks that the image is for.
    pub sector: SectorSize,
    /// Time of all files in the ESP, seconds since 1970.
    pub epoch: u64,
    /// The text of the SBOM.
    pub sbom: &'a str,
    /// The file's size is a multiple of this, in bytes: a GiB if a cloud requires it.
    pub size_multiple: u64,
}

/// Path of a UKI in the ESP, with its boot counter. Both counts have one digit and are present from the start,
/// so that the loader's renames keep the length (UAPI.1, boot counting). A `+` in the version would start
/// the counter, so it becomes `-`.
#[must_use]
pub fn uki_path(image: &ImageId) -> String {
    let version = image.version.replace('+', "-");
    format!("/EFI/Linux/{}_{version}+{BOOT_TRIES}-0.efi", image.name)
}

/// The partitions of a disk with sectors of this size. The root is the last one and has the size of its content, `root`
/// bytes, so that the file ends there; the first boot enlarges it to its slot.
#[must_use]
pub fn table(
    hash: &RootHash,
    root: u64,
    sizes: &Sizes,
    sector: SectorSize,
    architecture: Architecture,
) -> Table {
    let seed = &hash.0;
    let verified = ATTRIBUTE_READ_ONLY | ATTRIBUTE_NO_AUTO;
    let mut offset = ALIGNMENT;
    // In the order of their numbers. The root is placed last.
    let mut partitions = [
        (LABEL_ESP, TYPE_ESP, seeded(seed, &TYPE_ESP.0), sizes.esp, 0),
        (
            LABEL_ROOT_A,
            architecture.root_type(),
            root_guid(hash),
            root,
            verified,
        ),
        (
            LABEL_VERITY_A,
            architecture.verity_type(),
            verity_guid(hash),
            sizes.verity,
            verified,
        ),
    ]
    .into_iter()
    .zip(1..)
    .map(
        |((label, kind, guid, size, attributes), number)| Partition {
            number,
            label: label.to_owned(),
            kind,
            guid,
            offset: 0,
            size: size.next_multiple_of(ALIGNMENT),
            attributes,
        },
    )
    .collect::<Vec<_>>();
    for at in [0, 2, 1] {
        partitions[at].offset = offset;
        offset += partitions[at].size;
    }
    Table {
        disk: seeded(seed, b"disk-uuid"),
        sector,
        partitions,
    }
}

/// Writes the disk to `path`, replacing an existing file, and says meanwhile up to which byte it is as it will be.
///
/// # Errors
/// When a partition is too small for its content, or the file cannot be written.
pub fn write(session: &Session, parts: &Parts, path: &Path, written: &dyn Fn(u64)) -> Result<Disk> {
    let Parts {
        tools,
        bootable,
        root,
        ..
    } = *parts;
    let step = session.progress.step("disk");
    let loader_file = tools.root.join(boot_loader(parts.architecture).0);
    let loader = fs::read(&loader_file)
        .with_context(|| format!("reading the boot loader {}", loader_file.display()))?;
    let addon = bootable::addon(tools, parts.architecture)?;
    let content = fs::metadata(&root.erofs)
        .with_context(|| format!("reading {}", root.erofs.display()))?
        .len();
    ensure!(
        content <= parts.sizes.root,
        "the root has {content} bytes, its slot {}: make `root` larger in the recipe's [disk]",
        parts.sizes.root
    );
    let table = table(
        &root.hash,
        content,
        parts.sizes,
        parts.sector,
        parts.architecture,
    );
    let size = table.disk_size(parts.size_multiple);
    let naming = || format!("writing the disk {}", path.display());
    if path.exists() {
        fs::remove_file(path).with_context(naming)?;
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .with_context(naming)?;
    file.set_len(size).with_context(naming)?;
    table.write(&mut file).with_context(naming)?;
    let [esp, data, hashes] = table.partitions.as_slice() else {
        anyhow::bail!("the disk has three partitions");
    };
    write_esp(&file, esp, [&loader, &addon], bootable, parts).context("writing partition ESP")?;
    for (partition, content) in [(hashes, &root.verity), (data, &root.erofs)] {
        written(partition.offset);
        copy(content, &file, partition)
            .with_context(|| format!("writing partition {}", partition.label))?;
    }
    step.made(Some(size));
    Ok(Disk {
        path: path.to_owned(),
        size,
    })
}

fn write_esp(
    file: &File,
    partition: &Partition,
    [loader, addon]: [&[u8]; 2],
    bootable: &Bootable,
    parts: &Parts,
) -> Result<()> {
    let uki = fs::read(&bootable.uki)
        .with_context(|| format!("reading the UKI {}", bootable.uki.display()))?;
    let uki_path = uki_path(parts.image);
    let mut volume = fat::Volume::new();
    volume.file(boot_loader(parts.architecture).1, loader)?;
    volume.file(LOADER_CONF, LOADER_CONF_TEXT)?;
    volume.file(addon::TEMPLATE, addon)?;
    volume.file(SBOM, parts.sbom.as_bytes())?;
    volume.file(&uki_path, &uki)?;
    let [a, b, c, d, ..] = partition.guid.0;
    let extents = volume.write(&fat::Options {
        size: partition.size,
        offset: partition.offset,
        sector: parts.sector,
        label: LABEL_ESP,
        id: u32::from_le_bytes([a, b, c, d]),
        time: parts.epoch,
    })?;
    for extent in extents {
        sparse::write(file, partition.offset + extent.offset, &extent.bytes)?;
    }
    Ok(())
}

fn copy(content: &Path, file: &File, partition: &Partition) -> Result<()> {
    let size = fs::metadata(content)
        .with_context(|| format!("reading {}", content.display()))?
        .len();
    ensure!(
        size <= partition.size,
        "{} has {size} bytes, the partition {}: make `{}` larger in the recipe's [disk]",
        content.display(),
        partition.size,
        partition.label.trim_end_matches("-a")
    );
    sparse::copy(content, file, partition.offset)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_is_too_large_is_refused_by_the_recipes_key() {
        let folder = tempfile::tempdir().unwrap();
        let content = folder.path().join("tree");
        fs::write(&content, [0; 4097]).unwrap();
        let partition = Partition {
            number: 3,
            label: LABEL_VERITY_A.to_owned(),
            kind: TYPE_ESP,
            guid: TYPE_ESP,
            offset: 0,
            size: 4096,
            attributes: 0,
        };
        let error = copy(&content, &tempfile::tempfile().unwrap(), &partition).unwrap_err();
        let error = error.to_string();
        for part in [
            "4097 bytes",
            "4096",
            "`verity` larger in the recipe's [disk]",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
