//! Probing a device or a stretch of it: provably blank, a file system, or other data that must not be overwritten.
//!
//! The magics and their offsets are libblkid's (util-linux, `libblkid/src`), as far as they concern disks. Without a known
//! magic it is blank only if the first and the last MiB and samples in between are zero.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

/// Bytes that are read at the begin and at the end.
pub const EDGE: u64 = 1 << 20;
/// Samples between the edges, each of [`SAMPLE`] bytes.
const SAMPLES: u64 = 64;
const SAMPLE: u64 = 4096;
/// Offsets of copies of superblocks and headers, beyond the first MiB: LUKS 2's second header, ext4's first backups
/// (blocks of 1 and 4 KiB), btrfs's first mirror.
const COPIES: [u64; 5] = [2 << 20, 4 << 20, 8193 << 10, 64 << 20, 128 << 20];

/// The content of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Blank,
    /// ext2, ext3 or ext4, and nothing else.
    Ext,
    /// These known formats, by name.
    Known(Vec<&'static str>),
    /// Data of no known kind, with the offset of the first non-zero byte that was found.
    Unknown(u64),
}

impl Content {
    /// The content, in the words of a report.
    pub fn describe(&self) -> String {
        match self {
            Self::Blank => "nothing: it is blank".to_owned(),
            Self::Ext => "an ext file system".to_owned(),
            Self::Known(names) => names.join(" and "),
            Self::Unknown(at) => format!("data of no known kind (first seen at byte {at})"),
        }
    }
}

/// A stretch of a device: `size` bytes from byte `start`. This allows to examine a partition that does not exist yet.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    device: &'a File,
    start: u64,
    size: u64,
    /// Bytes of the device that count as zero.
    gone: &'a [Range<u64>],
}

impl<'a> Stretch<'a> {
    /// All `size` bytes of a device.
    pub const fn whole(device: &'a File, size: u64) -> Self {
        Self::part(device, 0, size)
    }

    /// Bytes `start` to `start + size`.
    pub const fn part(device: &'a File, start: u64, size: u64) -> Self {
        Self {
            device,
            start,
            size,
            gone: &[],
        }
    }

    /// The same with these bytes of the device read as zero: they are overwritten before the rest is, as tables that are
    /// wiped.
    #[must_use]
    pub const fn without(self, gone: &'a [Range<u64>]) -> Self {
        Self { gone, ..self }
    }

    /// Its bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// `length` bytes from byte `at` of the stretch; fewer where it ends.
    ///
    /// # Errors
    /// If the device cannot be read.
    pub fn read(&self, at: u64, length: u64) -> Result<Vec<u8>> {
        let length = length.min(self.size.saturating_sub(at));
        let mut bytes = vec![0; usize::try_from(length)?];
        self.device
            .read_exact_at(&mut bytes, self.start + at)
            .with_context(|| format!("reading {length} bytes at byte {}", self.start + at))?;
        let here = self.start + at;
        for gone in self.gone {
            let from = gone.start.clamp(here, here + length) - here;
            let to = gone.end.clamp(here, here + length) - here;
            bytes[usize::try_from(from)?..usize::try_from(to)?.max(usize::try_from(from)?)].fill(0);
        }
        Ok(bytes)
    }
}

/// The names of all known signatures at the begin and end of this stretch; writes nothing.
///
/// # Errors
/// If it cannot be read.
pub fn known(stretch: Stretch<'_>) -> Result<Vec<&'static str>> {
    let edge = stretch.size.min(EDGE);
    let head = stretch.read(0, edge)?;
    let tail = stretch.read(stretch.size - edge, edge)?;
    Ok(signatures(&head, &tail, stretch.size))
}

/// Examines a stretch: its known signatures or, without any, whether it is blank. Writes nothing.
///
/// # Errors
/// If it cannot be read.
pub fn probe(stretch: Stretch<'_>) -> Result<Content> {
    let size = stretch.size;
    let edge = size.min(EDGE);
    let head = stretch.read(0, edge)?;
    let tail = stretch.read(size - edge, edge)?;
    let names = signatures(&head, &tail, size);
    match names.as_slice() {
        [] => {}
        [EXT] => return Ok(Content::Ext),
        _ => return Ok(Content::Known(names)),
    }
    if let Some(at) = non_zero(&head) {
        return Ok(Content::Unknown(at));
    }
    if let Some(at) = non_zero(&tail) {
        return Ok(Content::Unknown(size - edge + at));
    }
    let step = size / (SAMPLES + 1);
    let places = (1..=SAMPLES).map(|n| n * step / 512 * 512).chain(COPIES);
    for at in places {
        if at + SAMPLE > size {
            continue;
        }
        if let Some(offset) = non_zero(&stretch.read(at, SAMPLE)?) {
            return Ok(Content::Unknown(at + offset));
        }
    }
    Ok(Content::Blank)
}

fn non_zero(bytes: &[u8]) -> Option<u64> {
    let at = bytes.iter().position(|byte| *byte != 0)?;
    u64::try_from(at).ok()
}

/// Names that other modules compare.
pub const EXT: &str = "an ext2, ext3 or ext4 file system";
/// See [`EXT`].
pub const XFS: &str = "an XFS file system";
/// See [`EXT`].
pub const BTRFS: &str = "a btrfs file system";
/// See [`EXT`].
pub const FAT: &str = "a FAT file system";
/// See [`EXT`].
pub const SWAP: &str = "swap";
/// See [`EXT`].
pub const LUKS: &str = "LUKS";
/// See [`EXT`].
pub const RAID: &str = "a member of a Linux RAID";
/// See [`EXT`].
pub const GPT: &str = "a GPT";
/// See [`EXT`].
pub const MBR: &str = "an MBR or a boot sector";

/// Name, offset from the begin, magic.
const AT_BEGIN: &[(&str, usize, &[u8])] = &[
    (GPT, 512, b"EFI PART"),
    (GPT, 4096, b"EFI PART"),
    (MBR, 510, b"\x55\xaa"),
    (LUKS, 0, b"LUKS\xba\xbe"),
    (LUKS, 0x4000, b"SKUL\xba\xbe"),
    (LUKS, 0x8000, b"SKUL\xba\xbe"),
    (LUKS, 0x1_0000, b"SKUL\xba\xbe"),
    (LUKS, 0x2_0000, b"SKUL\xba\xbe"),
    (LUKS, 0x4_0000, b"SKUL\xba\xbe"),
    (LUKS, 0x8_0000, b"SKUL\xba\xbe"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    (SWAP, 4086, b"SWAPSPACE2"),
    (SWAP, 4086, b"SWAP-SPACE"),
    (SWAP, 8182, b"SWAPSPACE2"),
    (SWAP, 16374, b"SWAPSPACE2"),
    (SWAP, 65526, b"SWAPSPACE2"),
    ("a hibernated system", 4086, b"S1SUSPEND"),
    ("a hibernated system", 4086, b"S2SUSPEND"),
    ("a hibernated system", 4086, b"LINHIB0001"),
    (EXT, 1080, b"\x53\xef"),
    (XFS, 0, b"XFSB"),
    (BTRFS, 0x1_0040, b"_BHRfS_M"),
    (FAT, 54, b"FAT12   "),
    (FAT, 54, b"FAT16   "),
    (FAT, 82, b"FAT32   "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an ISO 9660 file system", 32769, b"CD001"),
    ("a UDF file system", 32769, b"BEA01"),
    ("a squashfs", 0, b"hsqs"),
    ("an EROFS", 1024, b"\xe2\xe1\xf5\xe0"),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    ("a JFS file system", 32768, b"JFS1"),
    ("a ReiserFS file system", 65588, b"ReIsEr"),
    ("a NILFS2 file system", 1030, b"\x34\x34"),
    ("a GFS2 file system", 65536, b"\x01\x16\x19\x70"),
    ("an OCFS2 file system", 1024, b"OCFSV2"),
    ("an OCFS2 file system", 2048, b"OCFSV2"),
    ("an OCFS2 file system", 4096, b"OCFSV2"),
    (RAID, 0, b"\xfc\x4e\x2b\xa9"),
    (RAID, 4096, b"\xfc\x4e\x2b\xa9"),
    (
        "a bcache device",
        4120,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    (
        "a bcachefs file system",
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    ("a dm-verity hash tree", 0, b"verity\0\0"),
    ("a dm-integrity device", 0, b"integrt\0"),
    ("a Stratis device", 516, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("a Stratis device", 4612, b"!Stra0tis\x86\xff\x02^\x41rh"),
];

/// Name, offset before the end in bytes, magic.
const AT_END: &[(&str, u64, &[u8])] = &[
    (GPT, 512, b"EFI PART"),
    (GPT, 4096, b"EFI PART"),
    (
        "a member of an Intel firmware RAID",
        1024,
        b"Intel Raid ISM Cfg Sig. ",
    ),
    ("a member of a firmware RAID", 512, b"\xde\x11\xde\x11"),
];

/// Every known format in the edges of a volume, each once.
fn signatures(head: &[u8], tail: &[u8], size: u64) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut add = |name| {
        if !found.contains(&name) {
            found.push(name);
        }
    };
    for (name, at, magic) in AT_BEGIN {
        if is_at(head, *at, magic) {
            add(*name);
        }
    }
    // Offsets near the end, counted from the begin: bytes before the tail are not examined.
    let tail_begin = size.saturating_sub(tail.len() as u64);
    let in_tail = |at: u64, magic: &[u8]| {
        at.checked_sub(tail_begin)
            .and_then(|at| usize::try_from(at).ok())
            .is_some_and(|at| is_at(tail, at, magic))
    };
    for (name, before_end, magic) in AT_END {
        if size
            .checked_sub(*before_end)
            .is_some_and(|at| in_tail(at, magic))
        {
            add(*name);
        }
    }
    for at in md_places(size) {
        if in_tail(at, b"\xfc\x4e\x2b\xa9") {
            add(RAID);
        }
    }
    if zfs(head) || zfs(tail) {
        add("a ZFS device");
    }
    found
}

fn is_at(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..at + magic.len()) == Some(magic)
}

/// Offsets of md's superblocks at the end: version 1.0 eight KiB before it on a multiple of 4 KiB, version 0.90 in the
/// last complete 64 KiB (mdadm's `super0.c` and `super1.c`).
fn md_places(size: u64) -> impl Iterator<Item = u64> {
    let one = size.checked_sub(8 << 10).map(|at| at / 4096 * 4096);
    let zero = (size / (64 << 10) * (64 << 10)).checked_sub(64 << 10);
    [one, zero].into_iter().flatten()
}

/// ZFS's labels are 256 KiB each, two at either end; the second half of a label is a ring of uberblocks of at least 1
/// KiB, in the byte order of the machine that wrote it. More than one is required: eight bytes alone might be anything.
fn zfs(edge: &[u8]) -> bool {
    const MAGIC: u64 = 0x00ba_b10c;
    let count = edge
        .chunks_exact(1024)
        .filter(|block| {
            let first: [u8; 8] = block[..8].try_into().unwrap_or_default();
            u64::from_le_bytes(first) == MAGIC || u64::from_be_bytes(first) == MAGIC
        })
        .count();
    count >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 200 << 20;

    fn volume(pieces: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        for (at, bytes) in pieces {
            file.write_all_at(bytes, *at).unwrap();
        }
        file
    }

    fn found(pieces: &[(u64, &[u8])]) -> Content {
        probe(Stretch::whole(&volume(pieces), SIZE)).unwrap()
    }

    #[test]
    fn zeros_are_blank() {
        assert_eq!(found(&[]), Content::Blank);
    }

    #[test]
    fn what_is_overwritten_first_does_not_count() {
        let device = volume(&[(600, b"xx"), (1 << 20, b"EFI PART")]);
        let end = SIZE - 1024..SIZE;
        for (gone, expected) in [
            (0..1024, Content::Blank),
            (0..601, Content::Unknown(601)),
            (601..700, Content::Unknown(600)),
            (SIZE..SIZE + 512, Content::Unknown(600)),
        ] {
            let gone = [end.clone(), gone];
            let stretch = Stretch::part(&device, 0, 1 << 20).without(&gone);
            assert_eq!(probe(stretch).unwrap(), expected, "{gone:?}");
        }
        let behind = Stretch::part(&device, 1 << 20, 4 << 20);
        let gone = [end, (1 << 20)..(1 << 20) + 512];
        assert!(matches!(probe(behind).unwrap(), Content::Unknown(0)));
        assert_eq!(probe(behind.without(&gone)).unwrap(), Content::Blank);
    }

    #[test]
    fn a_byte_in_the_edges_or_where_copies_are_is_not_blank() {
        for at in [
            0,
            7,
            EDGE - 1,
            SIZE - 1,
            SIZE - EDGE,
            2 << 20,
            64 << 20,
            128 << 20,
            8193 << 10,
        ] {
            assert_eq!(found(&[(at, b"x")]), Content::Unknown(at), "{at}");
        }
        // Data that is longer than the distance of two samples is found too.
        let long = vec![1; 4 << 20];
        assert!(matches!(found(&[(90 << 20, &long)]), Content::Unknown(_)));
    }

    #[test]
    fn every_magic_is_found_by_itself() {
        for (name, at, magic) in AT_BEGIN {
            let expected = if *name == EXT {
                Content::Ext
            } else {
                Content::Known(vec![*name])
            };
            assert_eq!(found(&[(*at as u64, *magic)]), expected, "{at}");
        }
        for (name, before_end, magic) in AT_END {
            let expected = Content::Known(vec![*name]);
            assert_eq!(
                found(&[(SIZE - before_end, *magic)]),
                expected,
                "{before_end}"
            );
        }
    }

    #[test]
    fn raid_at_the_end_is_found() {
        let raid = Content::Known(vec![RAID]);
        for at in [SIZE - (8 << 10), SIZE - (64 << 10)] {
            assert_eq!(found(&[(at, b"\xfc\x4e\x2b\xa9")]), raid);
        }
    }

    #[test]
    fn zfs_is_found_in_either_byte_order_and_at_either_end() {
        let zfs = Content::Known(vec!["a ZFS device"]);
        let magic = 0x00ba_b10c_u64;
        for begin in [128 << 10, SIZE - (128 << 10)] {
            for bytes in [magic.to_le_bytes(), magic.to_be_bytes()] {
                let content = found(&[(begin, &bytes), (begin + 1024, &bytes)]);
                assert_eq!(content, zfs);
            }
        }
    }

    #[test]
    fn ext_beside_something_else_is_not_taken_for_ours() {
        let content = found(&[(1080, b"\x53\xef"), (SIZE - 512, b"EFI PART")]);
        let Content::Known(names) = &content else {
            panic!("{content:?}")
        };
        assert_eq!(names.len(), 2);
        assert!(content.describe().contains(" and a GPT"));
    }

    #[test]
    fn a_volume_smaller_than_the_edges_is_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let probe = |start, size| probe(Stretch::part(&file, start, size)).unwrap();
        assert_eq!(probe(0, 4096), Content::Blank);
        file.write_all_at(b"x", 4000).unwrap();
        assert_eq!(probe(0, 4096), Content::Unknown(4000));
        assert_eq!(probe(1000, 3096), Content::Unknown(3000));
        assert_eq!(probe(0, 4000), Content::Blank);
    }

    #[test]
    fn no_damage_makes_a_volume_blank_that_is_not() {
        const SMALL: u64 = 256 << 10;
        let file = tempfile::tempfile().unwrap();
        let mut ext = vec![0; 4096];
        ext[1080..1082].copy_from_slice(&[0x53, 0xef]);
        let seeds = [ext, b"LUKS\xba\xbe".to_vec(), b"XFSB".to_vec()];
        crate::fuzz::run(&seeds, |bytes, random| {
            bytes.truncate(8192);
            file.set_len(0).unwrap();
            file.set_len(SMALL).unwrap();
            let room = usize::try_from(SMALL).unwrap() - bytes.len();
            let at = [0, 4096, room, random.below(room)][random.below(4)];
            file.write_all_at(bytes, u64::try_from(at).unwrap())
                .unwrap();
            let blank = bytes.iter().all(|byte| *byte == 0);
            let content = probe(Stretch::whole(&file, SMALL)).unwrap();
            assert_eq!(content == Content::Blank, blank, "{}", content.describe());
        });
    }
}
