//! Reads a disk in QEMU's format as if it were raw.
//!
//! Format: QEMU's `docs/interop/qcow2.rst`. Compressed clusters, backing files and encryption are not supported: the
//! tool writes none of them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

/// The first bytes of a qcow2 file.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
/// Size limit of the first table, bytes: that of QEMU.
const TABLE: u64 = 32 << 20;
/// Where version 3 has the features that a reader must know.
const FEATURES: u64 = 72;
/// Those that decide nothing about where content is: reference counts that are out of date, and how compressed clusters are compressed.
const HARMLESS: u64 = 1 | 1 << 3;
/// The others: the metadata is damaged, the content is in another file, entries of 16 bytes.
const HARMFUL: [(u64, &str); 3] = [
    (1 << 1, "whose metadata is marked as damaged"),
    (1 << 2, "whose content is in another file"),
    (1 << 4, "with subclusters (extended_l2)"),
];

/// A qcow2 disk, read through its tables.
#[derive(Debug)]
pub struct Disk {
    file: File,
    size: u64,
    bits: u32,
    first: Vec<u64>,
    position: u64,
}

impl Disk {
    /// Opens a qcow2 file.
    ///
    /// # Errors
    /// When the file is not a qcow2 disk, or uses an unsupported feature.
    pub fn open(file: File) -> Result<Self> {
        let mut header = [0; 72];
        file.read_exact_at(&mut header, 0)
            .context("reading the qcow2 header")?;
        ensure!(header[..4] == MAGIC, "no qcow2 disk");
        let long = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let quad = |at: usize| u64::from(long(at)) << 32 | u64::from(long(at + 4));
        ensure!(
            matches!(long(4), 2 | 3) && quad(8) == 0 && long(32) == 0,
            "a qcow2 disk with a backing file or encryption; convert it to a raw disk first"
        );
        let bits = long(20);
        ensure!(
            (9..=21).contains(&bits),
            "a qcow2 disk with clusters of 2^{bits} bytes"
        );
        let length = u64::from(long(36)) * 8;
        // Before it takes memory.
        ensure!(
            length <= TABLE,
            "a qcow2 disk with a table of {length} bytes"
        );
        if long(4) == 3 {
            check_features(&file)?;
        }
        let mut table = vec![0; usize::try_from(length)?];
        file.read_exact_at(&mut table, quad(40))
            .context("reading the qcow2 table")?;
        Ok(Self {
            file,
            size: quad(24),
            bits,
            first: entries(&table),
            position: 0,
        })
    }

    /// Offset in the file of a byte of the disk; `None` for zeros.
    fn place(&self, at: u64) -> io::Result<Option<u64>> {
        let in_table = self.bits - 3;
        let broken = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        let index = usize::try_from(at >> (self.bits + in_table)).map_err(io::Error::other)?;
        let table = self.first.get(index).copied().unwrap_or(0) & OFFSET;
        if table == 0 {
            return Ok(None);
        }
        let mut entry = [0; 8];
        let slot = at >> self.bits & ((1 << in_table) - 1);
        self.file.read_exact_at(&mut entry, table + 8 * slot)?;
        let entry = u64::from_be_bytes(entry);
        if entry & COMPRESSED != 0 {
            return Err(broken(
                "a compressed qcow2 disk; convert it to a raw disk first",
            ));
        }
        let cluster = entry & OFFSET;
        Ok((cluster != 0 && entry & ZERO == 0).then_some(cluster + at % (1 << self.bits)))
    }
}

/// Refuses features by which the tables do not say where content is: it would be read wrongly, without an error.
fn check_features(file: &File) -> Result<()> {
    let mut field = [0; 8];
    file.read_exact_at(&mut field, FEATURES)
        .context("reading the qcow2 header")?;
    let features = u64::from_be_bytes(field) & !HARMLESS;
    let known = HARMFUL.iter().find(|(bit, _)| features & bit != 0);
    let what = known.map(|(_, what)| (*what).to_owned());
    let what = what.unwrap_or_else(|| format!("with unknown features ({features:#x})"));
    ensure!(
        features == 0,
        "a qcow2 disk {what}; convert it to a raw disk first"
    );
    Ok(())
}

fn entries(table: &[u8]) -> Vec<u64> {
    let (entries, _) = table.as_chunks();
    entries
        .iter()
        .map(|entry| u64::from_be_bytes(*entry))
        .collect()
}

impl Read for Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = (1u64 << self.bits) - self.position % (1 << self.bits);
        let want = rest.min(self.size.saturating_sub(self.position));
        let want = usize::try_from(want)
            .map_err(io::Error::other)?
            .min(buffer.len());
        let buffer = &mut buffer[..want];
        match self.place(self.position)? {
            Some(at) => self.file.read_exact_at(buffer, at)?,
            None => buffer.fill(0),
        }
        self.position += want as u64;
        Ok(want)
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.size, by),
            SeekFrom::Current(by) => (self.position, by),
        };
        self.position = base
            .checked_add_signed(by)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

/// The reader of partition tables requires a writable device. This implementation refuses every write.
impl Write for Disk {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `qemu-img create -o extended_l2=on`, and `-o data_file=…`, write it.
    #[test]
    fn features_by_which_content_is_elsewhere_are_refused() {
        let open = |version: u8, features: u64| {
            let mut header = [0; 104];
            header[..4].copy_from_slice(&MAGIC);
            header[7] = version;
            header[23] = 16;
            header[72..80].copy_from_slice(&features.to_be_bytes());
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&header).unwrap();
            Disk::open(file).map_err(|error| error.to_string())
        };
        for (features, words) in [
            (1 << 4, "with subclusters (extended_l2)"),
            (1 << 2, "whose content is in another file"),
            (1 << 1 | 1, "marked as damaged"),
            (1 << 9, "with unknown features (0x200)"),
        ] {
            let error = open(3, features).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        // Left open by a QEMU that was killed; and what version 2 has there is no field.
        assert!(open(3, 1).is_ok() && open(3, 1 << 3).is_ok() && open(2, 1 << 4).is_ok());
    }

    #[test]
    fn a_table_that_is_too_large_takes_no_memory() {
        let mut header = [0; 72];
        header[..4].copy_from_slice(&MAGIC);
        header[7] = 3;
        header[23] = 16;
        // 32 GiB, which a host may have no memory for.
        header[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header).unwrap();
        let error = Disk::open(file).unwrap_err().to_string();
        assert_eq!(error, "a qcow2 disk with a table of 34359738360 bytes");
    }
}
