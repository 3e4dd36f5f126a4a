//! Reads the files of a FAT32 file system: the EFI system partition of an image.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use anyhow::{Context, Result, bail, ensure};
use image::layout::SectorSize;

// Attributes of an entry.
pub(super) const DIRECTORY: u8 = 0x10;
pub(super) const LABEL: u8 = 0x08;
pub(super) const LONG_NAME: u8 = 0x0f;

/// The smallest value that ends a chain of clusters.
const END: u32 = 0x0fff_fff8;
/// Size limit of a file, larger than a boot partition's content; a larger one is damaged.
const LIMIT: u64 = 256 << 20;

/// Offsets of the parts of the file system, in bytes of the disk.
struct Volume<'d, D> {
    disk: &'d mut D,
    fat: u64,
    data: u64,
    cluster: u64,
}

/// All files of the file system that begins at `offset`, by path, as (first cluster, size), and a reader for them.
///
/// # Errors
/// When there is no FAT32, or it is damaged.
pub fn files<D: Read + Seek>(disk: &mut D, offset: u64) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut boot = [0; 512];
    disk.seek(SeekFrom::Start(offset))?;
    disk.read_exact(&mut boot)?;
    ensure!(
        boot[510..] == [0x55, 0xaa] && &boot[82..87] == b"FAT32",
        "no FAT32 file system"
    );
    let word = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
    let long = |at: usize| word(at) | word(at + 2) << 16;
    let sector = word(11);
    ensure!(
        SectorSize::of(sector).is_some() && boot[13] > 0,
        "a FAT32 with sectors of {sector} bytes; expected 512 or 4096"
    );
    let fat = offset + word(14) * sector;
    let mut volume = Volume {
        disk,
        fat,
        data: fat + u64::from(boot[16]) * long(36) * sector,
        cluster: u64::from(boot[13]) * sector,
    };
    let mut out = BTreeMap::new();
    let root = u32::try_from(long(44))?;
    volume.folder(root, "", 0, &mut out)?;
    Ok(out)
}

impl<D: Read + Seek> Volume<'_, D> {
    fn folder(
        &mut self,
        cluster: u32,
        path: &str,
        depth: u32,
        out: &mut BTreeMap<String, Vec<u8>>,
    ) -> Result<()> {
        ensure!(depth < 16, "folders in {path} nest too deep");
        let bytes = self.chain(cluster, None)?;
        let mut long: Vec<u16> = Vec::new();
        for entry in bytes.chunks_exact(32) {
            match (entry[0], entry[11]) {
                (0, _) => break,
                (0xe5, _) => long.clear(),
                (_, LONG_NAME) => {
                    let units = entry[1..11]
                        .iter()
                        .chain(&entry[14..26])
                        .chain(&entry[28..]);
                    let units: Vec<u8> = units.copied().collect();
                    let mut part: Vec<u16> = units
                        .chunks_exact(2)
                        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
                        .take_while(|unit| *unit != 0)
                        .collect();
                    part.append(&mut long);
                    long = part;
                }
                (b'.', _) => {}
                (_, kind) if kind & LABEL != 0 => long.clear(),
                (_, kind) => {
                    let name = if long.is_empty() {
                        short(entry)
                    } else {
                        String::from_utf16_lossy(&long)
                    };
                    long.clear();
                    let path = format!("{path}/{name}");
                    let low = u32::from(u16::from_le_bytes([entry[26], entry[27]]));
                    let high = u32::from(u16::from_le_bytes([entry[20], entry[21]]));
                    let first = high << 16 | low;
                    if kind & DIRECTORY != 0 {
                        self.folder(first, &path, depth + 1, out)?;
                    } else {
                        let size = u32::from_le_bytes([entry[28], entry[29], entry[30], entry[31]]);
                        let content = self
                            .chain(first, Some(size.into()))
                            .with_context(|| format!("reading {path}"))?;
                        out.insert(path, content);
                    }
                }
            }
        }
        Ok(())
    }

    /// The bytes of a chain of clusters, cut to `size`.
    fn chain(&mut self, mut cluster: u32, size: Option<u64>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let wanted = size.unwrap_or(LIMIT);
        ensure!(wanted <= LIMIT, "a file of {wanted} bytes");
        while cluster != 0 && cluster < END && (out.len() as u64) < wanted {
            ensure!(cluster >= 2, "a damaged chain of clusters");
            let at = self.data + u64::from(cluster - 2) * self.cluster;
            self.disk.seek(SeekFrom::Start(at))?;
            let read = (&mut *self.disk).take(self.cluster).read_to_end(&mut out)?;
            if u64::try_from(read)? != self.cluster {
                bail!("the disk ends inside a file");
            }
            let mut entry = [0; 4];
            self.disk
                .seek(SeekFrom::Start(self.fat + 4 * u64::from(cluster)))?;
            self.disk.read_exact(&mut entry)?;
            cluster = u32::from_le_bytes(entry) & 0x0fff_ffff;
        }
        if let Some(size) = size {
            ensure!(out.len() as u64 >= size, "its clusters end early");
            out.truncate(usize::try_from(size)?);
        }
        Ok(out)
    }
}

fn short(entry: &[u8]) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let (stem, suffix) = (part(&entry[..8]), part(&entry[8..11]));
    if suffix.is_empty() {
        stem
    } else {
        format!("{stem}.{suffix}")
    }
}
