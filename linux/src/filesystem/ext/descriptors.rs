//! The group descriptors of ext4, behind its superblock: whether they can be relied on.
//!
//! Format: <https://docs.kernel.org/filesystems/ext4/group_descr.html>.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::{LENGTH, parse};

/// Incompatible features: descriptors in each block group, descriptors with 64-bit block numbers.
const META_BG: u32 = 0x10;
const WIDE: u32 = 0x80;
/// Descriptors that are read at once.
const PIECE: u64 = 1024;

/// Whether the descriptors behind the superblock at byte `at` place all bitmaps and inode tables inside the file system.
///
/// e2fsck -p must not be given others: before it stops at them it deletes the journal, whose inode it does not find, and
/// writes them over the sound ones of the backups. Without -p it would look at them first, and ask.
///
/// # Errors
/// If the device cannot be read.
pub fn are_sound(device: &Path, at: u64) -> Result<bool> {
    let file = File::open(device).with_context(|| format!("opening {}", device.display()))?;
    let mut bytes = [0; LENGTH];
    if !filled(&file, &mut bytes, at, device)? {
        return Ok(false);
    }
    let Some(superblock) = parse(&bytes) else {
        return Ok(false);
    };
    let features = long(&bytes, 0x60);
    if features & META_BG != 0 {
        // They are elsewhere; the node makes none such.
        return Ok(true);
    }
    let (first, per_group) = (u64::from(long(&bytes, 0x14)), u64::from(long(&bytes, 0x20)));
    let size = match features & WIDE {
        0 => 32,
        _ => usize::from(u16::from_le_bytes([bytes[0xfe], bytes[0xff]])),
    };
    if per_group == 0 || superblock.blocks <= first || !(32..=LENGTH).contains(&size) {
        return Ok(false);
    }
    let groups = (superblock.blocks - first).div_ceil(per_group);
    let table = (at / superblock.block + 1) * superblock.block;
    let inside = |block: u64| block > first && block < superblock.blocks;
    let mut group = 0;
    while group < groups {
        let count = PIECE.min(groups - group);
        let mut piece = vec![0; usize::try_from(count)? * size];
        if !filled(&file, &mut piece, table + group * size as u64, device)? {
            return Ok(false);
        }
        if !piece
            .chunks(size)
            .all(|descriptor| places(descriptor).into_iter().all(inside))
        {
            return Ok(false);
        }
        group += count;
    }
    Ok(true)
}

/// The first blocks of a group's bitmaps and of its inode table.
fn places(descriptor: &[u8]) -> [u64; 3] {
    [0, 4, 8].map(|at| {
        let high = match descriptor.len() >= 64 {
            true => long(descriptor, at + 0x20),
            false => 0,
        };
        u64::from(long(descriptor, at)) | u64::from(high) << 32
    })
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Whether the device has these bytes; it may be smaller than its superblock says.
fn filled(file: &File, bytes: &mut [u8], at: u64, device: &Path) -> Result<bool> {
    match file.read_exact_at(bytes, at) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => {
            Err(error).with_context(|| format!("reading {} at byte {at}", device.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_lead_out_of_the_file_system_are_not_sound() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let put = |at: u64, bytes: &[u8]| file.as_file().write_all_at(bytes, at).unwrap();
        let sound = |at: u64| are_sound(file.path(), at).unwrap();
        assert!(!sound(1024), "there is no superblock");
        // Blocks of 4 KiB, 100,000 of them in 4 groups.
        let mut superblock = [0; LENGTH];
        for (at, value) in [(4, 100_000_u32), (24, 2), (0x20, 32768), (0x60, WIDE)] {
            superblock[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        superblock[56..58].copy_from_slice(&super::super::MAGIC.to_le_bytes());
        superblock[0xfe] = 64;
        put(1024, &superblock);
        assert!(!sound(1024), "zeros");
        for group in 0..4 {
            for (at, block) in [(0, 10_u32), (4, 20), (8, 30)] {
                put(4096 + group * 64 + at, &block.to_le_bytes());
            }
        }
        assert!(sound(1024));
        for (at, bytes) in [(0, [0; 4]), (4, [0xff; 4]), (0x28, [1, 0, 0, 0])] {
            let at = 4096 + 3 * 64 + at;
            let mut before = [0; 4];
            file.as_file().read_exact_at(&mut before, at).unwrap();
            put(at, &bytes);
            assert!(!sound(1024), "{at}");
            put(at, &before);
        }
        // A backup, and one whose descriptors are cut off by the end of the device.
        put(8 * 4096, &superblock);
        assert!(!sound(8 * 4096));
        let mut descriptors = [0; 256];
        file.as_file()
            .read_exact_at(&mut descriptors, 4096)
            .unwrap();
        put(9 * 4096, &descriptors);
        assert!(sound(8 * 4096));
        put((1 << 20) - 1024, &superblock);
        assert!(!sound((1 << 20) - 1024));
    }
}
