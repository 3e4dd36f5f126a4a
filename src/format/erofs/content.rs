//! The content of files: read, packed on all cores and written in the order of the nodes.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use anyhow::{Context as _, Result, anyhow};

use super::header::Header;
use super::pack::{Extent, Packed, Packer};
use super::{BLOCK, BLOCK_BYTES, Content, Earlier, Kept, Kind, Node, Volume, index};
use crate::format::hashed_file::PIECE;
use crate::format::threads;

/// What a thread packs at once, bytes: a whole number of blocks. A cluster does not go on into the next part. It is what a hashed file
/// is verified in.
const PART: u64 = PIECE;

/// The block behind the superblock's.
const FIRST: u32 = 1;

/// Where content is.
#[derive(Debug)]
pub(super) enum Stored {
    /// As it is: whole blocks from `block` on, and the rest.
    Flat {
        block: u32,
        tail: Vec<u8>,
        /// Whether it was tried to pack it.
        tried: bool,
    },
    /// In `blocks` blocks from `block` on.
    Packed {
        block: u32,
        blocks: u32,
        extents: Vec<Extent>,
    },
}

impl Stored {
    /// What another file system can use of it.
    pub(super) fn kept(&self) -> Option<Kept> {
        match self {
            Self::Flat { tried: false, .. } => None,
            Self::Flat { .. } => Some(Kept {
                block: 0,
                extents: Vec::new(),
            }),
            Self::Packed { block, extents, .. } => Some(Kept {
                block: *block,
                extents: extents.clone(),
            }),
        }
    }
}

/// The written content.
#[derive(Debug)]
pub(super) struct Written {
    /// By node; what is empty or a short link's target is not in it.
    pub(super) of: HashMap<usize, Stored>,
    /// The block behind the last one.
    pub(super) end: u32,
}

/// A part of a file.
struct Part<'a> {
    node: usize,
    content: Content<'a>,
    offset: u64,
    size: usize,
    /// The whole file's bytes.
    whole: u64,
    from: From<'a>,
}

/// Where a part's data comes from.
#[derive(Clone, Copy)]
enum From<'a> {
    /// Its content, as it is, which was tried to pack or not.
    Content { tried: bool },
    /// Its content, packed.
    Packing,
    /// An earlier file system, which has it packed.
    Earlier(&'a File, &'a Kept),
}

/// What became of a part.
enum Done {
    Packed(Packed),
    Flat {
        data: Vec<u8>,
        tail: Vec<u8>,
        tried: bool,
    },
}

/// Writes the content of all files as whole blocks; the first one of `out` is [`FIRST`].
pub(super) fn write(
    nodes: &[Node<'_>],
    headers: &[Header],
    volume: &Volume,
    earlier: Option<&Earlier>,
    out: &mut impl Write,
) -> Result<Written> {
    let parts = parts(nodes, headers, earlier);
    let threads = threads::number();
    let next = AtomicUsize::new(0);
    let mut written = Written {
        of: HashMap::new(),
        end: FIRST,
    };
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel(threads * 4);
        for _ in 0..threads {
            let (send, next, parts) = (send.clone(), &next, &parts);
            scope.spawn(move || {
                let mut worker = None;
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(part) = parts.get(place) else { return };
                    let done = Worker::pack(&mut worker, volume, part, &headers[part.node]);
                    let done = done.with_context(|| format!("packing {}", nodes[part.node].path));
                    let failed = done.is_err();
                    // Nobody receives it: the other end has failed and says why.
                    if send.send((place, done)).is_err() || failed {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut early = BTreeMap::new();
        let mut expected = 0;
        for (place, done) in receive {
            early.insert(place, done?);
            while let Some(done) = early.remove(&expected) {
                written.add(&parts[expected], done, out)?;
                expected += 1;
            }
        }
        if expected == parts.len() {
            Ok(())
        } else {
            Err(anyhow!("a thread ended early"))
        }
    })?;
    Ok(written)
}

fn parts<'a>(
    nodes: &[Node<'a>],
    headers: &[Header],
    earlier: Option<&'a Earlier>,
) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    for (node, of) in nodes.iter().enumerate() {
        let (content, packs) = match of.kind {
            Kind::File(content) => (content, content.size() > BLOCK_BYTES),
            Kind::Symlink(target) if headers[node].size() + target.len() > BLOCK => {
                (Content::Bytes(target.as_bytes()), false)
            }
            _ => continue,
        };
        let kept = earlier.and_then(|earlier| {
            let kept = earlier.kept.get(node)?.as_ref()?;
            Some((&earlier.file, kept))
        });
        let whole = content.size();
        let (from, most) = match kept {
            Some((_, kept)) if kept.extents.is_empty() => (From::Content { tried: true }, PART),
            Some((file, kept)) => (From::Earlier(file, kept), whole),
            None if packs => (From::Packing, PART),
            None => (From::Content { tried: false }, PART),
        };
        let mut offset = 0;
        while offset < whole {
            let size = most.min(whole - offset);
            parts.push(Part {
                node,
                content,
                offset,
                size: usize::try_from(size).unwrap_or(usize::MAX),
                whole,
                from,
            });
            offset += size;
        }
    }
    parts
}

impl Written {
    fn add(&mut self, part: &Part<'_>, done: Done, out: &mut impl Write) -> Result<()> {
        let block = self.end;
        let data = match done {
            Done::Packed(Packed { extents, data }) => {
                let count = count(&data)?;
                match self.of.get_mut(&part.node) {
                    Some(Stored::Packed {
                        blocks,
                        extents: all,
                        ..
                    }) => {
                        *blocks += count;
                        all.extend(extents);
                    }
                    _ => {
                        let blocks = count;
                        let stored = Stored::Packed {
                            block,
                            blocks,
                            extents,
                        };
                        self.of.insert(part.node, stored);
                    }
                }
                data
            }
            Done::Flat { data, tail, tried } => {
                match self.of.get_mut(&part.node) {
                    Some(Stored::Flat { tail: all, .. }) => *all = tail,
                    _ => {
                        let block = if data.is_empty() { u32::MAX } else { block };
                        self.of
                            .insert(part.node, Stored::Flat { block, tail, tried });
                    }
                }
                data
            }
        };
        self.end = block
            .checked_add(count(&data)?)
            .context("more than 16 TiB")?;
        out.write_all(&data).context("writing the file system")
    }
}

fn count(data: &[u8]) -> Result<u32> {
    Ok(u32::try_from(data.len() / BLOCK)?)
}

/// What a thread has.
struct Worker {
    packer: Option<Packer>,
    /// The last file: most contents come from one.
    open: Option<(PathBuf, File)>,
}

impl Worker {
    fn pack(
        worker: &mut Option<Self>,
        volume: &Volume,
        part: &Part<'_>,
        header: &Header,
    ) -> Result<Done> {
        let worker = match worker {
            Some(worker) => worker,
            None => worker.insert(Self {
                packer: Packer::new(volume.compression, volume.cluster)?,
                open: None,
            }),
        };
        if let From::Earlier(file, kept) = part.from {
            return earlier(file, kept).context("reading the earlier file system");
        }
        let input = worker.read(part)?;
        let head = header.size();
        let mut tried = matches!(part.from, From::Content { tried: true });
        if let Some(packer) = &mut worker.packer
            && matches!(part.from, From::Packing)
        {
            tried = true;
            let packed = packer.pack(&input)?;
            // A large file is packed in any case: what does not compress is stored as it is there, too.
            let size = packed.data.len() as u64 + index::size(head as u64, part.whole);
            if size < part.whole || part.size as u64 != part.whole {
                return Ok(Done::Packed(packed));
            }
        }
        let mut data = input;
        let rest = data.len() % BLOCK;
        let tail = if rest == 0 || head + rest > BLOCK {
            data.resize(data.len().next_multiple_of(BLOCK), 0);
            Vec::new()
        } else {
            data.split_off(data.len() - rest)
        };
        Ok(Done::Flat { data, tail, tried })
    }

    fn read(&mut self, part: &Part<'_>) -> Result<Vec<u8>> {
        let (file, from) = match part.content {
            Content::Bytes(bytes) => {
                let offset = usize::try_from(part.offset)?;
                return Ok(bytes[offset..offset + part.size].to_vec());
            }
            Content::Hashed(of) => return of.piece(self.open(&of.path)?, part.offset),
            Content::Range { file, offset, .. } => (self.open(file)?, offset + part.offset),
        };
        let mut input = vec![0; part.size];
        file.read_exact_at(&mut input, from)?;
        Ok(input)
    }

    fn open(&mut self, path: &Path) -> Result<&File> {
        let about = || format!("reading {}", path.display());
        if self.open.as_ref().is_none_or(|(open, _)| open != path) {
            self.open = Some((path.to_owned(), File::open(path).with_context(about)?));
        }
        let (_, file) = self.open.as_ref().with_context(about)?;
        Ok(file)
    }
}

/// Packed content as another file system has it.
fn earlier(file: &File, kept: &Kept) -> Result<Done> {
    let blocks: usize = kept
        .extents
        .iter()
        .map(|extent| usize::from(extent.blocks))
        .sum();
    let mut data = vec![0; blocks * BLOCK];
    file.read_exact_at(&mut data, u64::from(kept.block) * BLOCK_BYTES)?;
    Ok(Done::Packed(Packed {
        extents: kept.extents.clone(),
        data,
    }))
}
