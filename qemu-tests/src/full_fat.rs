//! A FAT32 without a free cluster.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

#[cfg(test)]
mod tests;

/// The entry of a cluster that ends a file.
const END: u32 = 0x0fff_ffff;
/// The free clusters' number of a file system that has not counted them.
const UNKNOWN: u32 = u32::MAX;
/// Offset of that number in the information sector.
const FREE_COUNT: u64 = 488;

/// A FAT32 whose free clusters are taken, each as a file of one cluster that is in no folder
/// (Microsoft's "FAT32 File System Specification" 1.03).
#[derive(Debug)]
pub struct FullFat {
    disk: File,
    /// First byte of each copy of the table.
    tables: Vec<u64>,
    /// First byte of the information sector.
    information: u64,
    taken: Vec<u64>,
}

impl FullFat {
    /// Fills the file system that begins at byte `start` of a disk.
    ///
    /// # Errors
    /// If there is none, it is full already, or the disk cannot be written.
    pub fn fill(disk: &Path, start: u64) -> Result<Self> {
        let disk = OpenOptions::new()
            .read(true)
            .write(true)
            .open(disk)
            .with_context(|| format!("opening {}", disk.display()))?;
        let mut boot = [0; 512];
        disk.read_exact_at(&mut boot, start)?;
        ensure!(&boot[82..87] == b"FAT32", "no FAT32 at byte {start}");
        let word = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        let long = |at: usize| word(at) | word(at + 2) << 16;
        let (sector, reserved, copies) = (word(11), word(14), u64::from(boot[16]));
        let (sectors, of_table) = (long(32), long(36));
        let clusters = (sectors - reserved - copies * of_table) / u64::from(boot[13]);
        let table = |copy| start + (reserved + copy * of_table) * sector;
        let mut full = Self {
            tables: (0..copies).map(table).collect(),
            information: start + word(48) * sector,
            taken: Vec::new(),
            disk,
        };
        let first = *full.tables.first().context("a FAT32 without a table")?;
        let mut entries = vec![0; usize::try_from((clusters + 2) * 4)?];
        full.disk.read_exact_at(&mut entries, first)?;
        let of_files = (2..).zip(entries.chunks_exact(4).skip(2));
        let free = of_files.filter(|(_, entry)| *entry == [0; 4]);
        full.taken = free.map(|(number, _)| number).collect();
        ensure!(!full.taken.is_empty(), "the file system is full already");
        full.set(END)?;
        Ok(full)
    }

    /// Gives the clusters back.
    ///
    /// # Errors
    /// If the disk cannot be written.
    pub fn free(self) -> Result<()> {
        self.set(0)
    }

    fn set(&self, entry: u32) -> Result<()> {
        for table in &self.tables {
            for cluster in &self.taken {
                self.disk
                    .write_all_at(&entry.to_le_bytes(), table + cluster * 4)?;
            }
        }
        let count = self.information + FREE_COUNT;
        Ok(self.disk.write_all_at(&UNKNOWN.to_le_bytes(), count)?)
    }
}
