//! The index of a compressed file: an entry for each logical cluster of 4096 bytes, in the compact form.
//!
//! An entry says whether data begins in its cluster and where (a *head*), or how far back its head is. Entries are in packs: two in
//! eight bytes, or, where 32 bytes are aligned, sixteen in 32 bytes; a pack ends with the block from which the blocks of its heads are
//! counted. `z_erofs_load_compact_lcluster` in `fs/erofs/zmap.c` of Linux reads it so.

use anyhow::{Context as _, Result, ensure};

use super::BLOCK;
use super::pack::Extent;

/// Bytes of the header before the entries.
const HEADER: u64 = 8;
/// Bits of an entry that are not its type.
const LOW: u32 = 12;
/// Entries tell how many blocks their data has.
const COUNT: u32 = 1 << 11;
/// Data begins here and is stored as it is.
const PLAIN: u32 = 0;
/// Data begins here.
const HEAD: u32 = 1;
/// Data began before.
const NEXT: u32 = 2;
/// There are packs of 32 bytes; data has more than one block. Compact indexes want the third with the second.
const ADVICE: u16 = 1 | 2 | 4;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Head {
        plain: bool,
        /// Where in the logical cluster its content begins.
        offset: u32,
        /// The first block of its data; none where the file ends, whose last entry is a head without data.
        block: Option<u32>,
        blocks: u32,
    },
    Next {
        /// How many entries before this one its head is.
        back: u32,
        /// How many entries behind this one the next head is.
        forward: u32,
        /// Blocks of its data.
        blocks: u32,
    },
}

/// Bytes of the index of a file of `size` bytes whose inode and attributes end at `end`.
pub(super) fn size(end: u64, size: u64) -> u64 {
    let entries = size.div_ceil(BLOCK as u64);
    let start = end.next_multiple_of(HEADER) + HEADER;
    let (few, many) = packs(start, entries);
    let small = few.next_multiple_of(2) + (entries - few - many).next_multiple_of(2);
    start - end + small * 4 + many * 2
}

/// Of the entries at `start`: how many are in small packs before the first large one, and how many in large ones.
fn packs(start: u64, entries: u64) -> (u64, u64) {
    let few = (32 - start % 32) / 4 % 8;
    if few >= entries {
        (entries, 0)
    } else {
        (few, (entries - few) / 16 * 16)
    }
}

/// The index of a file of `size` bytes whose data begins at `block` and is stored as the extents say. The inode and the attributes end
/// at `end`, which counts from the start of a block.
///
/// # Errors
/// If the extents are not the file's.
pub(super) fn encode(
    end: u64,
    size: u64,
    block: u32,
    extents: &[Extent],
    algorithm: u8,
) -> Result<Vec<u8>> {
    let entries = entries(size, block, extents)?;
    let start = end.next_multiple_of(HEADER) + HEADER;
    let mut out = vec![0; usize::try_from(start - HEADER - end)?];
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&ADVICE.to_le_bytes());
    // Logical clusters of one block.
    out.extend_from_slice(&[algorithm, 0]);
    let (few, many) = packs(start, entries.len() as u64);
    let (few, rest) = entries.split_at(usize::try_from(few)?);
    let (many, rest) = rest.split_at(usize::try_from(many)?);
    for part in few.chunks(2) {
        pack(part, 2, 8, &mut out)?;
    }
    for part in many.chunks(16) {
        pack(part, 16, 32, &mut out)?;
    }
    for part in rest.chunks(2) {
        pack(part, 2, 8, &mut out)?;
    }
    Ok(out)
}

/// The entries of all logical clusters.
fn entries(size: u64, mut block: u32, extents: &[Extent]) -> Result<Vec<Entry>> {
    let cluster = |at: u64| at / BLOCK as u64;
    let offset = |at: u64| u32::try_from(at % BLOCK as u64).unwrap_or(0);
    let count = cluster(size + BLOCK as u64 - 1);
    let mut entries = Vec::with_capacity(usize::try_from(count)?);
    let mut at = 0;
    for extent in extents {
        let head = entries.len() as u64;
        ensure!(cluster(at) == head, "two heads in one logical cluster");
        let end = at + u64::from(extent.length);
        let blocks = u32::from(extent.blocks);
        entries.push(Entry::Head {
            plain: extent.plain,
            offset: offset(at),
            block: Some(block),
            blocks,
        });
        // The next head, or the end of the file, which has an entry of its own unless it is the end of a logical cluster.
        let next = cluster(end);
        ensure!(
            next > head + 1 || blocks == 1,
            "data of several blocks with one entry"
        );
        for entry in head + 1..next {
            entries.push(Entry::Next {
                back: u32::try_from(entry - head)?,
                forward: u32::try_from(next - entry)?,
                blocks,
            });
        }
        block = block.checked_add(blocks).context("more than 16 TiB")?;
        at = end;
    }
    ensure!(at == size, "{at} bytes are stored of {size}");
    if (entries.len() as u64) < count {
        entries.push(Entry::Head {
            plain: true,
            offset: offset(size),
            block: None,
            blocks: 0,
        });
    }
    ensure!(entries.len() as u64 == count, "an entry is missing");
    Ok(entries)
}

/// Writes a pack for `count` entries in `bytes` bytes.
fn pack(entries: &[Entry], count: usize, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
    let width = (bytes - 4) * 8 / count;
    let (mut bits, mut at) = ([0_u64; 4], 0);
    // The block of the first head, less what is counted before it.
    let (mut base, mut counted) = (None, 0_u32);
    for place in 0..count {
        let value = match entries.get(place) {
            None => 0,
            Some(Entry::Head {
                plain,
                offset,
                block,
                blocks,
            }) => {
                if let Some(block) = block {
                    let base = *base.get_or_insert(block.wrapping_sub(counted));
                    ensure!(
                        base.wrapping_add(counted) == *block,
                        "the data of a file is not in one piece"
                    );
                    // Data with more entries is counted by the next one.
                    let single =
                        !matches!(entries.get(place + 1), Some(Entry::Next { back: 1, .. }));
                    if single {
                        counted += blocks.min(&1);
                    }
                }
                (if *plain { PLAIN } else { HEAD }) << LOW | offset
            }
            Some(Entry::Next {
                back,
                forward,
                blocks,
            }) => {
                let low = if *back == 1 {
                    counted += blocks;
                    COUNT | blocks
                } else if place + 1 == count {
                    *forward
                } else {
                    *back
                };
                ensure!(*back == 1 || low < COUNT, "too much content in one cluster");
                NEXT << LOW | low
            }
        };
        let value = u64::from(value);
        bits[at / 64] |= value << (at % 64);
        if at % 64 + width > 64 {
            bits[at / 64 + 1] |= value >> (64 - at % 64);
        }
        at += width;
    }
    let all: Vec<u8> = bits.iter().flat_map(|word| word.to_le_bytes()).collect();
    out.extend_from_slice(&all[..bytes - 4]);
    out.extend_from_slice(&base.unwrap_or(0).to_le_bytes());
    Ok(())
}
