//! Inspect: the content of an image, read from its bytes: partitions, root hash, command line, kubelet, packages.
//!
//! Files beside the image are not used, except in an output folder, which is inspected as a unit. The report names
//! missing parts.

pub mod qcow2;
mod text;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use data_encoding::HEXLOWER;
use image::cmdline::Cmdline;
use image::layout::{LABEL_ESP, LABEL_ROOT_A, LABEL_VERITY_A};
use image::manifest::Manifest;
use image::modules::ModuleIndex;
use image::paths::{INITRD_CONFIG, INITRD_MODULES_INDEX};
use image::verity::{BLOCK, RootHash, SUPERBLOCK, Superblock};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::artifact;
use crate::format::gpt::{Table, sector_size};
use crate::format::kind::{HEAD, kind};
use crate::format::{cpio, fat, initrd, uki};
use crate::publish::sbom::{self, Component};
use crate::steps::disk;

/// The result of an inspection.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The kind of file.
    pub kind: &'static str,
    /// The partition table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskReport>,
    /// The verified root, as the partitions' GUIDs name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<RootReport>,
    /// Every unified kernel image in it.
    pub kernels: Vec<KernelReport>,
    /// All components of the image, if the file lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<Vec<Component>>,
    /// Missing parts, and contradictions.
    pub notes: Vec<String>,
}

/// A partition table.
#[derive(Clone, Debug, Serialize)]
pub struct DiskReport {
    /// The disk's GUID.
    pub guid: String,
    /// Bytes of the logical sectors that it is for.
    #[serde(rename = "sectorSize")]
    pub sector_size: u64,
    /// Its partitions.
    pub partitions: Vec<PartitionReport>,
}

/// A partition.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionReport {
    /// Its number.
    pub number: u32,
    /// Its label.
    pub label: String,
    /// Its type.
    pub kind: String,
    /// Its GUID.
    pub guid: String,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// A root and its hash tree.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RootReport {
    /// The root hash, from the GUIDs of both partitions.
    pub hash: RootHash,
    /// Bytes that the tree covers.
    pub size: u64,
    /// Whether the top of the tree has that hash.
    pub tree_fits: bool,
}

/// A unified kernel image.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelReport {
    /// The path at which it was found.
    pub path: String,
    /// Its size in bytes.
    pub size: usize,
    /// Its name, from its `os-release`.
    pub name: String,
    /// `uname -r`.
    pub release: String,
    /// The command line.
    pub cmdline: String,
    /// The root hash in the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roothash: Option<RootHash>,
    /// SHA-256 of the kernel itself (section `.linux`), hexadecimal.
    pub kernel_sha256: String,
    /// Bytes of the initramfs, compressed.
    pub initrd: usize,
    /// SHA-256 of the initramfs, compressed (section `.initrd`), hexadecimal.
    pub initrd_sha256: String,
    /// Names of the modules in the initramfs.
    pub modules: Vec<String>,
    /// The image's manifest, with image, Kubernetes release and kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
    /// Whether it contains a config.
    pub base_config: bool,
    /// SHA-256 of that config, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_sha256: Option<String>,
}

/// Reads an image: a raw or qcow2 disk, a UKI, or an output folder of this tool.
///
/// # Errors
/// When the file is of another kind, or is damaged.
pub fn inspect(path: &Path) -> Result<Report> {
    let naming = || format!("inspecting {}", path.display());
    if path.is_dir() {
        return folder(path).with_context(naming);
    }
    let mut file = File::open(path).with_context(naming)?;
    if sector_size(&mut file).with_context(naming)?.is_some() {
        return disk_report(&mut file, "raw disk").with_context(naming);
    }
    file.seek(SeekFrom::Start(0)).with_context(naming)?;
    let mut head = vec![0; HEAD];
    let read = file.read(&mut head).with_context(naming)?;
    head.truncate(read);
    file.seek(SeekFrom::Start(0)).with_context(naming)?;
    if head.starts_with(&qcow2::MAGIC) {
        let mut reader = qcow2::Disk::open(file).with_context(naming)?;
        return disk_report(&mut reader, "qcow2 disk").with_context(naming);
    }
    if head.starts_with(b"MZ") {
        let bytes = fs::read(path).with_context(naming)?;
        let name = path.display().to_string();
        let mut report = Report {
            kind: "unified kernel image",
            kernels: vec![kernel(&name, &bytes).with_context(naming)?],
            ..Report::default()
        };
        report.notes.push(format!(
            "packages: not in a UKI; inspect the disk or the output folder, whose {} lists them",
            sbom::FILE
        ));
        return Ok(report);
    }
    bail!(
        "{}: expected a raw or qcow2 disk with a GUID partition table, a UKI, or an output folder; found {}",
        path.display(),
        kind(&head)
    )
}

/// The bytes of a disk: of an image file, raw or qcow2, or of the disk in an output folder.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Disk>> {
    let path = match path.is_dir() {
        true => path.join(artifact::DISK),
        false => path.to_owned(),
    };
    let about = || format!("reading {}", path.display());
    let mut file = File::open(&path).with_context(about)?;
    let mut head = [0; qcow2::MAGIC.len()];
    let is_qcow2 = file.read_exact(&mut head).is_ok() && head == qcow2::MAGIC;
    file.seek(SeekFrom::Start(0)).with_context(about)?;
    Ok(match is_qcow2 {
        true => Box::new(qcow2::Disk::open(file).with_context(about)?),
        false => Box::new(file),
    })
}

/// What a disk's bytes are read from.
pub(crate) trait Disk: Read + Seek {}

impl<T: Read + Seek> Disk for T {}

/// An output folder: its disk, else its UKI, and its SBOM.
fn folder(path: &Path) -> Result<Report> {
    let disk = path.join(artifact::DISK);
    let mut report = if disk.exists() {
        inspect(&disk)?
    } else {
        let mut files: Vec<_> = fs::read_dir(path)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|file| file.extension().is_some_and(|suffix| suffix == "efi"))
            .collect();
        files.sort();
        let uki = files
            .first()
            .with_context(|| format!("expected {} or a UKI in the folder", artifact::DISK))?;
        inspect(uki)?
    };
    report.kind = "output folder";
    let list = path.join(sbom::FILE);
    if list.exists() {
        let text = fs::read_to_string(&list)?;
        report.packages = Some(sbom::components(&text)?);
        report.notes.retain(|note| !note.starts_with("packages:"));
    }
    Ok(report)
}

fn disk_report<D: Read + Write + Seek + std::fmt::Debug>(
    reader: &mut D,
    kind: &'static str,
) -> Result<Report> {
    let table = Table::read(reader)?;
    let mut report = Report {
        kind,
        ..Report::default()
    };
    let at = |label: &str| table.partitions.iter().find(|p| p.label == label);
    match (at(LABEL_ROOT_A), at(LABEL_VERITY_A)) {
        (Some(root), Some(verity)) => {
            let mut hash = [0; 32];
            hash[..16].copy_from_slice(&root.guid.0);
            hash[16..].copy_from_slice(&verity.guid.0);
            report.root = Some(tree(reader, RootHash(hash), verity.offset)?);
        }
        _ => report.notes.push(format!(
            "root: no partitions {LABEL_ROOT_A} and {LABEL_VERITY_A}"
        )),
    }
    match at(LABEL_ESP) {
        Some(esp) => {
            let files = fat::files(reader, esp.offset).context("reading partition ESP")?;
            from_esp(&mut report, &files)?;
        }
        None => report
            .notes
            .push(format!("kernel: no partition {LABEL_ESP}")),
    }
    cross_check(&mut report);
    report.disk = Some(DiskReport {
        guid: table.disk.to_string(),
        sector_size: table.sector.bytes(),
        partitions: table
            .partitions
            .iter()
            .map(|partition| PartitionReport {
                number: partition.number,
                label: partition.label.clone(),
                kind: partition.kind.to_string(),
                guid: partition.guid.to_string(),
                offset: partition.offset,
                size: partition.size,
            })
            .collect(),
    });
    Ok(report)
}

fn from_esp(report: &mut Report, files: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    for (path, bytes) in files {
        if path.starts_with("/EFI/Linux/") {
            report
                .kernels
                .push(kernel(path, bytes).with_context(|| format!("reading {path}"))?);
        }
    }
    if report.kernels.is_empty() {
        report.notes.push("kernel: no UKI in /EFI/Linux".to_owned());
    }
    match files.get(disk::SBOM) {
        Some(text) => {
            let text = std::str::from_utf8(text).context("reading the SBOM")?;
            report.packages = Some(sbom::components(text)?);
        }
        None => report
            .notes
            .push(format!("packages: no {} in the ESP", disk::SBOM)),
    }
    Ok(())
}

/// Adds notes about contradictions.
fn cross_check(report: &mut Report) {
    let Some(root) = &report.root else { return };
    if !root.tree_fits {
        report
            .notes
            .push("root: the hash tree's top does not have the hash that the GUIDs name".into());
    }
    for kernel in &report.kernels {
        if kernel.roothash.is_some_and(|hash| hash != root.hash) {
            report.notes.push(format!(
                "{}: asks for another root than {LABEL_ROOT_A} holds",
                kernel.path
            ));
        }
    }
}

/// Reads the superblock of a hash tree and compares the tree's top with the hash.
fn tree<D: Read + Seek>(reader: &mut D, hash: RootHash, offset: u64) -> Result<RootReport> {
    let mut bytes = [0; SUPERBLOCK];
    reader.seek(SeekFrom::Start(offset))?;
    reader.read_exact(&mut bytes)?;
    let superblock = Superblock::from_bytes(&bytes)
        .map_err(anyhow::Error::msg)
        .context("reading the hash tree")?;
    let mut top = vec![0; usize::try_from(BLOCK)?];
    // The levels are in order from the top down, after the superblock's block.
    reader.seek(SeekFrom::Start(offset + BLOCK))?;
    reader.read_exact(&mut top)?;
    let found = Sha256::new()
        .chain_update(&superblock.salt)
        .chain_update(&top)
        .finalize();
    Ok(RootReport {
        hash,
        size: superblock.data_blocks * BLOCK,
        tree_fits: found[..] == hash.0,
    })
}

/// Reads a UKI, and the initramfs in it.
fn kernel(path: &str, bytes: &[u8]) -> Result<KernelReport> {
    let section = |name: &str| -> Result<String> {
        let found = uki::section(bytes, name)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(found)
            .trim_end_matches('\0')
            .to_owned())
    };
    let os_release = section(".osrel")?;
    let value = |key: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches(['"', '\'']).to_owned())
    };
    let cmdline = section(".cmdline")?;
    let sha256 = |bytes: &[u8]| HEXLOWER.encode(&Sha256::digest(bytes));
    let linux = uki::section(bytes, ".linux")?.unwrap_or_default();
    let initrd = uki::section(bytes, ".initrd")?.unwrap_or_default();
    let mut out = KernelReport {
        path: path.to_owned(),
        size: bytes.len(),
        name: value("PRETTY_NAME")
            .or_else(|| value("NAME"))
            .unwrap_or_default(),
        release: section(".uname")?,
        roothash: Cmdline::parse(&cmdline).ok().and_then(|line| line.roothash),
        cmdline,
        kernel_sha256: sha256(linux),
        initrd: initrd.len(),
        initrd_sha256: sha256(initrd),
        ..KernelReport::default()
    };
    let archive = initrd::unpack(initrd)?;
    let entries = cpio::read(&archive).context("reading the initramfs")?;
    out.manifest = initrd::manifest(&entries)?;
    for entry in entries {
        if INITRD_CONFIG.strip_prefix('/') == Some(entry.name) {
            out.base_config = true;
            out.config_sha256 = Some(sha256(entry.content));
        } else if entry.name.ends_with(INITRD_MODULES_INDEX) {
            let index: ModuleIndex =
                serde_json::from_slice(entry.content).context("reading the index of modules")?;
            out.modules = index
                .modules
                .into_iter()
                .map(|module| module.name)
                .collect();
        }
    }
    Ok(out)
}
