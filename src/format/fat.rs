//! Writes the EFI system partition: a FAT32 file system, as the few extents that are not zero.
//!
//! Format: Microsoft's "FAT32 File System Specification" 1.03. Written without a library because the
//! only maintained one needs the whole partition in memory and takes the label's time from the clock. Every file
//! is contiguous, entries are sorted, and all times are the given one, so equal input gives equal bytes.

mod read;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use image::layout::{MIB, SectorSize};

use super::bios;
use super::sparse::Extent;

use read::{DIRECTORY, LABEL, LONG_NAME};

pub use read::files;

/// The minimum number of clusters: firmware takes a file system with fewer for FAT16.
const LEAST_CLUSTERS: u64 = 65_525;
/// Sectors before the first table, at least: boot sector, information sector, and their copies at the sixth.
const RESERVED: u64 = 32;
const FATS: u64 = 2;
/// Bytes of the largest cluster, a page of the cache.
const MOST_CLUSTER: u64 = 4096;
const ROOT_CLUSTER: u32 = 2;
const END_OF_CHAIN: u32 = 0x0fff_ffff;
const ARCHIVE: u8 = 0x20;
/// Where the code of the boot sector begins, behind its fields.
const CODE: usize = 90;

/// Size, names and time of the file system.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Bytes of the partition.
    pub size: u64,
    /// Bytes before the partition on its disk.
    pub offset: u64,
    /// The disk's logical sectors: smaller ones are not mounted, and firmware counts in them.
    pub sector: SectorSize,
    /// Volume label, at most 11 capital letters or digits.
    pub label: &'a str,
    /// Volume id.
    pub id: u32,
    /// Seconds since 1970; times before 1980, the first year of FAT, become the start of 1980.
    pub time: u64,
}

/// A file system under construction.
#[derive(Debug, Default)]
pub struct Volume<'a> {
    root: Folder<'a>,
}

#[derive(Debug)]
enum Node<'a> {
    Folder(Folder<'a>),
    File(&'a [u8]),
}

type Folder<'a> = BTreeMap<String, Node<'a>>;

impl<'a> Volume<'a> {
    /// An empty file system.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file; missing folders of its path are created.
    ///
    /// # Errors
    /// When a name is not valid in a FAT, or exists already (upper and lower case are equal).
    pub fn file(&mut self, path: &str, content: &'a [u8]) -> Result<()> {
        let mut folder = &mut self.root;
        let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let name = parts
            .pop()
            .with_context(|| format!("{path:?} names no file"))?;
        for part in parts.iter().chain([&name]) {
            check_name(part)?;
        }
        for part in parts {
            let node = folder
                .entry(part.to_owned())
                .or_insert_with(|| Node::Folder(Folder::new()));
            folder = match node {
                Node::Folder(folder) => folder,
                Node::File(_) => anyhow::bail!("{part} of {path} is a file already"),
            };
        }
        ensure!(
            !folder.keys().any(|other| other.eq_ignore_ascii_case(name)),
            "{path} is there already"
        );
        folder.insert(name.to_owned(), Node::File(content));
        Ok(())
    }

    /// The extents that are not zero, in ascending order, relative to the partition's start.
    ///
    /// # Errors
    /// When the partition is too small for FAT32 or for the files.
    pub fn write(&self, options: &Options) -> Result<Vec<Extent<'a>>> {
        let geometry = Geometry::of(options.size, options.sector.bytes())?;
        let mut layout = Layout {
            cluster: geometry.cluster_bytes(),
            fat: vec![0x0fff_fff8, END_OF_CHAIN],
            stamp: stamp(options.time)?,
            data: Vec::new(),
        };
        let label = short_label(options.label)?;
        let first = layout.folder(&self.root, None, Some(label))?;
        debug_assert_eq!(first, ROOT_CLUSTER, "the root folder is laid first");
        let used = u64::try_from(layout.fat.len())? - 2;
        ensure!(
            used <= geometry.clusters,
            "the EFI system partition has room for {} clusters of {} bytes, {used} are needed: make it larger",
            geometry.clusters,
            geometry.cluster_bytes(),
        );
        let mut out = boot_sectors(options, &geometry, label, used)?;
        let table: Vec<u8> = layout
            .fat
            .iter()
            .flat_map(|entry| entry.to_le_bytes())
            .collect();
        for copy in 0..FATS {
            out.push(Extent {
                offset: (geometry.reserved + copy * geometry.fat_sectors) * geometry.sector,
                bytes: Cow::Owned(table.clone()),
            });
        }
        let data = (geometry.reserved + FATS * geometry.fat_sectors) * geometry.sector;
        layout.data.sort_by_key(|(cluster, _)| *cluster);
        for (cluster, bytes) in layout.data {
            out.push(Extent {
                offset: data + u64::from(cluster - ROOT_CLUSTER) * geometry.cluster_bytes(),
                bytes,
            });
        }
        Ok(out)
    }
}

struct Geometry {
    /// Bytes.
    sector: u64,
    sectors: u64,
    sectors_per_cluster: u64,
    reserved: u64,
    fat_sectors: u64,
    clusters: u64,
}

/// Bytes of a partition, in whole MiB, that has room for FAT32 with sectors of this many bytes.
#[must_use]
pub const fn smallest(sector: u64) -> u64 {
    let tables = (LEAST_CLUSTERS * 4).div_ceil(sector) + 1;
    ((LEAST_CLUSTERS + RESERVED + 1 + FATS * tables) * sector).next_multiple_of(MIB)
}

impl Geometry {
    /// The largest cluster size, 4 KiB at most, with enough clusters for FAT32.
    fn of(size: u64, sector: u64) -> Result<Self> {
        let sectors = size / sector;
        let most = MOST_CLUSTER / sector;
        for sectors_per_cluster in [8, 4, 2, 1].into_iter().filter(|count| *count <= most) {
            // The table has an entry for each cluster, and two more. A slightly too large table is allowed.
            let most = sectors / sectors_per_cluster + 2;
            let fat_sectors = (most * 4).div_ceil(sector);
            let before = RESERVED + FATS * fat_sectors;
            // Align clusters to their size, so that a page of the cache is one cluster.
            let reserved = RESERVED + (before.next_multiple_of(sectors_per_cluster) - before);
            let data = sectors.saturating_sub(reserved + FATS * fat_sectors);
            let clusters = data / sectors_per_cluster;
            if clusters >= LEAST_CLUSTERS {
                return Ok(Self {
                    sector,
                    sectors,
                    sectors_per_cluster,
                    reserved,
                    fat_sectors,
                    clusters,
                });
            }
        }
        anyhow::bail!(
            "an EFI system partition of {size} bytes is too small for FAT32: at least {} MiB are needed for sectors of {sector} bytes",
            smallest(sector) / MIB
        )
    }

    fn cluster_bytes(&self) -> u64 {
        self.sectors_per_cluster * self.sector
    }
}

/// Boot sector, information sector, and their copies.
fn boot_sectors<'a>(
    options: &Options,
    geometry: &Geometry,
    label: [u8; 11],
    used: u64,
) -> Result<Vec<Extent<'a>>> {
    let bytes = usize::try_from(geometry.sector)?;
    let mut sectors = vec![0; 2 * bytes];
    let fat_sectors = u32::try_from(geometry.fat_sectors)?;
    let hidden = u32::try_from(options.offset / geometry.sector).unwrap_or(u32::MAX);
    let code = bios::code();
    let fields: [(usize, &[u8]); 20] = [
        // A jump to the code.
        (0, &[0xeb, 0x58, 0x90]),
        (3, b"SLIPWAY "),
        (11, &u16::try_from(geometry.sector)?.to_le_bytes()),
        (13, &[u8::try_from(geometry.sectors_per_cluster)?]),
        (14, &u16::try_from(geometry.reserved)?.to_le_bytes()),
        (16, &[u8::try_from(FATS)?]),
        (21, &[0xf8]),
        (24, &63u16.to_le_bytes()),
        (26, &255u16.to_le_bytes()),
        (28, &hidden.to_le_bytes()),
        (32, &u32::try_from(geometry.sectors)?.to_le_bytes()),
        (36, &fat_sectors.to_le_bytes()),
        (44, &ROOT_CLUSTER.to_le_bytes()),
        (48, &1u16.to_le_bytes()),
        (50, &6u16.to_le_bytes()),
        (64, &[0x80, 0, 0x29]),
        (67, &options.id.to_le_bytes()),
        (71, &label),
        (82, b"FAT32   "),
        (CODE, &code),
    ];
    let free = u32::try_from(geometry.clusters - used)?;
    let next = u32::try_from(used + 2)?;
    let information: [(usize, &[u8]); 4] = [
        (bytes, b"RRaA"),
        (bytes + 484, b"rrAa"),
        (bytes + 488, &free.to_le_bytes()),
        (bytes + 492, &next.to_le_bytes()),
    ];
    // The signature is at byte 510 of both, however large a sector is.
    let signatures: [(usize, &[u8]); 2] = [(510, &[0x55, 0xaa]), (bytes + 510, &[0x55, 0xaa])];
    for (at, field) in fields.into_iter().chain(information).chain(signatures) {
        sectors[at..at + field.len()].copy_from_slice(field);
    }
    Ok([0, 6]
        .map(|at| Extent {
            offset: at * geometry.sector,
            bytes: Cow::Owned(sectors.clone()),
        })
        .into())
}

struct Layout<'a> {
    cluster: u64,
    fat: Vec<u32>,
    /// Time and date of all entries.
    stamp: [u8; 4],
    data: Vec<(u32, Cow<'a, [u8]>)>,
}

impl<'a> Layout<'a> {
    /// Allocates consecutive clusters for this many bytes. Empty files have none.
    fn allocate(&mut self, length: usize) -> Result<u32> {
        let count = u64::try_from(length)?.div_ceil(self.cluster);
        if count == 0 {
            return Ok(0);
        }
        let first = u32::try_from(self.fat.len())?;
        for next in 1..count {
            self.fat.push(first + u32::try_from(next)?);
        }
        self.fat.push(END_OF_CHAIN);
        Ok(first)
    }

    fn folder(
        &mut self,
        folder: &Folder<'a>,
        parent: Option<u32>,
        label: Option<[u8; 11]>,
    ) -> Result<u32> {
        let names = short_names(folder.keys());
        let slots: usize = folder
            .keys()
            .zip(&names)
            .map(|(name, short)| 1 + long_entries(name, short))
            .sum();
        let own = if label.is_some() { 1 } else { 2 };
        let first = self.allocate(32 * (slots + own))?;
        let mut bytes = Vec::with_capacity(32 * (slots + own));
        match label {
            Some(label) => bytes.extend(self.short(label, LABEL, 0, 0)),
            None => {
                // Zero is the root folder.
                let above = parent
                    .filter(|cluster| *cluster != ROOT_CLUSTER)
                    .unwrap_or(0);
                bytes.extend(self.short(*b".          ", DIRECTORY, first, 0));
                bytes.extend(self.short(*b"..         ", DIRECTORY, above, 0));
            }
        }
        for ((name, node), short) in folder.iter().zip(names) {
            let (kind, cluster, size) = match node {
                Node::Folder(inner) => (DIRECTORY, self.folder(inner, Some(first), None)?, 0),
                Node::File(content) => {
                    let cluster = self.allocate(content.len())?;
                    if cluster != 0 {
                        self.data.push((cluster, Cow::Borrowed(*content)));
                    }
                    let size = u32::try_from(content.len())
                        .with_context(|| format!("{name} is too large for FAT32"))?;
                    (ARCHIVE, cluster, size)
                }
            };
            bytes.extend(long_name(name, &short));
            bytes.extend(self.short(short, kind, cluster, size));
        }
        self.data.push((first, Cow::Owned(bytes)));
        Ok(first)
    }

    fn short(&self, name: [u8; 11], kind: u8, cluster: u32, size: u32) -> [u8; 32] {
        let mut entry = [0; 32];
        let [c0, c1, c2, c3] = cluster.to_le_bytes();
        let [t0, t1, d0, d1] = self.stamp;
        entry[..11].copy_from_slice(&name);
        entry[11] = kind;
        entry[14..20].copy_from_slice(&[t0, t1, d0, d1, d0, d1]);
        entry[20..22].copy_from_slice(&[c2, c3]);
        entry[22..26].copy_from_slice(&self.stamp);
        entry[26..28].copy_from_slice(&[c0, c1]);
        entry[28..].copy_from_slice(&size.to_le_bytes());
        entry
    }
}

/// Time and date in FAT's format: steps of two seconds, years from 1980.
fn stamp(time: u64) -> Result<[u8; 4]> {
    let earliest = jiff::civil::date(1980, 1, 1).at(0, 0, 0, 0);
    let latest = jiff::civil::date(2107, 12, 31).at(23, 59, 58, 0);
    let then = jiff::Timestamp::from_second(i64::try_from(time)?)
        .context("a time that no calendar has")?
        .to_zoned(jiff::tz::TimeZone::UTC)
        .datetime()
        .clamp(earliest, latest);
    let part = |value: i8| u16::from(value.unsigned_abs());
    let year = then.year().unsigned_abs() - 1980;
    let clock = (part(then.hour()) << 11) | (part(then.minute()) << 5) | (part(then.second()) / 2);
    let date = (year << 9) | (part(then.month()) << 5) | part(then.day());
    let ([t0, t1], [d0, d1]) = (clock.to_le_bytes(), date.to_le_bytes());
    Ok([t0, t1, d0, d1])
}

fn check_name(name: &str) -> Result<()> {
    let fits = !matches!(name, "." | "..")
        && name.len() <= 255
        && !name.ends_with(['.', ' '])
        && name
            .bytes()
            .all(|byte| (b' '..0x7f).contains(&byte) && !b"\"*/:<>?\\|".contains(&byte));
    ensure!(
        fits,
        "{name:?} cannot stand in a FAT file system: expected 1 to 255 ASCII characters without \" * / : < > ? \\ |"
    );
    Ok(())
}

fn short_label(label: &str) -> Result<[u8; 11]> {
    let fits = label.len() <= 11 && label.bytes().all(plain);
    ensure!(
        fits,
        "{label:?} is not a FAT label: expected at most 11 capital letters or digits"
    );
    let mut out = [b' '; 11];
    out[..label.len()].copy_from_slice(label.as_bytes());
    Ok(out)
}

/// Bytes that a short name stores unchanged.
fn plain(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"_-".contains(&byte)
}

/// Splits into stem and suffix at the last dot.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or((name, ""))
}

/// The name in 8.3 form if it fits without a long name.
fn exact(name: &str) -> Option<[u8; 11]> {
    let (stem, suffix) = split(name);
    let fits = (1..=8).contains(&stem.len())
        && suffix.len() <= 3
        && stem.bytes().chain(suffix.bytes()).all(plain);
    fits.then(|| packed(stem, suffix))
}

fn packed(stem: &str, suffix: &str) -> [u8; 11] {
    let mut out = [b' '; 11];
    out[..stem.len()].copy_from_slice(stem.as_bytes());
    out[8..8 + suffix.len()].copy_from_slice(suffix.as_bytes());
    out
}

/// Short names for the names of a folder, in the same order, all different.
fn short_names<'n>(names: impl Iterator<Item = &'n String> + Clone) -> Vec<[u8; 11]> {
    let mut taken: BTreeSet<[u8; 11]> = names.clone().filter_map(|name| exact(name)).collect();
    let clean = |text: &str, length: usize| -> String {
        text.to_ascii_uppercase()
            .bytes()
            .filter(|byte| !b". ".contains(byte))
            .map(|byte| if plain(byte) { char::from(byte) } else { '_' })
            .take(length)
            .collect()
    };
    names
        .map(|name| {
            exact(name).unwrap_or_else(|| {
                let (stem, suffix) = split(name);
                let suffix = clean(suffix, 3);
                (1u32..)
                    .map(|number| {
                        let tail = format!("~{number}");
                        packed(&(clean(stem, 8 - tail.len()) + &tail), &suffix)
                    })
                    .find(|short| taken.insert(*short))
                    .unwrap_or([b'_'; 11])
            })
        })
        .collect()
}

fn long_entries(name: &str, short: &[u8; 11]) -> usize {
    if exact(name).as_ref() == Some(short) {
        0
    } else {
        name.len().div_ceil(13)
    }
}

/// The entries with the long name, last part first, to be placed before the short entry.
fn long_name(name: &str, short: &[u8; 11]) -> Vec<u8> {
    let count = long_entries(name, short);
    let sum = short
        .iter()
        .fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let mut units: Vec<u16> = name.encode_utf16().collect();
    if !units.len().is_multiple_of(13) {
        units.push(0);
    }
    units.resize(count * 13, 0xffff);
    let mut out = Vec::with_capacity(32 * count);
    for (index, part) in units.chunks(13).enumerate().rev() {
        let last = if index + 1 == count { 0x40 } else { 0 };
        // A name has at most 255 characters, so at most 20 parts.
        let number = u8::try_from(index + 1).unwrap_or(20) | last;
        let text: Vec<u8> = part.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let mut entry = [0; 32];
        entry[0] = number;
        entry[1..11].copy_from_slice(&text[..10]);
        entry[11] = LONG_NAME;
        entry[13] = sum;
        entry[14..26].copy_from_slice(&text[10..22]);
        entry[28..].copy_from_slice(&text[22..]);
        out.extend(entry);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::format::sparse;

    fn options(size: u64) -> Options<'static> {
        Options {
            size,
            offset: 0,
            sector: SectorSize::B512,
            label: "ESP",
            id: 0x1234_5678,
            time: 1_780_000_000,
        }
    }

    fn written(volume: &Volume, options: &Options) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(options.size).unwrap();
        for extent in volume.write(options).unwrap() {
            sparse::write(&file, extent.offset, &extent.bytes).unwrap();
        }
        file
    }

    #[test]
    fn files_come_back_under_their_names() {
        let large = vec![7; 300_000];
        let names: Vec<String> = (0..300)
            .map(|at| format!("/many/A rather long name, number {at}.conf"))
            .collect();
        let mut volume = Volume::new();
        volume.file("/EFI/BOOT/BOOTX64.EFI", &large).unwrap();
        volume.file("/EFI/Linux/demo_1.0+3-0.efi", b"uki").unwrap();
        volume.file("/loader/loader.conf", b"").unwrap();
        for name in &names {
            volume.file(name, name.as_bytes()).unwrap();
        }
        let small = SectorSize::ALL.map(|sector| (sector, smallest(sector.bytes())));
        let large_ones = [64 * MIB, 512 * MIB].map(|size| (SectorSize::B512, size));
        for (sector, size) in small.into_iter().chain(large_ones) {
            let options = Options {
                sector,
                ..options(size)
            };
            let read = files(&mut written(&volume, &options), 0).unwrap();
            assert_eq!(read.len(), 303, "{sector:?} {size}");
            assert!(read["/EFI/BOOT/BOOTX64.EFI"] == large);
            assert_eq!(read["/EFI/Linux/demo_1.0+3-0.efi"], b"uki");
            assert_eq!(read["/loader/loader.conf"], b"");
            for name in &names {
                assert_eq!(read[name], name.as_bytes());
            }
        }
    }

    #[test]
    fn a_bios_is_told_by_the_boot_sector_what_to_set() {
        for sector in SectorSize::ALL {
            let options = Options {
                sector,
                ..options(smallest(sector.bytes()))
            };
            let file = written(&Volume::new(), &options);
            for copy in [0, 6] {
                let mut found = [0; 512];
                let at = copy * sector.bytes();
                file.read_exact_at(&mut found, at).unwrap();
                // The jump's target, counted from the next instruction.
                assert_eq!((found[0], usize::from(found[1]) + 2), (0xeb, CODE));
                assert!(found[CODE..510].starts_with(&bios::code()));
                assert_eq!(found[510..], [0x55, 0xaa]);
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let mut volume = Volume::new();
        for path in ["/", "/a:b", "/trailing.", "/ä", "/a/../b"] {
            assert!(volume.file(path, b"").is_err(), "{path}");
        }
        volume.file("/a", b"").unwrap();
        assert!(volume.file("/A", b"").is_err());
        assert!(volume.file("/a/b", b"").is_err());
        assert!(volume.write(&options(32 * MIB)).is_err());
        let large = vec![0; 35 << 20];
        volume.file("/large", &large).unwrap();
        let error = volume.write(&options(34 * MIB)).unwrap_err();
        assert!(error.to_string().contains("make it larger"), "{error}");
    }

    #[test]
    fn times_before_fat_are_its_first() {
        // 1 January 1980, midnight.
        assert_eq!(stamp(0).unwrap(), [0, 0, 0x21, 0]);
        // 28 May 2026, 20:26:40.
        let [t0, t1, d0, d1] = stamp(1_780_000_000).unwrap();
        assert_eq!(u16::from_le_bytes([t0, t1]), (20 << 11) | (26 << 5) | 20);
        assert_eq!(u16::from_le_bytes([d0, d1]), (46 << 9) | (5 << 5) | 28);
    }
}
