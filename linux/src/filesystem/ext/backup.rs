//! Backup superblocks of ext4, found without the primary one: which there are, and how e2fsck is given them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::{LENGTH, Superblock, parse};

/// Bytes of a block that mke2fs chooses by itself; a bitmap of one block describes a group.
const BLOCKS: [u64; 3] = [4096, 1024, 2048];

/// A backup superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// The block that it is in.
    pub at: u64,
    /// When the file system was made, seconds since 1970.
    made: u32,
    /// What it says.
    pub superblock: Superblock,
}

/// The backup superblocks on a device of `size` bytes, those of the newest file system first, then by their place.
///
/// # Errors
/// If the device cannot be read.
pub fn find(device: &Path, size: u64) -> Result<Vec<Backup>> {
    let file = File::open(device).with_context(|| format!("opening {}", device.display()))?;
    let mut found = Vec::new();
    for block in BLOCKS {
        let per_group = 8 * block;
        // Blocks of 1 KiB are counted from the one behind the boot sectors.
        let first = u64::from(block == 1024);
        for group in groups(size / block / per_group) {
            let at = group * per_group + first;
            if (at + 1) * block > size {
                continue;
            }
            let mut bytes = [0; LENGTH];
            file.read_exact_at(&mut bytes, at * block)
                .with_context(|| format!("reading {} at block {at}", device.display()))?;
            let backup = read(&bytes, at, group).filter(|backup| {
                let superblock = &backup.superblock;
                superblock.block == block && superblock.blocks.saturating_mul(block) <= size
            });
            found.extend(backup);
        }
    }
    // Where a device was used before, copies of an older file system may lie between those of the newest.
    found.sort_by_key(|backup| (std::cmp::Reverse(backup.made), backup.at));
    Ok(found)
}

/// Groups with a backup (`sparse_super`): 1 and the powers of 3, 5 and 7.
fn groups(last: u64) -> Vec<u64> {
    let powers =
        |base: u64| std::iter::successors(Some(base), move |power| power.checked_mul(base));
    let mut all = vec![1];
    for base in [3, 5, 7] {
        all.extend(powers(base).take_while(|group| *group <= last));
    }
    all.sort_unstable();
    all
}

/// A superblock says which group it stands in: a copy of a disk inside a file is not taken for a backup.
fn read(bytes: &[u8; LENGTH], at: u64, group: u64) -> Option<Backup> {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let superblock = parse(bytes)?;
    let own_group = u64::from(u16::from_le_bytes([bytes[0x5a], bytes[0x5b]]));
    let per_group = u64::from(word(0x20));
    // The field of the group has 16 bits.
    (own_group == group & 0xffff && per_group == 8 * superblock.block).then(|| Backup {
        at,
        made: word(0x108),
        superblock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A superblock with blocks of `1024 << log` bytes.
    fn superblock(log: u8, blocks: u32, group: u16, made: u32) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[4..8].copy_from_slice(&blocks.to_le_bytes());
        bytes[24] = log;
        bytes[0x20..0x24].copy_from_slice(&(8192_u32 << log).to_le_bytes());
        bytes[56..58].copy_from_slice(&super::super::MAGIC.to_le_bytes());
        bytes[0x5a..0x5c].copy_from_slice(&group.to_le_bytes());
        bytes[0x108..0x10c].copy_from_slice(&made.to_le_bytes());
        bytes[120..123].copy_from_slice(b"var");
        bytes
    }

    #[test]
    fn backups_are_in_the_group_that_they_name_and_the_newest_come_first() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = 512 * MIB;
        file.as_file().set_len(size).unwrap();
        let put = |at: u64, bytes: [u8; LENGTH]| file.as_file().write_all_at(&bytes, at).unwrap();
        assert_eq!(find(file.path(), size).unwrap(), []);
        put(128 * MIB, superblock(2, 131_072, 1, 20));
        put(384 * MIB, superblock(2, 131_072, 3, 20));
        // An older file system of smaller blocks.
        put(8193 << 10, superblock(0, 524_288, 1, 10));
        // In a group that it does not name; larger than the device.
        put((8192 * 3 + 1) << 10, superblock(0, 524_288, 1, 10));
        put((8192 * 5 + 1) << 10, superblock(0, 524_289, 5, 10));
        let found = find(file.path(), size).unwrap();
        let places: Vec<_> = found
            .iter()
            .map(|backup| (backup.at, backup.superblock.block))
            .collect();
        assert_eq!(places, [(32768, 4096), (98304, 4096), (8193, 1024)]);
        assert_eq!(found[0].superblock.label, "var");
        // A device that ends before its backups has none.
        assert_eq!(find(file.path(), 8 * MIB).unwrap(), []);
    }

    #[test]
    fn groups_with_backups_are_those_of_sparse_super() {
        assert_eq!(groups(0), [1]);
        assert_eq!(groups(50), [1, 3, 5, 7, 9, 25, 27, 49]);
    }
}
