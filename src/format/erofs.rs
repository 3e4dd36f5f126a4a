//! Writes a read-only file system that the kernel mounts as EROFS, compressed on all cores.
//!
//! Layout of the image, in blocks of 4096 bytes: the superblock; the files' content in the order of the nodes, compressed where that
//! saves blocks; the inodes with their attributes, the ends of small files and the indexes of compressed ones; the folders' entries.
//! All inodes lie side by side, so that a boot reads few blocks for them. Equal nodes give equal bytes, with any number of threads.
//!
//! Format: <https://erofs.docs.kernel.org/en/latest/ondisk/> and `fs/erofs/erofs_fs.h` of Linux 6.12.

mod content;
mod directory;
mod header;
mod index;
mod inode;
mod metadata;
mod pack;
mod place;
mod superblock;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use image::guid::Guid;
use serde::{Deserialize, Serialize};

use content::Stored;
use header::Header;
use inode::{Form, Inode};
use pack::Extent;

use crate::format::hashed_file::HashedFile;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// The same.
const BLOCK_BYTES: u64 = 4096;

/// How content is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4, whose level is how deep it searches: none for the fast one.
    Lz4(Option<u32>),
    /// Zstandard with its level, which Linux reads since 6.10.
    Zstd(i32),
}

impl FromStr for Compression {
    type Err = String;

    /// `none`, `lz4`, `lz4hc` or `zstd`, with an optional `,LEVEL`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = match text.split_once(',') {
            Some((name, level)) => {
                let level = level.parse::<u32>();
                (
                    name,
                    Some(level.map_err(|_| format!("{text:?} has no level"))?),
                )
            }
            None => (text, None),
        };
        Ok(match (name, level) {
            ("none", None) => Self::None,
            ("lz4", _) => Self::Lz4(None),
            ("lz4hc", level) => Self::Lz4(Some(level.unwrap_or(9))),
            ("zstd", level) => {
                let level = i32::try_from(level.unwrap_or(3));
                Self::Zstd(level.map_err(|_| format!("{text:?} has no level of zstd's"))?)
            }
            _ => {
                return Err(format!(
                    "{text:?} is no compression; expected none, lz4, lz4hc or zstd"
                ));
            }
        })
    }
}

/// What belongs to the whole file system.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    /// Its identity.
    pub uuid: Guid,
    /// The time of all its files, seconds since 1970.
    pub epoch: u64,
    /// How content is compressed.
    pub compression: Compression,
    /// What is compressed together has at most so many bytes afterwards: a power of two from 4096 to 1 MiB.
    pub cluster: u32,
}

/// A path of the tree.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// Absolute path.
    pub path: &'a str,
    /// Permission bits, with set-uid, set-gid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Extended attributes.
    pub xattrs: &'a [(String, Vec<u8>)],
    /// What it is.
    pub kind: Kind<'a>,
}

/// What a path is.
#[derive(Clone, Debug)]
pub enum Kind<'a> {
    /// A folder.
    Directory,
    /// A symbolic link with its target.
    Symlink(&'a str),
    /// A file.
    File(Content<'a>),
    /// Another name of the file that has this place among the nodes, before this one.
    HardLink(usize),
}

/// Where a file's content is.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// In memory.
    Bytes(&'a [u8]),
    /// A part of a file of this host.
    Range {
        /// The file.
        file: &'a Path,
        /// Its first byte.
        offset: u64,
        /// Bytes.
        size: u64,
    },
    /// A file of this host, which has to have the hashed content.
    Hashed(&'a HashedFile),
}

impl Content<'_> {
    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Range { size, .. } => *size,
            Self::Hashed(file) => file.size,
        }
    }
}

/// How a file system stores a file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The first block of its packed data.
    block: u32,
    /// What its blocks hold; nothing if content is stored as it is, since it does not become smaller.
    extents: Vec<Extent>,
}

/// A file system that was written with the same compression and size of clusters.
#[derive(Debug)]
pub struct Earlier {
    /// It.
    pub file: File,
    /// By node of the one that is written: how this one stores the same content, where it has it.
    pub kept: Vec<Option<Kept>>,
}

/// Writes the nodes as a file system to the file `to`, a whole number of blocks. The first node is the root, `/`, and each node's
/// folder is before it. What an earlier one has is copied from it: the bytes are the same. Gives by node how content is stored, where
/// it was worth a try to pack it.
///
/// # Errors
/// If a file cannot be read, has become shorter or is not what was hashed, a node's folder is missing, a name, target or attribute is too long, or the file
/// cannot be written.
pub fn write(
    nodes: &[Node<'_>],
    volume: &Volume,
    earlier: Option<&Earlier>,
    to: &Path,
) -> Result<Vec<Option<Kept>>> {
    let about = || format!("writing {}", to.display());
    let tree = Tree::of(nodes)?;
    let headers = tree.headers(nodes)?;
    let mut out = BufWriter::with_capacity(1 << 20, File::create(to).with_context(about)?);
    // The superblock is written last, when all else is known.
    out.write_all(&[0; BLOCK]).with_context(about)?;
    let stored = content::write(nodes, &headers, volume, earlier, &mut out)?;
    let blocks = stored.end;
    let of = |at| stored.of.get(&at);
    let inodes: Vec<_> = (nodes.iter().zip(&headers).enumerate())
        .filter_map(|(at, (node, header))| {
            let form = match &node.kind {
                Kind::HardLink(_) => return None,
                Kind::Directory => Form::Directory(&tree.folders[tree.folder[at]]),
                Kind::Symlink(target) => Form::Symlink(target.as_bytes(), of(at)),
                Kind::File(content) => Form::File(content.size(), of(at)),
            };
            let links = tree.links[at];
            Some(Inode {
                node,
                header,
                form,
                links,
            })
        })
        .collect();
    let placed = place::all(&inodes, blocks)?;
    let numbers = tree.numbers(nodes, &placed.nids);
    let metadata = metadata::encode(&inodes, &placed, &numbers, volume)?;
    out.write_all(&metadata).with_context(about)?;
    let all = u64::from(blocks) + metadata.len() as u64 / BLOCK_BYTES;
    let first = superblock::encode(&superblock::Facts {
        volume,
        root: numbers[0],
        inodes: inodes.len() as u64,
        blocks: all,
        metadata: blocks - 1,
    })?;
    out.seek(SeekFrom::Start(0)).with_context(about)?;
    out.write_all(&first).with_context(about)?;
    out.flush().with_context(about)?;
    let kept = |at| stored.of.get(&at).and_then(Stored::kept);
    Ok((0..nodes.len()).map(kept).collect())
}

/// Which node is in which folder.
#[derive(Debug)]
struct Tree<'a> {
    /// By folder: its names, sorted, each with its node.
    folders: Vec<directory::Folder<'a>>,
    /// By node: its place in `folders`, if it is a folder.
    folder: Vec<usize>,
    /// By node: how many names it has; a folder has one by itself, one by its parent and one by each folder in it.
    links: Vec<u32>,
}

impl<'a> Tree<'a> {
    fn of(nodes: &[Node<'a>]) -> Result<Self> {
        ensure!(
            nodes
                .first()
                .is_some_and(|node| node.path == "/" && matches!(node.kind, Kind::Directory)),
            "the first node of a file system is not its root"
        );
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut tree = Self {
            folders: Vec::new(),
            folder: vec![usize::MAX; nodes.len()],
            links: vec![0; nodes.len()],
        };
        for (at, node) in nodes.iter().enumerate() {
            let parent = if at == 0 {
                0
            } else {
                let (parent, name) = node
                    .path
                    .rsplit_once('/')
                    .context("a node has a relative path")?;
                let parent = places
                    .get(if parent.is_empty() { "/" } else { parent })
                    .with_context(|| format!("{} comes before its folder", node.path))?;
                let parent = *parent;
                ensure!(
                    !name.is_empty() && name.len() <= 255,
                    "{}: a name has 1 to 255 bytes, not {}",
                    node.path,
                    name.len()
                );
                let entry = directory::Name {
                    name: name.as_bytes(),
                    node: at,
                    kind: directory::kind(&node.kind),
                };
                tree.folders[tree.folder[parent]].names.push(entry);
                parent
            };
            match &node.kind {
                Kind::Directory => {
                    tree.folder[at] = tree.folders.len();
                    tree.folders.push(directory::Folder::new(at, parent));
                    ensure!(
                        places.insert(node.path, at).is_none(),
                        "{} is there twice",
                        node.path
                    );
                    tree.links[at] += 2;
                    if at != 0 {
                        tree.links[parent] += 1;
                    }
                }
                Kind::HardLink(of) => match nodes.get(*of) {
                    Some(Node {
                        kind: Kind::File(_),
                        ..
                    }) if *of < at => tree.links[*of] += 1,
                    _ => bail!("{} is another name of what is no file before it", node.path),
                },
                Kind::Symlink(_) | Kind::File(_) => tree.links[at] += 1,
            }
        }
        for folder in &mut tree.folders {
            folder.sort()?;
        }
        Ok(tree)
    }

    /// By node: what its inode has by itself.
    fn headers(&self, nodes: &[Node<'_>]) -> Result<Vec<Header>> {
        (nodes.iter().enumerate())
            .map(|(at, node)| {
                let size = match &node.kind {
                    Kind::Directory => self.folders[self.folder[at]].size() as u64,
                    Kind::Symlink(target) => target.len() as u64,
                    Kind::File(content) => content.size(),
                    Kind::HardLink(_) => 0,
                };
                Header::of(node, size, self.links[at])
            })
            .collect()
    }

    /// By node: the number of its inode. `nids` are in the order of the inodes.
    fn numbers(&self, nodes: &[Node<'_>], nids: &[u64]) -> Vec<u64> {
        let mut next = nids.iter();
        let mut numbers = Vec::with_capacity(nodes.len());
        for node in nodes {
            let number = match node.kind {
                Kind::HardLink(of) => numbers[of],
                _ => next.next().copied().unwrap_or_default(),
            };
            numbers.push(number);
        }
        numbers
    }
}
