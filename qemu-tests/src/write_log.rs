//! Power cuts: the log of a machine's writes, as QEMU's `blklogwrites` records it, replayed onto a copy of its disks up to
//! any entry.
//!
//! The format is that of the kernel's `dm-log-writes` (`Documentation/admin-guide/device-mapper/log-writes.rst`): a sector
//! with the superblock, then for each write a sector that describes it, and its data behind it. Whole numbers are little
//! endian.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FallocateFlags, fallocate};

const MAGIC: u64 = u64::from_le_bytes(*b"rhswfsj\0");
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes copied at a time.
const PIECE: u64 = 1 << 20;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Bytes were written: offset in the log, offset on the disk, count.
    Written { from: u64, at: u64, size: u64 },
    /// Bytes were discarded: offset on the disk, count.
    Discarded { at: u64, size: u64 },
    /// All earlier writes are on the disk.
    Flushed,
}

/// A log of writes.
#[derive(Debug)]
pub struct Writes {
    record: File,
    operations: Vec<Operation>,
}

impl Writes {
    /// Reads a log.
    ///
    /// # Errors
    /// If it cannot be read or is not such a log.
    pub fn open(path: &Path) -> Result<Self> {
        let record = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let operations = read(&record).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { record, operations })
    }

    /// The points after each flush that followed a write, and the points halfway between two of them; as numbers of
    /// operations, in order.
    #[must_use]
    pub fn moments(&self) -> Vec<usize> {
        let mut moments = Vec::new();
        let mut last = 0;
        for (number, operation) in self.operations.iter().enumerate() {
            if *operation != Operation::Flushed {
                continue;
            }
            // A flush right after another one adds no point.
            if number > last {
                if number - last > 1 {
                    moments.push(last + (number - last) / 2);
                }
                moments.push(number + 1);
            }
            last = number + 1;
        }
        moments
    }

    /// `count` of the points, spread evenly from the first to the last.
    #[must_use]
    pub fn spread(&self, count: usize) -> Vec<usize> {
        let moments = self.moments();
        if moments.len() <= count {
            return moments;
        }
        let last = count.saturating_sub(1).max(1);
        (0..count)
            .map(|number| moments[number * (moments.len() - 1) / last])
            .collect()
    }

    /// Replays the first `until` operations on a copy of the disks in their state before the log.
    ///
    /// # Errors
    /// If the log cannot be read or the copy cannot be written.
    pub fn replay(&self, until: usize, copy: &File) -> Result<()> {
        for operation in self.operations.iter().take(until) {
            match *operation {
                Operation::Written { from, at, size } => self.write(copy, from, at, size)?,
                Operation::Discarded { at, size } => clear(copy, at, size)?,
                Operation::Flushed => {}
            }
        }
        Ok(())
    }

    fn write(&self, copy: &File, from: u64, at: u64, size: u64) -> Result<()> {
        let mut piece = vec![0; usize::try_from(size.min(PIECE))?];
        let mut copied = 0;
        while copied < size {
            let count = (size - copied).min(PIECE);
            let piece = &mut piece[..usize::try_from(count)?];
            self.record.read_exact_at(piece, from + copied)?;
            // Zeros become a hole, so that the copy stays small.
            match piece.iter().all(|byte| *byte == 0) {
                true => clear(copy, at + copied, count)?,
                false => copy.write_all_at(piece, at + copied)?,
            }
            copied += count;
        }
        Ok(())
    }
}

/// Turns bytes of a file into a hole.
///
/// # Errors
/// If the file system does not support holes.
pub fn clear(copy: &File, at: u64, size: u64) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let (at, size) = (i64::try_from(at)?, i64::try_from(size)?);
    fallocate(copy, how, at, size).context("making a hole in a disk's copy")
}

fn read(record: &File) -> Result<Vec<Operation>> {
    let mut head = [0; 28];
    record.read_exact_at(&mut head, 0)?;
    let long = |bytes: &[u8], at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(eight)
    };
    ensure!(
        long(&head, 0) == MAGIC && long(&head, 8) == VERSION,
        "not a write log of version {VERSION}"
    );
    let mut four = [0; 4];
    four.copy_from_slice(&head[24..28]);
    let sector = u64::from(u32::from_le_bytes(four));
    ensure!(
        sector.is_power_of_two() && sector >= 512,
        "its sector size is {sector} bytes"
    );
    let size = record.metadata()?.len();
    let mut operations = Vec::new();
    let mut next = sector;
    for number in 0..long(&head, 16) {
        let mut entry = [0; 32];
        let reading = || format!("reading entry {number}");
        record
            .read_exact_at(&mut entry, next)
            .with_context(reading)?;
        let flags = long(&entry, 16);
        let bytes = |at: usize| {
            let bytes = long(&entry, at).checked_mul(sector);
            bytes.with_context(|| format!("entry {number} is beyond any disk"))
        };
        let (at, length) = (bytes(0)?, bytes(8)?);
        ensure!(
            flags & !(FLUSH | FUA | DISCARD | MARK) == 0,
            "entry {number} has the flags {flags:#x}"
        );
        next += sector;
        if flags & DISCARD != 0 {
            operations.push(Operation::Discarded { at, size: length });
        } else if length > 0 {
            ensure!(
                next.checked_add(length).is_some_and(|end| end <= size),
                "the data of entry {number} is truncated"
            );
            operations.push(Operation::Written {
                from: next,
                at,
                size: length,
            });
            next += length;
        }
        if flags & (FLUSH | FUA) != 0 {
            operations.push(Operation::Flushed);
        }
    }
    Ok(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log as QEMU writes it: (sector, sectors, flags, byte that fills the data).
    fn record(entries: &[(u64, u64, u64, u8)]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut text = Vec::new();
        for number in [MAGIC, VERSION, entries.len() as u64] {
            text.extend(number.to_le_bytes());
        }
        text.extend(512_u32.to_le_bytes());
        text.resize(512, 0);
        for (sector, sectors, flags, fill) in entries {
            let begin = text.len();
            for number in [*sector, *sectors, *flags, 0] {
                text.extend(number.to_le_bytes());
            }
            text.resize(begin + 512, 0);
            if flags & DISCARD == 0 {
                let data = usize::try_from(*sectors).unwrap() * 512;
                text.resize(text.len() + data, *fill);
            }
        }
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn fills(disk: &File) -> Vec<u8> {
        let mut bytes = vec![0; 8 * 512];
        disk.read_exact_at(&mut bytes, 0).unwrap();
        bytes.chunks(512).map(|sector| sector[511]).collect()
    }

    #[test]
    fn a_log_is_replayed_up_to_a_moment() {
        let record = record(&[
            (0, 2, 0, b'a'),
            (1, 1, 0, b'b'),
            (0, 0, FLUSH, 0),
            (0, 0, FLUSH, 0),
            (2, 3, 0, b'c'),
            (3, 1, DISCARD, 0),
            // QEMU records a write of zeros with zeros as data.
            (0, 1, 0, 0),
            (0, 0, FLUSH, 0),
            (7, 1, FUA, b'd'),
        ]);
        let writes = Writes::open(record.path()).unwrap();
        assert_eq!(writes.moments(), [1, 3, 5, 8, 10]);
        assert_eq!(writes.spread(2), [1, 10]);
        assert_eq!(writes.spread(3), [1, 5, 10]);
        assert_eq!(writes.spread(9), writes.moments());
        let after = |moment: usize| {
            let disk = tempfile::tempfile().unwrap();
            disk.set_len(8 * 512).unwrap();
            disk.write_all_at(&[b'-'; 8 * 512], 0).unwrap();
            writes.replay(moment, &disk).unwrap();
            String::from_utf8(fills(&disk)).unwrap().replace('\0', "0")
        };
        assert_eq!(after(0), "--------");
        assert_eq!(after(1), "aa------");
        assert_eq!(after(3), "ab------");
        assert_eq!(after(5), "abccc---");
        assert_eq!(after(8), "0bc0c---");
        assert_eq!(after(10), "0bc0c--d");
    }

    #[test]
    fn a_damaged_log_is_refused() {
        let good = record(&[(0, 2, 0, b'a'), (0, 0, FLUSH, 0)]);
        let text = std::fs::read(good.path()).unwrap();
        let broken = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut text = text.clone();
            change(&mut text);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            format!("{:#}", Writes::open(file.path()).unwrap_err())
        };
        assert!(broken(&|text| text[0] = 0).contains("not a write log"));
        assert!(broken(&|text| text[24] = 3).contains("sector size"));
        assert!(broken(&|text| text.truncate(1500)).contains("truncated"));
        assert!(broken(&|text| text.truncate(512)).contains("entry 0"));
        assert!(broken(&|text| text[512 + 16] = 0x80).contains("flags"));
        assert!(broken(&|text| text[512 + 15] = 0x80).contains("beyond"));
    }
}
