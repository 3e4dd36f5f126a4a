//! Inodes with what follows them: extended attributes, then the index of a compressed file or the end of any other.

use anyhow::{Context as _, Result, bail};

use super::content::Stored;
use super::directory::Folder;
use super::header::{ATTRIBUTE, ATTRIBUTES, COMPACT, EXTENDED, Header};
use super::{BLOCK, Compression, Kind, Node, Volume, index, superblock};

/// How content is found: blocks; blocks, and the rest behind the inode; by a compact index.
const FLAT: u16 = 0;
const FLAT_INLINE: u16 = 2;
const PACKED: u16 = 3;

/// Types of files in a mode.
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// What an inode is of; nothing is stored of empty files and of short targets.
#[derive(Debug)]
pub(super) enum Form<'a> {
    Directory(&'a Folder<'a>),
    Symlink(&'a [u8], Option<&'a Stored>),
    File(u64, Option<&'a Stored>),
}

/// An inode without its place.
#[derive(Debug)]
pub(super) struct Inode<'a> {
    pub(super) node: &'a Node<'a>,
    pub(super) header: &'a Header,
    pub(super) form: Form<'a>,
    pub(super) links: u32,
}

impl Inode<'_> {
    /// How many bytes behind the header must lie in one block.
    pub(super) fn tail(&self) -> usize {
        match &self.form {
            Form::Directory(folder) => {
                let rest = folder.size() % BLOCK;
                if self.header.size() + rest > BLOCK {
                    0
                } else {
                    rest
                }
            }
            Form::Symlink(target, None) => target.len(),
            Form::Symlink(_, Some(stored)) | Form::File(_, Some(stored)) => match stored {
                Stored::Flat { tail, .. } => tail.len(),
                Stored::Packed { .. } => 0,
            },
            Form::File(_, None) => 0,
        }
    }

    /// How many bytes behind the header may lie anywhere.
    pub(super) fn index(&self) -> Result<usize> {
        Ok(match &self.form {
            Form::File(size, Some(Stored::Packed { .. })) => {
                usize::try_from(index::size(self.header.size() as u64, *size))?
            }
            _ => 0,
        })
    }

    /// How many blocks it has among those of the folders.
    pub(super) fn blocks(&self) -> usize {
        match &self.form {
            Form::Directory(folder) => {
                let whole = folder.size() / BLOCK;
                whole + usize::from(self.tail() == 0 && !folder.size().is_multiple_of(BLOCK))
            }
            _ => 0,
        }
    }

    /// Its bytes. `number` counts inodes, `block` is its first one among those of the folders.
    pub(super) fn encode(
        &self,
        number: u32,
        block: u32,
        tail: &[u8],
        volume: &Volume,
    ) -> Result<Vec<u8>> {
        let kind = match self.node.kind {
            Kind::Directory => DIRECTORY,
            Kind::Symlink(_) => SYMLINK,
            Kind::File(_) | Kind::HardLink(_) => REGULAR,
        };
        let inline = if tail.is_empty() { FLAT } else { FLAT_INLINE };
        let (layout, place, index) = match &self.form {
            Form::Directory(_) => (inline, block, Vec::new()),
            Form::Symlink(_, None) | Form::File(_, None) => (inline, u32::MAX, Vec::new()),
            Form::Symlink(_, Some(stored)) | Form::File(_, Some(stored)) => match stored {
                Stored::Flat { block, .. } => (inline, *block, Vec::new()),
                Stored::Packed {
                    block,
                    blocks,
                    extents,
                } => {
                    let algorithm = match volume.compression {
                        Compression::Zstd(_) => superblock::ZSTD,
                        Compression::Lz4(_) => superblock::LZ4,
                        Compression::None => bail!("packed without a compression"),
                    };
                    let end = self.header.size() as u64;
                    let index = index::encode(end, self.header.size, *block, extents, algorithm)?;
                    (PACKED, *blocks, index)
                }
            },
        };
        let Header {
            extended,
            size,
            attributes,
        } = self.header;
        let mut out = Vec::with_capacity(EXTENDED + attributes.len() + index.len() + tail.len());
        let count = match attributes.len() {
            0 => 0,
            bytes => (bytes - ATTRIBUTES) / ATTRIBUTE + 1,
        };
        out.extend_from_slice(&(layout << 1 | u16::from(*extended)).to_le_bytes());
        let count = u16::try_from(count).context("more attributes than an inode can have")?;
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&u16::try_from(kind | self.node.mode & 0o7777)?.to_le_bytes());
        if *extended {
            out.extend_from_slice(&[0; 2]);
            out.extend_from_slice(&size.to_le_bytes());
            out.extend_from_slice(&place.to_le_bytes());
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&self.node.uid.to_le_bytes());
            out.extend_from_slice(&self.node.gid.to_le_bytes());
            out.extend_from_slice(&volume.epoch.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&self.links.to_le_bytes());
            out.resize(EXTENDED, 0);
        } else {
            out.extend_from_slice(&u16::try_from(self.links)?.to_le_bytes());
            out.extend_from_slice(&u32::try_from(*size)?.to_le_bytes());
            // Its time is the superblock's.
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&place.to_le_bytes());
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&u16::try_from(self.node.uid)?.to_le_bytes());
            out.extend_from_slice(&u16::try_from(self.node.gid)?.to_le_bytes());
            out.resize(COMPACT, 0);
        }
        out.extend_from_slice(attributes);
        out.extend_from_slice(&index);
        out.extend_from_slice(tail);
        Ok(out)
    }
}
