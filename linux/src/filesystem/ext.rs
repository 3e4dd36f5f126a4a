//! The superblock of ext2, ext3 and ext4: the kind, its name, its size, and whether it is clean.
//!
//! Format: <https://docs.kernel.org/filesystems/ext4/super.html>.

pub mod backup;
pub mod descriptors;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use image::guid::Guid;

/// Where the superblock stands, in bytes.
pub const AT: usize = 1024;
/// How long it is, in bytes.
const LENGTH: usize = 1024;
/// The bytes of a device that [`read`] reads: the first one, and how many.
pub const STRETCH: (u64, u64) = (AT as u64, LENGTH as u64);
const MAGIC: u16 = 0xef53;
const CLEAN: u16 = 1;
const ERRORS: u16 = 2;
const NEEDS_RECOVERY: u32 = 4;

/// Bit of the compatible features: fast commits, which bypass the journal's full commits.
const FAST_COMMIT: u32 = 0x400;

/// Features that ext3 supports: incompatible ones (types of entries, recovery, meta block groups), and read-only
/// compatible ones (sparse superblocks, large files, indexed folders).
const EXT3_INCOMPATIBLE: u32 = 2 | 4 | 16;
const EXT3_READ_ONLY: u32 = 1 | 2 | 4;

/// The fields of the superblock that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Whether it has features that ext3 does not support.
    pub is_ext4: bool,
    /// Its UUID, in the usual text form.
    pub uuid: String,
    /// Its label; empty if it has none.
    pub label: String,
    /// Whether it has fast commits, with which bbolt loses data.
    pub fast_commit: bool,
    /// Bytes of a block.
    pub block: u64,
    /// Blocks.
    pub blocks: u64,
    /// Whether it was unmounted in order and has no noted errors.
    pub clean: bool,
    /// Whether it was ever mounted for writing. A file system that never was is empty, and possibly half made: mke2fs
    /// writes the superblock before it has written everything else.
    pub ever_mounted: bool,
}

/// Reads the superblock of `device`; none if it holds no ext2, ext3 or ext4.
///
/// # Errors
/// If the device cannot be read.
pub fn read(device: &Path) -> Result<Option<Superblock>> {
    let mut bytes = [0; LENGTH];
    File::open(device)
        .and_then(|file| file.read_exact_at(&mut bytes, AT as u64))
        .with_context(|| format!("reading {}", device.display()))?;
    Ok(parse(&bytes))
}

/// Reads the superblock in the first bytes of a device.
pub(super) fn in_head(head: &[u8]) -> Option<Superblock> {
    parse(head.get(AT..AT + LENGTH)?.try_into().ok()?)
}

fn parse(bytes: &[u8; LENGTH]) -> Option<Superblock> {
    let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
    if short(56) != MAGIC {
        return None;
    }
    let state = short(58);
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[104..120]);
    let label = bytes[120..136].split(|byte| *byte == 0).next();
    // The kernel supports no blocks of more than 64 KiB.
    let block = (long(24) <= 6).then(|| 1024 << long(24))?;
    Some(Superblock {
        is_ext4: long(96) & !EXT3_INCOMPATIBLE != 0 || long(100) & !EXT3_READ_ONLY != 0,
        uuid: Guid(uuid).to_string(),
        label: String::from_utf8_lossy(label.unwrap_or_default()).into_owned(),
        fast_commit: long(92) & FAST_COMMIT != 0,
        block,
        blocks: u64::from(long(4)) | u64::from(long(0x150)) << 32,
        clean: state & CLEAN != 0 && state & ERRORS == 0 && long(96) & NEEDS_RECOVERY == 0,
        // s_mtime and s_mnt_count.
        ever_mounted: long(44) != 0 || short(52) != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_unclean_and_absent_are_distinguished() {
        let mut bytes = [0; 1024];
        assert_eq!(parse(&bytes), None);
        bytes[56..58].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[58] = 1;
        bytes[24] = 2;
        bytes[4..8].copy_from_slice(&100_u32.to_le_bytes());
        bytes[0x150] = 1;
        bytes[104..108].copy_from_slice(&[1, 2, 3, 0xfe]);
        bytes[120..124].copy_from_slice(b"etcd");
        bytes[93] = 4;
        let good = Superblock {
            is_ext4: false,
            uuid: "010203fe-0000-0000-0000-000000000000".to_owned(),
            label: "etcd".to_owned(),
            fast_commit: true,
            block: 4096,
            blocks: 100 + (1 << 32),
            clean: true,
            ever_mounted: false,
        };
        assert_eq!(parse(&bytes), Some(good.clone()));
        for at in [44, 47, 52] {
            let mut used = bytes;
            used[at] = 1;
            assert!(parse(&used).unwrap().ever_mounted);
        }
        for (at, value) in [(58, 0), (58, 3), (96, 4)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(
                parse(&other),
                Some(Superblock {
                    clean: false,
                    ..good.clone()
                })
            );
        }
    }

    #[test]
    fn damaged_superblocks_are_survived() {
        let mut good = vec![0; 1024];
        good[56..58].copy_from_slice(&MAGIC.to_le_bytes());
        good[58] = 1;
        crate::fuzz::run(&[good], |bytes, _| {
            bytes.resize(1024, 0xff);
            let read = parse(bytes.as_slice().try_into().unwrap());
            assert!(read.is_none() || bytes[56..58] == MAGIC.to_le_bytes());
        });
    }
}
