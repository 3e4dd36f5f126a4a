//! Merges the layers of an image into one tree of files: whiteouts, opaque folders, hard links and paths through symbolic
//! links, as a runtime that unpacks one layer over the other has them.
//!
//! <https://github.com/opencontainers/image-spec/blob/v1.1.1/layer.md>

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::read;
use crate::layer::members::Members;
use crate::layer::{self, Entry, Kind, Source};

/// Before the name of a path that a layer removes from those below it.
const WHITEOUT: &str = ".wh.";
/// The file that says that a folder shows nothing of the layers below.
const OPAQUE: &str = ".wh..wh..opq";
/// The folder that a runtime mounts over: device files in it are never seen.
const DEVICES: &str = "/dev/";
/// How many symbolic links a path may lead through, as on Linux.
const LINKS: usize = 40;
/// Size limit of an image's unpacked layers, bytes.
const LIMIT: u64 = 32 << 30;

/// Unpacks a layer to a plain tar `dest`, whose digest must be `diff_id`.
///
/// # Errors
/// If the media type is unknown, the layer is damaged or too large, or has another digest.
pub(super) fn unpack(media_type: &str, layer: &Path, diff_id: &str, dest: &Path) -> Result<()> {
    let expected = read::sha256(diff_id)?;
    let mut from = read::decoder(media_type, layer)?.take(LIMIT);
    let mut to = BufWriter::new(File::create(dest)?);
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 18];
    loop {
        let read = from.read(&mut piece).context("unpacking it")?;
        let Some(bytes) = piece.get(..read).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        hash.update(bytes);
        to.write_all(bytes)?;
    }
    ensure!(from.limit() > 0, "it has more than {LIMIT} bytes unpacked");
    to.flush()?;
    let found = HEXLOWER.encode(&hash.finalize());
    ensure!(
        found == expected,
        "unpacked it has SHA-256 {found}, expected {expected} as the image's config says"
    );
    Ok(())
}

/// A tree of files that layers are laid over.
#[derive(Debug, Default)]
pub(super) struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Lays a layer over the tree: a plain tar, whose files the entries refer to.
    ///
    /// # Errors
    /// If the archive is damaged, has a path that leads out of the tree, or what an image cannot have.
    pub(super) fn lay(&mut self, tar: &Path) -> Result<()> {
        let mut upper = Upper::default();
        let mut members = Members::of_file(File::open(tar)?)?;
        while let Some(member) = members.next()? {
            let kind = member.kind;
            if kind.is_block_special() || kind.is_character_special() || kind.is_fifo() {
                let path = layer::tree::plain(&member.path)?;
                ensure!(
                    path.starts_with(DEVICES),
                    "{path} is of type {kind:?}, which only {DEVICES} of an image may have"
                );
                continue;
            }
            if let Some(entry) = layer::tree::from_member(member, tar, "")? {
                upper.take(self, entry)?;
            }
        }
        self.remove(&upper);
        for (path, entry) in upper.entries {
            // What is no folder has nothing below it.
            if entry.kind != Kind::Directory {
                remove_below(&mut self.entries, &path);
            }
            self.entries.insert(path, entry);
        }
        Ok(())
    }

    /// Removes what a layer takes away.
    fn remove(&mut self, upper: &Upper) {
        for path in &upper.removed {
            self.entries.remove(path);
            remove_below(&mut self.entries, path);
        }
        for path in &upper.opaque {
            remove_below(&mut self.entries, path);
        }
    }

    /// The entries, sorted by path, each below a folder that is there. Names of one file are links to the first of them.
    pub(super) fn finish(mut self) -> Vec<Entry> {
        let missing: BTreeSet<String> = self
            .entries
            .keys()
            .flat_map(|path| {
                path.match_indices('/')
                    .skip(1)
                    .map(|(at, _)| path[..at].to_owned())
            })
            .filter(|parent| !self.entries.contains_key(parent))
            .collect();
        for parent in missing {
            let entry = Entry::directory(&parent, 0o755);
            self.entries.insert(parent, entry);
        }
        let mut first: BTreeMap<(PathBuf, u64), String> = BTreeMap::new();
        let mut all: Vec<Entry> = self.entries.into_values().collect();
        for entry in &mut all {
            if let Kind::File(Source::Range { file, offset, .. }) = &entry.kind {
                match first.get(&(file.clone(), *offset)) {
                    Some(path) => entry.kind = Kind::HardLink(path.clone()),
                    None => {
                        first.insert((file.clone(), *offset), entry.path.clone());
                    }
                }
            }
        }
        all
    }
}

/// Removes the entries below a path. It looks at no others: a layer has a hundred thousand files.
fn remove_below(entries: &mut BTreeMap<String, Entry>, path: &str) {
    let below = format!("{path}/");
    let gone: Vec<String> = entries
        .range(below.clone()..)
        .take_while(|(path, _)| path.starts_with(&below))
        .map(|(path, _)| path.clone())
        .collect();
    for path in gone {
        entries.remove(&path);
    }
}

/// One layer, before it is laid over those below.
#[derive(Debug, Default)]
struct Upper {
    entries: BTreeMap<String, Entry>,
    removed: Vec<String>,
    opaque: Vec<String>,
}

impl Upper {
    fn take(&mut self, lower: &Tree, mut entry: Entry) -> Result<()> {
        let (parent, name) = entry
            .path
            .rsplit_once('/')
            .context("a path without a slash")?;
        let parent = self.real(lower, parent)?;
        let path = format!("{parent}/{name}");
        if name == OPAQUE {
            self.opaque.push(parent);
            return Ok(());
        }
        if let Some(gone) = name.strip_prefix(WHITEOUT) {
            // Names that begin like this twice are notes of a file system that packed the layer.
            if !gone.starts_with(WHITEOUT) {
                let plain = !matches!(gone, "" | "." | "..");
                ensure!(plain, "{path} removes no name");
                self.removed.push(format!("{parent}/{gone}"));
            }
            return Ok(());
        }
        if let Kind::HardLink(target) = &entry.kind {
            let (folder, file) = target.rsplit_once('/').context("a link to nothing")?;
            let target = format!("{}/{file}", self.real(lower, folder)?);
            let found = self.find(lower, &target);
            let found = found
                .with_context(|| format!("{path} is a link to {target}, which is not there"))?;
            ensure!(
                found.kind != Kind::Directory,
                "{path} is a link to the folder {target}"
            );
            entry = found.clone();
        }
        if entry.kind != Kind::Directory {
            remove_below(&mut self.entries, &path);
        }
        entry.path.clone_from(&path);
        // Only what an unprivileged program may set: others are a file system's own notes, or give rights.
        entry.xattrs.retain(|(name, _)| name.starts_with("user."));
        self.entries.insert(path, entry.without_set_id());
        Ok(())
    }

    /// What is at a path once this layer lies over the others.
    fn find<'a>(&'a self, lower: &'a Tree, path: &str) -> Option<&'a Entry> {
        self.entries.get(path).or_else(|| lower.entries.get(path))
    }

    /// The folder that a path leads to through symbolic links, which never lead out of the tree. The root is an empty text.
    fn real(&self, lower: &Tree, path: &str) -> Result<String> {
        let mut real = String::new();
        let mut rest: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut links = 0;
        while let Some(part) = rest.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    real.truncate(real.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let next = format!("{real}/{part}");
            match self.find(lower, &next).map(|entry| &entry.kind) {
                Some(Kind::Symlink(target)) => {
                    links += 1;
                    ensure!(
                        links <= LINKS,
                        "{path} leads through more than {LINKS} links"
                    );
                    if target.starts_with('/') {
                        real.clear();
                    }
                    rest.extend(target.split('/').rev().map(str::to_owned));
                }
                Some(Kind::Directory) | None => real = next,
                Some(_) => bail!("{path} leads through {next}, which is not a folder"),
            }
        }
        Ok(real)
    }
}

/// The chain id of layers with these digests (image specification, config.md, "Layer `ChainID`").
pub(super) fn chain_id(diff_ids: &[String]) -> Option<String> {
    let (first, rest) = diff_ids.split_first()?;
    let chained = rest.iter().fold(first.clone(), |below, id| {
        let hash = Sha256::digest(format!("{below} {id}"));
        format!("sha256:{}", HEXLOWER.encode(&hash))
    });
    Some(chained)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_file_of_a_layer_replaces_a_folder_and_what_is_below_it() {
        let mut upper = Upper::default();
        for path in ["/a/b/c", "/a/d", "/a-b/c", "/a.b", "/a0", "/b/a/b"] {
            let entry = Entry::file(path, 0o644, "");
            upper.take(&Tree::default(), entry).unwrap();
        }
        // The archive need not have the folder itself.
        let entry = Entry::file("/a", 0o644, "");
        upper.take(&Tree::default(), entry).unwrap();
        let left: Vec<&str> = upper.entries.keys().map(String::as_str).collect();
        assert_eq!(left, ["/a", "/a-b/c", "/a.b", "/a0", "/b/a/b"]);
    }

    /// A look at all files for each of them takes 5,000 million looks, which are minutes.
    #[test]
    fn a_layer_of_many_files_takes_seconds() {
        let began = Instant::now();
        let (lower, mut upper) = (Tree::default(), Upper::default());
        for number in 0..100_000 {
            let path = format!("/usr/share/{}/{number}", number % 100);
            let entry = Entry::file(path, 0o644, "");
            upper.take(&lower, entry).unwrap();
        }
        assert_eq!(upper.entries.len(), 100_000);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}
