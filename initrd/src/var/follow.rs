//! Programs below `/opt` and `/usr/local` follow the image: what a root has brought there and nobody has changed on the node is
//! replaced by what a later root has at its path, and goes with the last root that has it.
//!
//! They are the node's own as all of `/var`: what was changed there stays, as a configuration file does with dpkg. What tells the two
//! apart is a record of what was brought, by a hash of each entry. A file that was made immutable on the node was changed, and nothing
//! comes to or goes from a folder that was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use image::paths::{FACTORY, VAR_FOLLOWS};
use image::var_list::{Content, FOLLOWING, Rights};
use linux::{atomic_file, ioctl};
use sha2::{Digest as _, Sha256};

use super::staged::Staged;

/// What the lists of a root put below `/var`, by path.
pub(super) type Lists = BTreeMap<String, Content>;

/// How much of a file is read at once, bytes.
const CHUNK: usize = 256 << 10;
/// The hash of every folder: mode and owner are the node's, and a folder goes only where it is empty and in the way.
const FOLDER: &str = "folder";
/// In place of the hash of a file that is immutable: no image has put it there.
const FIXED: &str = "fixed";

/// What images have put on the node, by path: the hash of an entry's kind, mode, owner and content ([`of_node`]). While a root is seeded
/// an entry has several hashes, that of this root last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Follows(BTreeMap<String, Vec<String>>);

/// What the node has at the path of an entry of the image.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Whatever the node has made of what this root, or another one with the same entry, has put there: the entry is not new.
    Known,
    /// Nothing, or something behind a link.
    Absent,
    /// The image's, which the record does not say.
    Same,
    /// A file or a link that an earlier root has put there.
    Behind,
    /// A folder of an earlier root, and the image has none.
    Folder,
    /// Something that no image has put there.
    Own,
}

impl Follows {
    /// Reads the record, which is empty if the file does not exist. A line of another form is ignored: the init then leaves that entry of
    /// the node as it is.
    pub(super) fn read(sysroot: &Path) -> Result<Self> {
        let path = sysroot.join(VAR_FOLLOWS);
        let text =
            atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut found = Self::default();
        for (hash, path) in text.lines().filter_map(|line| line.split_once(' ')) {
            // What an image has put into a folder came with it. The lists name few folders, and earlier versions recorded none.
            for (at, _) in path.match_indices('/') {
                if follows(&path[..at]) {
                    found.add(&path[..at], FOLDER);
                }
            }
            found.add(path, hash);
        }
        Ok(found)
    }

    /// Writes the record, whose folder is there.
    pub(super) fn write(&self, sysroot: &Path) -> Result<()> {
        self.stage(sysroot)?.place()
    }

    /// Writes the record beside the one that is there, which it is to replace.
    pub(super) fn stage(&self, sysroot: &Path) -> Result<Staged> {
        Staged::write(sysroot.join(VAR_FOLLOWS), &self.text())
    }

    fn text(&self) -> String {
        let hashes = |(path, hashes): (&String, &Vec<String>)| -> String {
            let lines = hashes.iter().map(|hash| format!("{hash} {path}\n"));
            lines.collect()
        };
        self.0.iter().map(hashes).collect()
    }

    /// Compares what the image has for a path, by its hash of [`of_image`], with what is there on the node.
    pub(super) fn look(&self, sysroot: &Path, path: &str, image: &str) -> Result<Look> {
        let put = self.put(path);
        // Most often it is what it was, and nothing on the node need be read.
        if put == [image] {
            return Ok(Look::Known);
        }
        Ok(match of_node(sysroot, path)? {
            None => Look::Absent,
            Some(node) if node == image => Look::Same,
            Some(node) if !put.contains(&node) => Look::Own,
            Some(node) if node == FOLDER => Look::Folder,
            Some(_) => Look::Behind,
        })
    }

    /// Adds what an image is about to put at a path to what others have.
    pub(super) fn add(&mut self, path: &str, hash: &str) {
        let put = self.0.entry(path.to_owned()).or_default();
        put.retain(|known| known != hash);
        put.push(hash.to_owned());
    }

    /// Records that the node has this entry of an image and no other one.
    pub(super) fn note(&mut self, path: &str, hash: &str) {
        self.0.insert(path.to_owned(), vec![hash.to_owned()]);
    }

    /// Forgets the entries of `removed`, and of paths that are not there, unless they were deleted on the node: these are `kept`. Of the
    /// others it forgets the hashes of entries that did not come.
    pub(super) fn tidy(
        &mut self,
        sysroot: &Path,
        removed: &BTreeSet<String>,
        kept: impl Fn(&str) -> bool,
    ) -> Result<()> {
        self.0.retain(|path, _| {
            let there = || place(sysroot, path).is_some_and(|at| at.symlink_metadata().is_ok());
            !removed.contains(path) && (kept(path) || there())
        });
        for (path, put) in self.0.iter_mut().filter(|(_, put)| put.len() > 1) {
            let node = of_node(sysroot, path)?;
            if let Some(node) = node.filter(|node| put.contains(node)) {
                *put = vec![node];
            }
        }
        Ok(())
    }

    /// The paths in the record.
    pub(super) fn paths(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Files and links that images have put there and nobody has changed, where this image has no file and no link, but maybe a folder:
    /// their places, by path.
    pub(super) fn gone(&self, sysroot: &Path, lists: &Lists) -> Result<BTreeMap<String, PathBuf>> {
        let mut gone = BTreeMap::new();
        for (path, put) in &self.0 {
            if matches!(lists.get(path), Some(Content::File(_) | Content::Link(_))) {
                continue;
            }
            let node = of_node(sysroot, path)?;
            if node.is_some_and(|node| node != FOLDER && put.contains(&node))
                && let Some(place) = place(sysroot, path)
                && !place.parent().is_some_and(is_fixed)
            {
                gone.insert(path.clone(), place);
            }
        }
        Ok(gone)
    }

    /// The folder at a path and those below it, the deepest first, if images brought all of them and nothing is in them but what is
    /// `gone`; else none.
    pub(super) fn emptied(
        &self,
        sysroot: &Path,
        path: &str,
        gone: &BTreeMap<String, PathBuf>,
    ) -> Result<Option<Vec<(String, PathBuf)>>> {
        let Some(place) = place(sysroot, path) else {
            return Ok(None);
        };
        let fixed = is_fixed(&place) || place.parent().is_some_and(is_fixed);
        if fixed || !self.put(path).iter().any(|put| put == FOLDER) {
            return Ok(None);
        }
        let mut folders = Vec::new();
        for entry in fs::read_dir(&place).with_context(|| format!("reading {path}"))? {
            let entry = entry.with_context(|| format!("reading {path}"))?;
            let Ok(name) = entry.file_name().into_string() else {
                return Ok(None);
            };
            let below = format!("{path}/{name}");
            if gone.contains_key(&below) {
                continue;
            }
            match entry.file_type()?.is_dir() {
                true => match self.emptied(sysroot, &below, gone)? {
                    Some(found) => folders.extend(found),
                    None => return Ok(None),
                },
                false => return Ok(None),
            }
        }
        folders.push((path.to_owned(), place));
        Ok(Some(folders))
    }

    fn put(&self, path: &str) -> &[String] {
        self.0.get(path).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Whether entries at this path follow the image.
pub(super) fn follows(path: &str) -> bool {
    FOLLOWING.iter().any(|folder| {
        let below = path.strip_prefix(folder);
        below.is_some_and(|rest| rest.starts_with('/'))
    })
}

/// The hash of what the image has for a path; none for what does not follow, and for a file that is not in the root.
pub(super) fn of_image(sysroot: &Path, path: &str, content: &Content) -> Result<Option<String>> {
    if !follows(path) {
        return Ok(None);
    }
    match content {
        Content::Folder(_) => Ok(Some(FOLDER.to_owned())),
        Content::Link(target) => Ok(Some(of_link(target.as_bytes()))),
        Content::File(rights) => {
            let kept = format!("{FACTORY}{path}");
            let file = sysroot.join(kept.trim_start_matches('/'));
            match file.is_file() {
                true => of_file(&file, *rights).map(Some),
                false => Ok(None),
            }
        }
    }
}

/// The hash of what the node has at a path; none if that is nothing, no file, link or folder, or behind a link.
pub(super) fn of_node(sysroot: &Path, path: &str) -> Result<Option<String>> {
    let Some(place) = place(sysroot, path) else {
        return Ok(None);
    };
    let Ok(meta) = place.symlink_metadata() else {
        return Ok(None);
    };
    if meta.is_symlink() {
        let target = fs::read_link(&place).with_context(|| format!("reading {path}"))?;
        return Ok(Some(of_link(target.as_os_str().as_bytes())));
    }
    if meta.is_dir() {
        return Ok(Some(FOLDER.to_owned()));
    }
    if !meta.is_file() {
        return Ok(None);
    }
    if is_fixed(&place) {
        return Ok(Some(FIXED.to_owned()));
    }
    let rights = Rights {
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
    };
    of_file(&place, rights).map(Some)
}

/// Whether not even root changes this file, or this folder's entries.
pub(super) fn is_fixed(path: &Path) -> bool {
    File::open(path).is_ok_and(|open| ioctl::is_fixed(&open))
}

/// Where a path is, if all folders above it are folders: a link would lead elsewhere here than on the running node.
pub(super) fn place(sysroot: &Path, path: &str) -> Option<PathBuf> {
    let mut place = sysroot.to_owned();
    let (above, name) = path.trim_start_matches('/').rsplit_once('/')?;
    for part in above.split('/') {
        place.push(part);
        place.symlink_metadata().ok().filter(fs::Metadata::is_dir)?;
    }
    place.push(name);
    Some(place)
}

fn of_link(target: &[u8]) -> String {
    HEXLOWER.encode(
        &Sha256::new_with_prefix("link\n")
            .chain_update(target)
            .finalize(),
    )
}

fn of_file(file: &Path, rights: Rights) -> Result<String> {
    let Rights { mode, uid, gid } = rights;
    let mut hash = Sha256::new_with_prefix(format!("file {mode:04o} {uid} {gid}\n"));
    let mut open = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = open.read(&mut buffer);
        match read.with_context(|| format!("reading {}", file.display()))? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(HEXLOWER.encode(&hash.finalize()))
}
