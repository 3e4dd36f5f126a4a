//! The superblock of a member of a Linux RAID, version 1: which array it belongs to.
//!
//! Format: `struct mdp_superblock_1` of `include/uapi/linux/raid/md_p.h`; its offsets and its checksum as in
//! `drivers/md/md.c`.

use anyhow::Result;

use crate::probe::Stretch;

pub(crate) const MAGIC: u32 = 0xa92b_4efc;
/// Bytes of the part that every superblock has; two for each member follow.
pub(crate) const FIXED: usize = 256;
/// The size limit of a superblock, in bytes.
const LARGEST: u64 = 4096;
pub(crate) const SECTOR: u64 = 512;
/// mdadm's prefix of the name of an array that belongs to no host.
const NO_HOST: &str = "any:";

/// A member's description of its array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The array's UUID.
    pub array: [u8; 16],
    /// Its name, without `any:`.
    pub name: String,
    /// Its level; -1 is linear.
    pub level: i32,
    /// How many members it has in use.
    pub disks: u32,
}

/// The superblock on a stretch, if there is one.
///
/// # Errors
/// If it cannot be read.
pub fn read(stretch: Stretch<'_>) -> Result<Option<Member>> {
    for at in places(stretch.size()) {
        let bytes = stretch.read(at, LARGEST)?;
        if let Some(member) = member(&bytes, at) {
            return Ok(Some(member));
        }
    }
    Ok(None)
}

/// The offsets at which a superblock may be: minor versions 2, 1 and 0.
fn places(size: u64) -> impl Iterator<Item = u64> {
    let end = size.checked_sub(8 << 10).map(|at| at / 4096 * 4096);
    [Some(4096), Some(0), end].into_iter().flatten()
}

fn member(bytes: &[u8], at: u64) -> Option<Member> {
    let four = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let eight = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let members = usize::try_from(four(220)?).ok()?;
    let length = members.checked_mul(2)?.checked_add(FIXED)?;
    // A superblock holds its own offset. A copy elsewhere, for example inside a file, is not a superblock.
    let is_one = four(0)? == MAGIC && four(4)? == 1 && eight(144)? == at / SECTOR;
    if !is_one || checksum(bytes.get(..length)?) != four(216)? {
        return None;
    }
    let name = bytes.get(32..64)?;
    let end = name.iter().position(|byte| *byte == 0);
    let name = String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]);
    Some(Member {
        array: bytes.get(16..32)?.try_into().ok()?,
        name: name.strip_prefix(NO_HOST).unwrap_or(&name).to_owned(),
        level: i32::from_le_bytes(bytes.get(72..76)?.try_into().ok()?),
        disks: four(92)?,
    })
}

/// The sum of all words except its own field, folded once.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let word = |(i, part): (usize, &[u8])| {
        let mut four = [0; 4];
        four[..part.len()].copy_from_slice(part);
        match i * 4 {
            216 => 0,
            _ => u64::from(u32::from_le_bytes(four)),
        }
    };
    let sum: u64 = bytes.chunks(4).enumerate().map(word).sum();
    let [a, b, c, d, e, f, g, h] = sum.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]).wrapping_add(u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::samples::member as superblock;

    #[test]
    fn a_superblock_is_found_at_each_of_its_places() {
        const SIZE: u64 = (1 << 20) + 512;
        for at in [0, 4096, (1 << 20) - 8192] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(SIZE).unwrap();
            let look = |file: &File| read(Stretch::whole(file, SIZE)).unwrap();
            assert_eq!(look(&file), None);
            file.write_all_at(&superblock(at, 7, "any:pair", 1, 2), at)
                .unwrap();
            let expected = Member {
                array: [7; 16],
                name: "pair".to_owned(),
                level: 1,
                disks: 2,
            };
            assert_eq!(look(&file), Some(expected), "{at}");
            // A changed byte invalidates the checksum.
            file.write_all_at(b"P", at + 36).unwrap();
            assert_eq!(look(&file), None, "{at}");
        }
    }

    #[test]
    fn what_is_no_superblock_of_this_place_is_none() {
        let sound = superblock(4096, 7, "host:pair", -1, 2);
        let found = member(&sound, 4096).unwrap();
        assert_eq!((found.name.as_str(), found.level), ("host:pair", -1));
        assert_eq!(member(&sound, 0), None);
        for length in [0, 4, 219, 255, 261] {
            assert_eq!(member(&sound[..length], 4096), None, "{length}");
        }
        let mut many = sound.clone();
        many[220..224].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(member(&many, 4096), None);
        crate::fuzz::run(&[sound], |bytes, _| drop(member(bytes, 4096)));
    }
}
