//! Packs a tree as one tar stream: sorted, times clamped, hard links kept, and without the zero blocks at the end, so
//! that another stream can follow. An index beside it lists the content, so that readers need not scan the stream.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::host::tree;
use crate::layer::stream::{BLOCK, Form, Stream};
use crate::layer::{Entry, Kind, Source};

/// The extended attributes of a file; others, such as SELinux labels, belong to the building host.
const ATTRIBUTES: &[&str] = &["security.capability"];

/// Packs `root` into the file `to`; gives the index. Contents in the index refer to ranges of `to` by its file name.
pub(super) fn pack(root: &Path, to: &Path, epoch: u64) -> Result<Vec<Entry>> {
    let file = File::create(to).with_context(|| format!("making {}", to.display()))?;
    let mut packer = Packer {
        file: to
            .file_name()
            .context("a tar file without a name")?
            .as_ref(),
        epoch,
        out: Stream::new(BufWriter::with_capacity(1 << 20, file)),
        links: HashMap::new(),
        entries: Vec::new(),
    };
    packer.add("/", root, &fs::symlink_metadata(root)?)?;
    for item in tree::walk(root)? {
        packer
            .add(&item.inside, &item.path, &item.meta)
            .with_context(|| format!("packing {}", item.inside))?;
    }
    packer.out.into_inner()?;
    Ok(packer.entries)
}

struct Packer<'a, W> {
    file: &'a Path,
    epoch: u64,
    out: Stream<W>,
    /// Path of the first name of each file with several names.
    links: HashMap<(u64, u64), String>,
    entries: Vec<Entry>,
}

impl<W: Write> Packer<'_, W> {
    /// Packs one path, which is `full` on the host.
    fn add(&mut self, path: &str, full: &Path, meta: &Metadata) -> Result<()> {
        let mtime = u64::try_from(meta.mtime())
            .unwrap_or_default()
            .min(self.epoch);
        let mut entry = Entry {
            path: path.to_owned(),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            kind: Kind::Directory,
            xattrs: Vec::new(),
        };
        if meta.is_dir() {
            self.out.header(&entry, Form::Directory, mtime)?;
        } else if meta.is_symlink() {
            let target = fs::read_link(full)?;
            let target = target.to_str().context("the target is not UTF-8")?;
            self.out.header(&entry, Form::Symlink(target), mtime)?;
            entry.kind = Kind::Symlink(target.to_owned());
        } else if meta.is_file() {
            entry.xattrs = attributes(full)?;
            entry.kind = self.regular(&entry, full, meta, mtime)?;
        } else {
            bail!("neither folder nor file nor link; an image has no devices and sockets");
        }
        self.entries.push(entry);
        Ok(())
    }

    fn regular(&mut self, entry: &Entry, full: &Path, meta: &Metadata, mtime: u64) -> Result<Kind> {
        if meta.nlink() > 1 {
            let file = (meta.dev(), meta.ino());
            if let Some(first) = self.links.get(&file) {
                self.out.header(entry, Form::HardLink(first), mtime)?;
                return Ok(Kind::HardLink(first.clone()));
            }
            self.links.insert(file, entry.path.clone());
        }
        let size = meta.len();
        self.out.header(entry, Form::File(size), mtime)?;
        let offset = self.out.count();
        self.out.content(&mut File::open(full)?, size)?;
        debug_assert_eq!(self.out.count() % BLOCK, 0);
        Ok(Kind::File(Source::Range {
            file: self.file.to_owned(),
            offset,
            size,
        }))
    }
}

fn attributes(path: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in ATTRIBUTES {
        match xattr::get(path, name) {
            Ok(Some(value)) => found.push(((*name).to_owned(), value)),
            Ok(None) => {}
            // The file system does not support extended attributes.
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(error) => return Err(error).with_context(|| format!("reading {name}")),
        }
    }
    Ok(found)
}
