//! GUID partition tables: read with either copy damaged, grown with the disk, written so that one copy is
//! valid at every moment. Format: UEFI specification 2.10, section 5.3.
//!
//! Own code and not the crate `gpt`, which renumbers partitions behind a gap when it writes, keeps the old
//! size in the protective MBR, and overwrites both entry arrays before either header.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};
use image::guid::Guid;
use image::layout;

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of a header.
const HEADER: u32 = 92;
/// Bytes of an entry. The specification allows more; no tool writes them, and tables with them are refused.
const ENTRY: u32 = 128;
/// Entries of the tables that the builder makes, and of new ones.
const ENTRIES: u32 = 128;

/// A partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Bytes of a logical sector.
    pub sector: u64,
    /// Sectors of the disk.
    pub sectors: u64,
    /// GUID of the disk.
    pub guid: Guid,
    /// The number of entries that the table has room for.
    pub room: u32,
    /// First sector that a partition may use.
    pub first_usable: u64,
    /// Last sector that a partition may use.
    pub last_usable: u64,
    /// The partitions, by number from 1.
    pub entries: BTreeMap<u32, Entry>,
    /// Whether both copies are valid and at their places; if not, the table needs to be written.
    pub sound: bool,
}

/// One partition. Sectors are logical sectors of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// GUID of the type.
    pub type_guid: Guid,
    /// Its own GUID.
    pub guid: Guid,
    /// First sector.
    pub first: u64,
    /// Last sector, inclusive.
    pub last: u64,
    /// Attribute bits.
    pub attributes: u64,
    /// Label, at most 36 UTF-16 units.
    pub label: String,
}

impl Table {
    /// An empty table for a disk of `size` bytes.
    ///
    /// # Errors
    /// If the disk is too small.
    pub fn empty(sector: u64, size: u64, guid: Guid) -> Result<Self> {
        let array = (u64::from(ENTRIES) * u64::from(ENTRY)).div_ceil(sector.max(512));
        ensure!(
            sector >= 512 && size / sector > 2 * array + 64,
            "the disk is too small for a GPT"
        );
        let sectors = size / sector;
        Ok(Self {
            sector,
            sectors,
            guid,
            room: ENTRIES,
            first_usable: 2 + array,
            last_usable: last_usable(sectors, array),
            entries: BTreeMap::new(),
            sound: false,
        })
    }

    /// Reads the table of a disk of `size` bytes: the primary copy, or the backup if that is damaged.
    ///
    /// # Errors
    /// If neither copy is valid; the error is that of the primary.
    pub fn read(disk: &File, sector: u64, size: u64) -> Result<Self> {
        ensure!(
            sector >= 512 && size >= 64 * sector,
            "the disk is too small for a GPT"
        );
        let sectors = size / sector;
        let primary = copy(disk, sector, sectors, 1);
        let backup = copy(disk, sector, sectors, sectors - 1);
        match (primary, backup) {
            (Ok(mut table), backup) => {
                table.sound = backup.is_ok_and(|other| other.entries == table.entries)
                    && table.last_usable == last_usable(sectors, table.array_sectors());
                Ok(table)
            }
            (Err(_), Ok(table)) => Ok(table),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// Bytes of the disk.
    #[cfg(test)]
    pub const fn size(&self) -> u64 {
        self.sectors * self.sector
    }

    /// Makes the room at the end of a grown disk usable; [`Table::write`] puts the backup there.
    pub fn grow(&mut self) {
        let last = last_usable(self.sectors, self.array_sectors());
        self.last_usable = self.last_usable.max(last);
    }

    /// Where the backup of this table, as it was read, lies if the disk has grown since: bytes of the disk that no partition
    /// has and nothing reads any more.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub fn left_behind(&self, disk: &File) -> Result<Option<Range<u64>>> {
        let header = (self.last_usable + 1 + self.array_sectors()) * self.sector;
        if header + self.sector >= self.sectors * self.sector {
            return Ok(None);
        }
        let mut signature = [0; SIGNATURE.len()];
        disk.read_exact_at(&mut signature, header)
            .context("reading where the backup of the GPT was")?;
        let range = (self.last_usable + 1) * self.sector..header + self.sector;
        Ok((signature == *SIGNATURE).then_some(range))
    }

    /// The bytes of a disk that hold the MBR and both copies of a GPT of the usual size: what wiping a table overwrites.
    pub fn places(sector: u64, size: u64) -> [Range<u64>; 2] {
        let array = (u64::from(ENTRIES) * u64::from(ENTRY)).div_ceil(sector);
        let end = size / sector * sector;
        [
            0..((array + 2) * sector).min(end),
            end.saturating_sub((array + 1) * sector)..end,
        ]
    }

    /// The free stretch (first and last sector, aligned to [`layout::ALIGNMENT`]) behind the last partition.
    pub fn tail(&self) -> (u64, u64) {
        let align = layout::ALIGNMENT / self.sector;
        let after = self.entries.values().map(|e| e.last + 1).max();
        let first = after.unwrap_or(self.first_usable).next_multiple_of(align);
        let last = (self.last_usable + 1) / align * align;
        (first, last.saturating_sub(1))
    }

    /// The lowest number that is not in use.
    pub fn free_number(&self) -> Option<u32> {
        (1..=self.room).find(|number| !self.entries.contains_key(number))
    }

    /// Writes both copies and the protective MBR: the backup first and synced, then the primary, so that a power
    /// cut leaves one valid.
    ///
    /// # Errors
    /// If the disk cannot be written or an entry does not fit the format.
    pub fn write(&self, disk: &File) -> Result<()> {
        let array = self.array()?;
        let last = self.sectors - 1;
        let array_at = last - self.array_sectors();
        disk.write_all_at(&array, array_at * self.sector)?;
        disk.write_all_at(&self.header(&array, last, 1, array_at), last * self.sector)?;
        disk.sync_all().context("syncing the backup table")?;
        disk.write_all_at(&self.protective_mbr(disk)?, 0)?;
        disk.write_all_at(&array, 2 * self.sector)?;
        disk.write_all_at(&self.header(&array, 1, last, 2), self.sector)?;
        disk.sync_all().context("syncing the primary table")
    }

    fn array_sectors(&self) -> u64 {
        (u64::from(self.room) * u64::from(ENTRY)).div_ceil(self.sector)
    }

    fn array(&self) -> Result<Vec<u8>> {
        let mut array = vec![0; usize::try_from(self.array_sectors() * self.sector)?];
        for (number, entry) in &self.entries {
            ensure!(
                (1..=self.room).contains(number),
                "there is no entry {number}"
            );
            ensure!(
                self.first_usable <= entry.first
                    && entry.first <= entry.last
                    && entry.last <= self.last_usable,
                "partition {number} ({:?}) does not fit the disk",
                entry.label
            );
            let at = (number - 1) as usize * ENTRY as usize;
            entry.put(&mut array[at..at + ENTRY as usize])?;
        }
        Ok(array)
    }

    fn header(&self, array: &[u8], here: u64, other: u64, array_at: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER as usize);
        out.extend_from_slice(SIGNATURE);
        for word in [0x0001_0000, HEADER, 0, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [here, other, self.first_usable, self.last_usable] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.guid.to_disk());
        out.extend_from_slice(&array_at.to_le_bytes());
        for word in [
            self.room,
            ENTRY,
            crc32(&array[..self.room as usize * ENTRY as usize]),
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let crc = crc32(&out);
        out[16..20].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Whether the disk's MBR says that there is a GPT: its first partition has the type 0xee.
    #[must_use]
    pub fn is_announced(disk: &File) -> bool {
        let mut mbr = [0; 512];
        let read = disk.read_exact_at(&mut mbr, 0);
        read.is_ok() && mbr[450] == 0xee && mbr[510..] == [0x55, 0xaa]
    }

    /// One partition of type 0xee over the whole disk; boot code in the first 440 bytes stays.
    fn protective_mbr(&self, disk: &File) -> Result<[u8; 512]> {
        let mut mbr = [0; 512];
        disk.read_exact_at(&mut mbr, 0)?;
        mbr[446..512].fill(0);
        let covered = u32::try_from(self.sectors - 1).unwrap_or(u32::MAX);
        mbr[447..454].copy_from_slice(&[0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
        mbr[454..458].copy_from_slice(&1u32.to_le_bytes());
        mbr[458..462].copy_from_slice(&covered.to_le_bytes());
        mbr[510..].copy_from_slice(&[0x55, 0xaa]);
        Ok(mbr)
    }
}

impl Entry {
    fn put(&self, out: &mut [u8]) -> Result<()> {
        let label: Vec<u16> = self.label.encode_utf16().collect();
        ensure!(
            label.len() <= 36,
            "the label {:?} is longer than 36 characters",
            self.label
        );
        out[..16].copy_from_slice(&self.type_guid.to_disk());
        out[16..32].copy_from_slice(&self.guid.to_disk());
        for (at, word) in [(32, self.first), (40, self.last), (48, self.attributes)] {
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        for (at, unit) in label.iter().enumerate() {
            out[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
        }
        Ok(())
    }

    fn get(bytes: &[u8]) -> Option<Self> {
        let type_guid = guid(bytes, 0);
        if type_guid.0 == [0; 16] {
            return None;
        }
        let label: Vec<u16> = bytes[56..ENTRY as usize]
            .chunks_exact(2)
            .map(|unit| u16::from_le_bytes([unit[0], unit[1]]))
            .take_while(|unit| *unit != 0)
            .collect();
        Some(Self {
            type_guid,
            guid: guid(bytes, 16),
            first: long(bytes, 32),
            last: long(bytes, 40),
            attributes: long(bytes, 48),
            label: String::from_utf16_lossy(&label),
        })
    }
}

/// Reads the copy whose header is in sector `at`.
fn copy(disk: &File, sector: u64, sectors: u64, at: u64) -> Result<Table> {
    let mut header = vec![0; usize::try_from(sector)?];
    disk.read_exact_at(&mut header, at * sector)
        .context("reading the GPT header")?;
    if header[..8] != *SIGNATURE {
        bail!(
            "no GPT: expected {SIGNATURE:02x?}, found {:02x?}",
            &header[..8]
        );
    }
    let length = word(&header, 12) as usize;
    ensure!(
        (HEADER as usize..=header.len()).contains(&length),
        "GPT header of {length} bytes"
    );
    let crc = word(&header, 16);
    header[16..20].fill(0);
    ensure!(
        crc == crc32(&header[..length]),
        "GPT header with a wrong checksum"
    );
    ensure!(
        long(&header, 24) == at,
        "GPT header that belongs in another sector"
    );
    let (room, size) = (word(&header, 80), word(&header, 84));
    ensure!(
        size == ENTRY,
        "GPT entries of {size} bytes; known are {ENTRY}"
    );
    ensure!(
        (1..=4096).contains(&room),
        "GPT with room for {room} entries"
    );
    let array_at = long(&header, 72);
    ensure!(array_at < sectors, "GPT entries beyond the disk's end");
    let mut array = vec![0; room as usize * ENTRY as usize];
    disk.read_exact_at(&mut array, array_at * sector)
        .context("reading the GPT entries")?;
    ensure!(
        word(&header, 88) == crc32(&array),
        "GPT entries with a wrong checksum"
    );
    Ok(Table {
        sector,
        sectors,
        guid: guid(&header, 56),
        room,
        first_usable: long(&header, 40),
        last_usable: long(&header, 48),
        entries: (1..)
            .zip(array.chunks_exact(ENTRY as usize))
            .filter_map(|(number, bytes)| Some((number, Entry::get(bytes)?)))
            .collect(),
        sound: false,
    })
}

const fn last_usable(sectors: u64, array_sectors: u64) -> u64 {
    sectors - 2 - array_sectors
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn guid(bytes: &[u8], at: usize) -> Guid {
    let mut out = [0; 16];
    out.copy_from_slice(&bytes[at..at + 16]);
    Guid::from_disk(out)
}

/// CRC-32 as Ethernet and GPT use it (reflected polynomial 0xedb88320).
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0_u32; 256];
        let (mut at, mut first) = (0, 0);
        while at < 256 {
            let (mut value, mut bit) = (first, 0);
            while bit < 8 {
                value = if value & 1 == 1 {
                    value >> 1 ^ 0xedb8_8320
                } else {
                    value >> 1
                };
                bit += 1;
            }
            table[at] = value;
            at += 1;
            first += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| {
        crc >> 8 ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::table as sample;

    fn file(size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn crc_of_the_standard_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_table_round_trips_with_gaps_and_either_copy_damaged() {
        for sector in [512, 4096] {
            let size = 64 << 20;
            let (table, disk) = (sample(sector, size), file(size));
            table.write(&disk).unwrap();
            assert_eq!(Table::read(&disk, sector, size).unwrap(), table);
            for damaged in [sector, size - sector] {
                table.write(&disk).unwrap();
                disk.write_all_at(b"x", damaged + 60).unwrap();
                let read = Table::read(&disk, sector, size).unwrap();
                assert!(!read.sound);
                assert_eq!(read.entries, table.entries);
            }
            disk.write_all_at(b"x", sector + 60).unwrap();
            assert!(Table::read(&disk, sector, size).is_err());
        }
    }

    #[test]
    fn a_grown_disk_gets_its_backup_at_the_new_end() {
        let disk = file(64 << 20);
        sample(512, 64 << 20).write(&disk).unwrap();
        disk.set_len(128 << 20).unwrap();
        let mut table = Table::read(&disk, 512, 128 << 20).unwrap();
        assert!(!table.sound);
        table.grow();
        assert_eq!(table.tail(), (4 * 2048, 127 * 2048 - 1));
        table.write(&disk).unwrap();
        let read = Table::read(&disk, 512, 128 << 20).unwrap();
        assert!(read.sound);
        assert_eq!(read.entries, table.entries);
        assert_eq!(read.free_number(), Some(2));
    }

    #[test]
    fn a_partition_beyond_the_end_is_not_written() {
        let mut table = sample(512, 64 << 20);
        table.entries.get_mut(&3).unwrap().last = table.sectors;
        assert!(table.write(&file(64 << 20)).is_err());
    }

    #[test]
    fn damaged_tables_are_refused_or_hold_together() {
        let (sector, size) = (512, 2 << 20);
        let disk = file(size);
        let mut table = sample(sector, size);
        table
            .entries
            .retain(|_, entry| entry.last <= table.last_usable);
        table.write(&disk).unwrap();
        let mut bytes = vec![0; 34 * 512];
        disk.read_exact_at(&mut bytes, 0).unwrap();
        crate::fuzz::run(&[bytes], |bytes, random| {
            bytes.resize(34 * 512, 0);
            // With correct checksums the damage passes the first checks.
            if random.below(3) > 0 {
                let count = usize::try_from(word(bytes, 512 + 80)).unwrap();
                let each = usize::try_from(word(bytes, 512 + 84)).unwrap();
                let end = count
                    .saturating_mul(each)
                    .saturating_add(1024)
                    .min(bytes.len());
                let sum = crc32(&bytes[1024..end]);
                bytes[512 + 88..512 + 92].copy_from_slice(&sum.to_le_bytes());
                bytes[512 + 16..512 + 20].fill(0);
                let length = usize::try_from(word(bytes, 512 + 12)).unwrap().min(512);
                let sum = crc32(&bytes[512..512 + length]);
                bytes[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
            }
            disk.write_all_at(bytes, 0).unwrap();
            if let Ok(mut table) = Table::read(&disk, sector, size) {
                table.grow();
                table.tail();
                table.free_number();
            }
        });
    }
}
