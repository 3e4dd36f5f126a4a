//! The file system on a stretch of a device, with its label and UUID, as a config names them.
//!
//! Offsets are those of libblkid (util-linux, `libblkid/src/superblocks`).

pub mod ext;
pub(crate) mod fat;

use std::fmt;

use anyhow::Result;
use image::guid::Guid;

use crate::probe::Stretch;

/// The kinds that a config can name or a device can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ext2 or ext3: none of ext4's own features.
    Ext3,
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
    /// FAT, of any width.
    Vfat,
    /// Swap space.
    Swap,
    /// LUKS 1.
    Luks1,
    /// LUKS 2.
    Luks2,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext3 => "ext2 or ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Vfat => "vfat",
            Self::Swap => "swap",
            Self::Luks1 => "LUKS 1",
            Self::Luks2 => "LUKS 2",
        })
    }
}

/// A file system, swap space or encrypted volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub kind: Kind,
    /// Its label; empty if it has none.
    pub label: String,
    /// Its UUID in the usual text form, lower case; of FAT the volume id as `A1B2-C3D4`.
    pub uuid: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, label {:?}, UUID {}",
            self.kind, self.label, self.uuid
        )
    }
}

/// Bytes of the begin of a device that [`read`] looks at.
pub const HEAD: u64 = 0x1_1000;

/// Everything of these kinds that has its superblock on the stretch: usually one or none.
///
/// # Errors
/// If it cannot be read.
pub fn read(stretch: Stretch<'_>) -> Result<Vec<Found>> {
    let head = stretch.read(0, HEAD)?;
    let head = Bytes(&head);
    let all = [luks, ext, xfs, btrfs, vfat, swap];
    Ok(all.iter().filter_map(|read| read(head)).collect())
}

#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn at(self, at: usize, length: usize) -> Option<&'a [u8]> {
        self.0.get(at..at + length)
    }

    fn is(self, at: usize, magic: &[u8]) -> bool {
        self.at(at, magic.len()) == Some(magic)
    }

    /// The text up to the first NUL.
    fn text(self, at: usize, length: usize) -> Option<String> {
        let text = self.at(at, length)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn uuid(self, at: usize) -> Option<String> {
        let bytes: [u8; 16] = self.at(at, 16)?.try_into().ok()?;
        Some(Guid(bytes).to_string())
    }
}

fn ext(head: Bytes<'_>) -> Option<Found> {
    let superblock = ext::in_head(head.0)?;
    Some(Found {
        kind: match superblock.is_ext4 {
            true => Kind::Ext4,
            false => Kind::Ext3,
        },
        label: superblock.label,
        uuid: superblock.uuid,
    })
}

fn xfs(head: Bytes<'_>) -> Option<Found> {
    head.is(0, b"XFSB").then_some(())?;
    Some(Found {
        kind: Kind::Xfs,
        label: head.text(108, 12)?,
        uuid: head.uuid(32)?,
    })
}

fn btrfs(head: Bytes<'_>) -> Option<Found> {
    const AT: usize = 0x1_0000;
    head.is(AT + 64, b"_BHRfS_M").then_some(())?;
    Some(Found {
        kind: Kind::Btrfs,
        label: head.text(AT + 0x12b, 256)?,
        uuid: head.uuid(AT + 32)?,
    })
}

fn vfat(head: Bytes<'_>) -> Option<Found> {
    let sector = fat::parse(head.0)?;
    Some(Found {
        kind: Kind::Vfat,
        label: sector.label,
        uuid: sector.id,
    })
}

fn swap(head: Bytes<'_>) -> Option<Found> {
    const MAGIC: &[u8] = b"SWAPSPACE2";
    let pages = [4096, 8192, 16384, 65536];
    let here = pages.iter().any(|page| head.is(page - MAGIC.len(), MAGIC));
    here.then_some(())?;
    Some(Found {
        kind: Kind::Swap,
        label: head.text(1052, 16)?,
        uuid: head.uuid(1036)?,
    })
}

fn luks(head: Bytes<'_>) -> Option<Found> {
    head.is(0, b"LUKS\xba\xbe").then_some(())?;
    let second = head.is(6, &2_u16.to_be_bytes());
    Some(Found {
        kind: if second { Kind::Luks2 } else { Kind::Luks1 },
        label: match second {
            true => head.text(24, 48)?,
            false => String::new(),
        },
        uuid: head.text(168, 40)?.to_lowercase(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::samples::filesystem as superblock;

    #[test]
    fn each_kind_is_read_with_label_and_uuid_wherever_it_begins() {
        for kind in [
            Kind::Ext3,
            Kind::Ext4,
            Kind::Xfs,
            Kind::Btrfs,
            Kind::Vfat,
            Kind::Swap,
            Kind::Luks1,
            Kind::Luks2,
        ] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(4 << 20).unwrap();
            for (at, bytes) in superblock(kind) {
                file.write_all_at(&bytes, (1 << 20) + at).unwrap();
            }
            let found = read(Stretch::part(&file, 1 << 20, 1 << 20)).unwrap();
            assert_eq!(found.len(), 1, "{kind}");
            assert_eq!(found[0].kind, kind);
            let label = if kind == Kind::Luks1 { "" } else { "data" };
            assert_eq!(found[0].label, label, "{kind}");
            let uuid = match kind {
                Kind::Vfat => "a1b2-c3d4",
                Kind::Luks1 | Kind::Luks2 => "abab",
                _ => "abababab-abab-abab-abab-abababababab",
            };
            assert_eq!(found[0].uuid, uuid, "{kind}");
        }
    }

    #[test]
    fn nothing_is_read_from_zeros_and_from_little() {
        let file: File = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert_eq!(read(Stretch::whole(&file, 8192)).unwrap(), []);
        assert_eq!(read(Stretch::whole(&file, 100)).unwrap(), []);
    }
}
