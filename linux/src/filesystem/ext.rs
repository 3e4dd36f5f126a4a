//! ext4 as far as the init must know it: is there one, is it clean, how large is it.
//!
//! Format: the kernel's `Documentation/filesystems/ext4/super.rst`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use image::guid::Guid;

const AT: u64 = 1024;
const MAGIC: u16 = 0xef53;
const CLEAN: u16 = 1;
const ERRORS: u16 = 2;
const NEEDS_RECOVERY: u32 = 4;

/// Bit of the compatible features: writes go around the journal's full commits.
const FAST_COMMIT: u32 = 0x400;

/// Features of mkfs.ext4 where few processes remove or truncate open files. An orphan file, which mke2fs makes with up
/// to 512 blocks, is read whole at every mount, one block after another (the kernel's `fs/ext4/orphan.c`).
pub const NO_ORPHAN_FILE: &str = "^orphan_file";
/// The extended option where many do: some blocks for the processors to share, and no more (mke2fs(8)).
pub const SHORT_ORPHAN_FILE: &str = "orphan_file_size=128K";

/// What the superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ext4 {
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
    /// Whether it was ever mounted for writing: before that it holds nothing.
    pub mounted: bool,
}

/// Reads the superblock of `device`; none if there is no ext4.
///
/// # Errors
/// If the device cannot be read.
pub fn probe(device: &Path) -> Result<Option<Ext4>> {
    let mut bytes = [0; 1024];
    File::open(device)
        .and_then(|file| file.read_exact_at(&mut bytes, AT))
        .with_context(|| format!("reading {}", device.display()))?;
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8; 1024]) -> Option<Ext4> {
    let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
    if short(56) != MAGIC {
        return None;
    }
    let state = short(58);
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[104..120]);
    let label = bytes[120..136].split(|byte| *byte == 0).next();
    Some(Ext4 {
        uuid: Guid(uuid).to_string(),
        label: String::from_utf8_lossy(label.unwrap_or_default()).into_owned(),
        fast_commit: long(92) & FAST_COMMIT != 0,
        block: 1024_u64.checked_shl(long(24))?,
        blocks: u64::from(long(4)) | u64::from(long(0x150)) << 32,
        clean: state & CLEAN != 0 && state & ERRORS == 0 && long(96) & NEEDS_RECOVERY == 0,
        // s_mtime and s_mnt_count.
        mounted: long(44) != 0 || short(52) != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_unclean_and_foreign_are_told_apart() {
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
        let good = Ext4 {
            uuid: "010203fe-0000-0000-0000-000000000000".to_owned(),
            label: "etcd".to_owned(),
            fast_commit: true,
            block: 4096,
            blocks: 100 + (1 << 32),
            clean: true,
            mounted: false,
        };
        assert_eq!(parse(&bytes), Some(good.clone()));
        for at in [44, 47, 52] {
            let mut used = bytes;
            used[at] = 1;
            assert!(parse(&used).unwrap().mounted);
        }
        for (at, value) in [(58, 0), (58, 3), (96, 4)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(
                parse(&other),
                Some(Ext4 {
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
