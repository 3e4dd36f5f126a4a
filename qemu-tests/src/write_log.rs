//! Power cuts: the log of a machine's writes, as QEMU's `blklogwrites` records it, replayed onto a copy of its disks up to
//! any entry.
//!
//! The format is that of the kernel's `dm-log-writes` (`Documentation/admin-guide/device-mapper/log-writes.rst`): a sector
//! with the superblock, then for each write a sector that describes it, and its data behind it. Whole numbers are little
//! endian.
//!
//! A disk with a volatile cache may do the writes between two flushes in any order, so a cut also loses any of them, or tears
//! one between two sectors: [`Writes::replay_losing`].

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FallocateFlags, fallocate};

use crate::random::Random;

#[cfg(test)]
mod tests;

const MAGIC: u64 = u64::from_le_bytes(*b"rhswfsj\0");
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes that a disk writes whole or not at all.
const SECTOR: u64 = 512;
/// Bytes copied at a time.
const PIECE: u64 = 1 << 20;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Bytes were written: offset in the log, offset on the disk, count; whether they were on the disk at the end of the
    /// write, past its cache (force unit access).
    Written {
        from: u64,
        at: u64,
        size: u64,
        forced: bool,
    },
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
    /// For each entry the number of operations up to its end.
    ends: Vec<usize>,
}

/// How many writes and discards that were not flushed a cut left alone, lost, or tore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Done.
    pub done: usize,
    /// Not done.
    pub lost: usize,
    /// Writes of which some sectors are done.
    pub torn: usize,
}

impl Writes {
    /// Reads a log.
    ///
    /// # Errors
    /// If it cannot be read or is not such a log.
    pub fn open(path: &Path) -> Result<Self> {
        let record = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let (operations, ends) =
            read(&record).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self {
            record,
            operations,
            ends,
        })
    }

    /// Number of all operations.
    #[must_use]
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// Number of operations in the first `entries` entries of the log.
    #[must_use]
    pub fn operations_of(&self, entries: usize) -> usize {
        let last = entries.min(self.ends.len()).checked_sub(1);
        last.map_or(0, |last| self.ends[last])
    }

    /// Number of operations that were on the disk for certain, whatever it does with its cache, when the power was cut after
    /// the first `until`.
    #[must_use]
    pub fn flushed(&self, until: usize) -> usize {
        let flush = |operation: &Operation| *operation == Operation::Flushed;
        let last = self.operations[..until].iter().rposition(flush);
        last.map_or(0, |last| last + 1)
    }

    /// Number of writes to a range of bytes.
    #[must_use]
    pub fn writes_to(&self, range: &Range<u64>) -> usize {
        let to = |operation: &&Operation| matches!(operation, Operation::Written { at, .. } if range.contains(at));
        self.operations.iter().filter(to).count()
    }

    /// For each flush that followed a write, the number of operations before it.
    #[must_use]
    pub fn flushes(&self) -> Vec<usize> {
        let flushed = |number: &usize| self.operations[*number] == Operation::Flushed;
        (1..self.operations.len())
            .filter(|number| flushed(number) && !flushed(&(number - 1)))
            .collect()
    }

    /// The points after each flush that followed a write, and the points halfway between two of them; as numbers of
    /// operations, in order.
    #[must_use]
    pub fn moments(&self) -> Vec<usize> {
        let mut moments = Vec::new();
        let mut last = 0;
        for (number, operation) in self.operations.iter().enumerate() {
            if !operation.settles() {
                continue;
            }
            // A forced write settles itself; a flush right after another one adds no point.
            let settled = number - last + usize::from(*operation != Operation::Flushed);
            if settled > 1 {
                moments.push(last + settled / 2);
            }
            if settled > 0 {
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

    /// The points right after each write to a range of bytes, as numbers of operations, in order.
    #[must_use]
    pub fn moments_in(&self, range: &Range<u64>) -> Vec<usize> {
        let to = |operation: &Operation| matches!(operation, Operation::Written { at, .. } if range.contains(at));
        let numbers = self.operations.iter().enumerate();
        numbers
            .filter(|(_, operation)| to(operation))
            .map(|(number, _)| number + 1)
            .collect()
    }

    /// Replays these operations on a copy of the disks in their state before the first of them.
    ///
    /// # Errors
    /// If the log cannot be read or the copy cannot be written.
    pub fn replay(&self, range: Range<usize>, copy: &File) -> Result<()> {
        for operation in &self.operations[range] {
            self.operate(operation, copy)?;
        }
        Ok(())
    }

    fn operate(&self, operation: &Operation, copy: &File) -> Result<()> {
        match *operation {
            Operation::Written { from, at, size, .. } => self.write(copy, from, at, size),
            Operation::Discarded { at, size } => clear(copy, at, size),
            Operation::Flushed => Ok(()),
        }
    }

    /// As [`Writes::replay`], for a disk that lost its power with all of this in its cache: each write is done, lost, or done
    /// in some of its sectors, as `random` says. Flushes among them are ignored; what was forced is done.
    ///
    /// The order of the writes stays: of two of the same sector a disk has the later one, the earlier one or none, and
    /// another order gives no fourth content.
    ///
    /// # Errors
    /// If the log cannot be read or the copy cannot be written.
    pub fn replay_losing(
        &self,
        range: Range<usize>,
        random: &mut Random,
        copy: &File,
    ) -> Result<Fates> {
        let mut fates = Fates::default();
        for operation in &self.operations[range] {
            match *operation {
                Operation::Flushed => continue,
                Operation::Written { forced: true, .. } => {}
                Operation::Written { from, at, size, .. } => match random.below(3) {
                    0 => {}
                    1 => {
                        fates.lost += 1;
                        continue;
                    }
                    _ => {
                        fates.torn += 1;
                        self.tear(copy, from..from + size, at, random)?;
                        continue;
                    }
                },
                Operation::Discarded { .. } if random.coin() => {
                    fates.lost += 1;
                    continue;
                }
                Operation::Discarded { .. } => {}
            }
            fates.done += 1;
            self.operate(operation, copy)?;
        }
        Ok(fates)
    }

    /// Writes about every second sector of a range of the log.
    fn tear(&self, copy: &File, from: Range<u64>, at: u64, random: &mut Random) -> Result<()> {
        let mut done = 0;
        while from.start + done < from.end {
            let count = SECTOR.min(from.end - from.start - done);
            if random.coin() {
                self.write(copy, from.start + done, at + done, count)?;
            }
            done += count;
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

impl Operation {
    /// Whether a disk has something for certain after it that it may not have had before.
    fn settles(self) -> bool {
        matches!(self, Self::Flushed | Self::Written { forced: true, .. })
    }
}

/// Number of entries that a log has so far, by its superblock: up to the last flush at least.
///
/// # Errors
/// If it cannot be read.
pub fn entries(path: &Path) -> Result<usize> {
    let mut count = [0; 8];
    File::open(path)
        .and_then(|record| record.read_exact_at(&mut count, 16))
        .with_context(|| format!("reading {}", path.display()))?;
    Ok(usize::try_from(u64::from_le_bytes(count))?)
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

/// The operations, and for each entry the number of operations up to its end.
fn read(record: &File) -> Result<(Vec<Operation>, Vec<usize>)> {
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
    let (mut operations, mut ends) = (Vec::new(), Vec::new());
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
        // Of a write with both, the flush is the first.
        if flags & FLUSH != 0 {
            operations.push(Operation::Flushed);
        }
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
                forced: flags & FUA != 0,
            });
            next += length;
        }
        ends.push(operations.len());
    }
    Ok((operations, ends))
}
