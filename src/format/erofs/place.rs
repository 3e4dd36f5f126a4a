//! Where each inode lies: in the order of the nodes, and small ones in the gaps that are left where an end would have crossed a block.

use anyhow::{Context as _, Result};

use super::inode::Inode;
use super::{BLOCK, BLOCK_BYTES};

/// The unit of an inode's number, bytes.
const SLOT: usize = 32;
/// How many gaps are remembered; older ones stay empty.
const GAPS: usize = 64;

/// The places of all inodes, in bytes from the first block of the metadata.
#[derive(Debug)]
pub(super) struct Placed {
    /// By inode: where it begins.
    pub(super) inodes: Vec<usize>,
    /// By inode: its number, which counts from a block before the metadata, so that none is zero: that means a deleted name.
    pub(super) nids: Vec<u64>,
    /// By inode: where its blocks begin, if it is a folder with blocks.
    folders: Vec<usize>,
    /// The bytes of all, whole blocks.
    pub(super) size: usize,
    /// The first block of the metadata.
    first: u32,
}

impl Placed {
    /// Where the blocks of a folder begin.
    pub(super) fn folder(&self, inode: usize) -> usize {
        self.folders[inode]
    }

    /// The same as a block of the file system.
    pub(super) fn block(&self, inode: usize) -> Result<u32> {
        let block = u64::from(self.first) + self.folders[inode] as u64 / BLOCK_BYTES;
        u32::try_from(block).context("more than 16 TiB")
    }
}

/// Places all inodes; the first block of the metadata is `first`.
///
/// # Errors
/// If an index is too long for this machine.
pub(super) fn all(inodes: &[Inode<'_>], first: u32) -> Result<Placed> {
    let mut placed = Placed {
        inodes: Vec::with_capacity(inodes.len()),
        nids: Vec::with_capacity(inodes.len()),
        folders: Vec::with_capacity(inodes.len()),
        size: 0,
        first,
    };
    let mut room = Room::default();
    for inode in inodes {
        let at = room.take(inode.header.size() + inode.index()?, inode.tail());
        placed.inodes.push(at);
        placed.nids.push(((at + BLOCK) / SLOT) as u64);
    }
    placed.size = room.end.next_multiple_of(BLOCK);
    for inode in inodes {
        placed.folders.push(placed.size);
        placed.size += inode.blocks() * BLOCK;
    }
    Ok(placed)
}

/// The part that is not taken.
#[derive(Debug, Default)]
struct Room {
    /// Behind the last inode, a whole number of slots.
    end: usize,
    /// Gaps before it: where they begin and end.
    gaps: Vec<(usize, usize)>,
}

impl Room {
    /// A place for so many bytes, of which the last `tail` lie in one block.
    fn take(&mut self, head: usize, tail: usize) -> usize {
        let size = (head + tail).next_multiple_of(SLOT);
        let fits =
            |from: usize| tail == 0 || (from + head) / BLOCK == (from + head + tail - 1) / BLOCK;
        let found = (self.gaps.iter()).position(|(from, end)| end - from >= size && fits(*from));
        if let Some(found) = found {
            let (from, end) = self.gaps[found];
            if end - from == size {
                self.gaps.remove(found);
            } else {
                self.gaps[found].0 = from + size;
            }
            return from;
        }
        let mut from = self.end;
        if !fits(from) {
            from = from.next_multiple_of(BLOCK);
            if self.gaps.len() == GAPS {
                self.gaps.remove(0);
            }
            self.gaps.push((self.end, from));
        }
        self.end = from + size;
        from
    }
}
