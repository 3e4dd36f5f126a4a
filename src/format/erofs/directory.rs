//! Folders: blocks of entries, each with its names behind them, sorted by bytes over all blocks.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{BLOCK, Kind};

/// Bytes of an entry.
const ENTRY: usize = 12;

/// A folder's names.
#[derive(Debug)]
pub(super) struct Folder<'a> {
    pub(super) names: Vec<Name<'a>>,
}

/// A name in a folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'a> {
    pub(super) name: &'a [u8],
    /// The place of its node.
    pub(super) node: usize,
    pub(super) kind: u8,
}

const FILE: u8 = 1;
const DIRECTORY: u8 = 2;
const SYMLINK: u8 = 7;

/// The type in an entry (`FT_REG_FILE` and so on).
pub(super) fn kind(kind: &Kind<'_>) -> u8 {
    match kind {
        Kind::Directory => DIRECTORY,
        Kind::Symlink(_) => SYMLINK,
        Kind::File(_) | Kind::HardLink(_) => FILE,
    }
}

impl Folder<'_> {
    /// An empty one: itself and its parent.
    pub(super) fn new(node: usize, parent: usize) -> Self {
        let entry = |name, node| Name {
            name,
            node,
            kind: DIRECTORY,
        };
        Self {
            names: vec![entry(b".".as_slice(), node), entry(b"..", parent)],
        }
    }

    /// # Errors
    /// If two entries have one name.
    pub(super) fn sort(&mut self) -> Result<()> {
        self.names.sort_unstable_by_key(|entry| entry.name);
        for pair in self.names.windows(2) {
            ensure!(
                pair[0].name != pair[1].name,
                "the name {} is twice in one folder",
                Path::new(&*String::from_utf8_lossy(pair[0].name)).display()
            );
        }
        Ok(())
    }

    /// The names of each block.
    fn blocks(&self) -> Vec<&[Name<'_>]> {
        let (mut blocks, mut from, mut size) = (Vec::new(), 0, 0);
        for (at, entry) in self.names.iter().enumerate() {
            let more = ENTRY + entry.name.len();
            if size + more > BLOCK {
                blocks.push(&self.names[from..at]);
                (from, size) = (at, 0);
            }
            size += more;
        }
        blocks.push(&self.names[from..]);
        blocks
    }

    /// Bytes of its content.
    pub(super) fn size(&self) -> usize {
        let blocks = self.blocks();
        let last = blocks.last().map_or(0, |names| {
            names.iter().map(|entry| ENTRY + entry.name.len()).sum()
        });
        (blocks.len() - 1) * BLOCK + last
    }

    /// Its content; `numbers` are those of the inodes, by node.
    pub(super) fn encode(&self, numbers: &[u64]) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(self.size());
        for names in self.blocks() {
            out.resize(out.len().next_multiple_of(BLOCK), 0);
            let mut offset = names.len() * ENTRY;
            for entry in names {
                out.extend_from_slice(&numbers[entry.node].to_le_bytes());
                out.extend_from_slice(&u16::try_from(offset)?.to_le_bytes());
                out.extend_from_slice(&[entry.kind, 0]);
                offset += entry.name.len();
            }
            for entry in names {
                out.extend_from_slice(entry.name);
            }
        }
        Ok(out)
    }
}
