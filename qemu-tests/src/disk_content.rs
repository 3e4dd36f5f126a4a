//! Disks with content that a node must never format, and reading the content of disks.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use image::layout::{ATTRIBUTE_UNFORMATTED, LABEL_ESP};
use sha2::{Digest, Sha256};
use slipway::format::fat;
use slipway::install::tools::Tools;
use slipway::vm::disks::{ETCD_SIZE, blank, partition};

#[cfg(test)]
mod tests;

/// Content of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A partition table with one partition.
    Gpt,
    /// An encrypted volume (LUKS 2).
    Luks,
    /// A physical volume of LVM.
    Lvm,
    /// Swap space.
    Swap,
    /// An ext4 of another owner.
    Ext4,
    /// Random bytes in the middle of the disk.
    Random,
}

impl Content {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Gpt,
        Self::Luks,
        Self::Lvm,
        Self::Swap,
        Self::Ext4,
        Self::Random,
    ];

    /// Makes a disk with this content.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(self, disk: &Path, tools: &Tools) -> Result<()> {
        blank(disk, ETCD_SIZE)?;
        match self {
            Self::Gpt => {
                let mut table = gpt::GptConfig::new().writable(true).create(disk)?;
                table.add_partition("data", 64 << 20, gpt::partition_types::LINUX_FS, 0, None)?;
                table.write().context("writing a partition table")?;
            }
            Self::Luks => put(disk, 0, &luks())?,
            Self::Lvm => put(disk, 512, &lvm())?,
            Self::Swap => put(disk, 4086, b"SWAPSPACE2")?,
            Self::Ext4 => {
                let folder = disk.parent().context("finding the disk's folder")?;
                let name = disk.file_name().context("finding the disk's name")?;
                tools
                    .sandbox()
                    .bind(folder, "/run/disk")
                    .command("/usr/sbin/mke2fs")
                    .args(["-q", "-F", "-t", "ext4", "-L", "precious"])
                    .arg(Path::new("/run/disk").join(name))
                    .run()?;
            }
            Self::Random => {
                let mut random = vec![0; 1 << 16];
                File::open("/dev/urandom")?.read_exact(&mut random)?;
                put(disk, 300 << 10, &random)?;
            }
        }
        Ok(())
    }
}

/// The names of the boot entries on a disk's ESP, with their counters.
///
/// # Errors
/// If the disk has no ESP, or it cannot be read.
pub fn boot_entries(disk: &Path) -> Result<Vec<String>> {
    let (start, _) = partition(disk, LABEL_ESP)?;
    let files = fat::files(&mut File::open(disk)?, start).context("reading the ESP")?;
    let names = files
        .into_keys()
        .filter_map(|path| path.strip_prefix("/EFI/Linux/").map(str::to_owned));
    Ok(names.collect())
}

/// The binary header of LUKS 2, as far as `blkid` and cryptsetup check it: magic, version 2, header size
/// (<https://gitlab.com/cryptsetup/LUKS2-docs>).
fn luks() -> Vec<u8> {
    let mut header = vec![0; 4096];
    header[..6].copy_from_slice(b"LUKS\xba\xbe");
    header[6..8].copy_from_slice(&2_u16.to_be_bytes());
    header[8..16].copy_from_slice(&16384_u64.to_be_bytes());
    header[168..204].copy_from_slice(b"6b1c2a53-6c2e-4a0e-9d6f-0f7f6a3c9a11");
    header
}

/// The label sector of a physical volume: `LABELONE`, its own sector number, offset of the header, `LVM2 001`.
fn lvm() -> Vec<u8> {
    let mut label = vec![0; 512];
    label[..8].copy_from_slice(b"LABELONE");
    label[8..16].copy_from_slice(&1_u64.to_le_bytes());
    label[20..24].copy_from_slice(&32_u32.to_le_bytes());
    label[24..32].copy_from_slice(b"LVM2 001");
    label[32..64].copy_from_slice(b"Zk3nQ1rXc0aW5mJ7tY2hL8vE4dB6sG9u");
    label
}

fn put(disk: &Path, at: u64, bytes: &[u8]) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .open(disk)
        .and_then(|file| file.write_all_at(bytes, at))
        .with_context(|| format!("writing to {}", disk.display()))
}

/// Whether two files have the same bytes in a range.
///
/// # Errors
/// If one cannot be read there.
pub fn same(one: &File, other: &File, range: Range<u64>) -> Result<bool> {
    let mut pieces = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut at = range.start;
    while at < range.end {
        let count = usize::try_from((range.end - at).min(1 << 20))?;
        for (file, piece) in [one, other].into_iter().zip(&mut pieces) {
            piece.truncate(count);
            file.read_exact_at(piece, at)?;
        }
        if pieces[0] != pieces[1] {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

/// Inverts every bit of one byte.
///
/// # Errors
/// If the file cannot be changed there.
pub fn flip(file: &Path, at: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] = !byte[0];
    file.write_all_at(&byte, at).context("flipping a byte")
}

/// SHA-256 of a file.
///
/// # Errors
/// If it cannot be read.
pub fn digest(path: &Path) -> Result<[u8; 32]> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok(hasher.finalize().into());
        }
        hasher.update(&piece[..count]);
    }
}

/// Creation time, UUID and label of the ext4 at `start`: a second formatting changes them.
///
/// # Errors
/// If there is no ext4.
pub fn ext4_identity(disk: &Path, start: u64) -> Result<Vec<u8>> {
    let mut file = File::open(disk)?;
    let mut superblock = [0; 1024];
    file.seek(SeekFrom::Start(start + 1024))?;
    file.read_exact(&mut superblock)?;
    anyhow::ensure!(
        superblock[0x38..0x3a] == [0x53, 0xef],
        "no ext4 at byte {start} of {}",
        disk.display()
    );
    // s_mkfs_time, s_uuid, s_volume_name (Documentation/filesystems/ext4/super.rst).
    let mut out = superblock[0x108..0x10c].to_vec();
    out.extend_from_slice(&superblock[0x68..0x88]);
    Ok(out)
}

/// Runs a read-only command of debugfs on an ext4 within a disk.
///
/// # Errors
/// If debugfs fails.
pub fn debugfs(tools: &Tools, disk: &Path, start: u64, command: &str) -> Result<String> {
    let folder = disk.parent().context("finding the disk's folder")?;
    let name = disk.file_name().context("finding the disk's name")?;
    let name = name.to_str().context("the disk's name is not UTF-8")?;
    let output = tools
        .sandbox()
        .bind_read_only(folder, "/run/disk")
        .command("/usr/sbin/debugfs")
        // With -c the journal is not replayed: the disk is read as it is.
        .args(["-c", "-R", command])
        .arg(format!("/run/disk/{name}?offset={start}"))
        .run()?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Copies the content of an ext4 within a disk into a folder, with modes and owners. Its journal is replayed on the
/// disk first, as the node's next boot would do.
///
/// # Errors
/// If e2fsck cannot repair it or debugfs fails.
pub fn dump(tools: &Tools, disk: &Path, start: u64, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let folder = disk.parent().context("finding the disk's folder")?;
    let name = disk.file_name().context("finding the disk's name")?;
    let name = name.to_str().context("the disk's name is not UTF-8")?;
    let device = format!("/run/disk/{name}?offset={start}");
    let sandbox = tools
        .sandbox()
        .bind(folder, "/run/disk")
        .bind(to, "/run/out");
    let check = sandbox.command("/usr/sbin/e2fsck").args(["-p", &device]);
    // Exit code 1 means that errors were corrected, the replay of the journal included.
    if let Err(error) = check.run() {
        let again = sandbox.command("/usr/sbin/e2fsck").args(["-fn", &device]);
        again
            .run()
            .with_context(|| format!("checking the file system after {error:#}"))?;
    }
    sandbox
        .command("/usr/sbin/debugfs")
        .args(["-R", "rdump / /run/out"])
        .arg(&device)
        .run()
        .map(drop)
}

/// Overwrites every superblock of the ext4 at `start`, `size` bytes long, the backups included; gives where they were.
///
/// # Errors
/// If the disk cannot be read or written, or has none.
pub fn wipe_superblocks(disk: &Path, start: u64, size: u64) -> Result<Vec<u64>> {
    const LENGTH: usize = 1024;
    let file = OpenOptions::new().read(true).write(true).open(disk)?;
    let mut places = vec![1024];
    // The begin of each group: with blocks of 1 KiB behind the boot sectors.
    for (block, first) in [(1024, 1), (4096, 0)] {
        let group = 8 * block * block;
        places.extend((1..size / group).map(|number| number * group + first * block));
    }
    let mut found = Vec::new();
    for at in places.into_iter().map(|at| start + at) {
        let mut superblock = [0; LENGTH];
        file.read_exact_at(&mut superblock, at)?;
        if superblock[0x38..0x3a] == [0x53, 0xef] {
            file.write_all_at(&[0; LENGTH], at)?;
            found.push(at);
        }
    }
    anyhow::ensure!(!found.is_empty(), "no ext4 at byte {start}");
    Ok(found)
}

/// Labels of the partitions whose file systems are still to be made, by the table of the GPT disk at byte `start` of a file.
///
/// # Errors
/// As of [`partitions`].
pub fn unformatted(disks: &Path, start: u64) -> Result<Vec<String>> {
    let entries = entries(disks, start)?.into_iter();
    let noted = entries.filter(|entry| entry.attributes & ATTRIBUTE_UNFORMATTED != 0);
    Ok(noted.map(|entry| entry.label).collect())
}

/// The partitions of the GPT disk that begins at byte `start` of a file: label, first byte in that file, bytes.
///
/// # Errors
/// If there is no GPT (UEFI specification 2.10, section 5.3).
pub fn partitions(disks: &Path, start: u64) -> Result<Vec<(String, u64, u64)>> {
    let entries = entries(disks, start)?.into_iter();
    Ok(entries
        .map(|entry| (entry.label, entry.start, entry.size))
        .collect())
}

/// A partition; `start` is its first byte in the file.
struct Entry {
    label: String,
    start: u64,
    size: u64,
    attributes: u64,
}

fn entries(disks: &Path, start: u64) -> Result<Vec<Entry>> {
    const SECTOR: u64 = 512;
    let file = File::open(disks)?;
    let mut head = [0; 512];
    file.read_exact_at(&mut head, start + SECTOR)?;
    anyhow::ensure!(head.starts_with(b"EFI PART"), "no GPT at byte {start}");
    let long = |bytes: &[u8], at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(eight)
    };
    let mut entries = vec![0; 128 * 128];
    file.read_exact_at(&mut entries, start + long(&head, 72) * SECTOR)?;
    let used = entries.chunks(128).filter(|entry| entry[..16] != [0; 16]);
    Ok(used
        .map(|entry| {
            let units = entry[56..]
                .chunks(2)
                .map(|two| u16::from_le_bytes([two[0], two[1]]));
            let label: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
            let (first, last) = (long(entry, 32), long(entry, 40));
            Entry {
                label: String::from_utf16_lossy(&label),
                start: start + first * SECTOR,
                size: (last + 1 - first) * SECTOR,
                attributes: long(entry, 48),
            }
        })
        .collect())
}

/// Removes a file if it exists.
///
/// # Errors
/// If it exists and cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}
