//! Programs below `/opt` and `/usr/local` follow the image: what a root has brought there and nobody has changed on the node is
//! replaced by what a later root has at its path, and goes with the last root that has it.
//!
//! They are the node's own as all of `/var`: what was changed there stays, as a configuration file does with dpkg. What tells the two
//! apart is a record of what was brought, by a hash of each entry.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use image::paths::{FACTORY, VAR_FOLLOWS};
use image::var_list::{Content, FOLLOWING, Rights};
use linux::atomic_file;
use sha2::{Digest as _, Sha256};

/// What the lists of a root put below `/var`, by path.
pub(super) type Lists = BTreeMap<String, Content>;

/// How much of a file is read at once, bytes.
const CHUNK: usize = 256 << 10;

/// What was brought, by path: the hash of an entry's kind, mode, owner and content ([`of_node`]).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Follows(BTreeMap<String, String>);

/// What an entry of the image is to the one on the node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing is to be done: it does not follow, or nothing is new, or the node has its own.
    Stays,
    /// The node has the image's, with this hash, and the record does not say so.
    Same(String),
    /// The node has what an earlier root brought.
    Behind,
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
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let entries = lines.map(|(hash, path)| (path.to_owned(), hash.to_owned()));
        Ok(Self(entries.collect()))
    }

    /// Writes the record, whose folder is there.
    pub(super) fn write(&self, sysroot: &Path) -> Result<()> {
        let path = sysroot.join(VAR_FOLLOWS);
        let lines = self.0.iter().map(|(path, hash)| format!("{hash} {path}\n"));
        atomic_file::write(&path, lines.collect::<String>().as_bytes(), 0o644)
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Compares what the image has for a path with what is there on the node.
    pub(super) fn look(&self, sysroot: &Path, path: &str, content: &Content) -> Result<Look> {
        let Some(image) = of_image(sysroot, path, content)? else {
            return Ok(Look::Stays);
        };
        let brought = self.0.get(path);
        // Most often it is what it was, and nothing on the node need be read.
        if brought == Some(&image) {
            return Ok(Look::Stays);
        }
        Ok(match of_node(sysroot, path)? {
            Some(node) if node == image => Look::Same(image),
            Some(node) if Some(&node) == brought => Look::Behind,
            _ => Look::Stays,
        })
    }

    /// Notes that the node has an entry of the image, with its hash as of [`Look::Same`].
    pub(super) fn note(&mut self, path: &str, hash: String) {
        self.0.insert(path.to_owned(), hash);
    }

    /// Takes out what the image has no more, and gives the places of those that nobody has changed, by path.
    pub(super) fn gone(
        &mut self,
        sysroot: &Path,
        lists: &Lists,
    ) -> Result<BTreeMap<String, PathBuf>> {
        let mut gone = BTreeMap::new();
        for (path, brought) in &self.0 {
            if !lists.contains_key(path)
                && of_node(sysroot, path)?.as_ref() == Some(brought)
                && let Some(place) = place(sysroot, path)
            {
                gone.insert(path.clone(), place);
            }
        }
        self.0.retain(|path, _| !gone.contains_key(path));
        Ok(gone)
    }
}

/// Whether entries at this path follow the image.
fn follows(path: &str) -> bool {
    FOLLOWING.iter().any(|folder| {
        let below = path.strip_prefix(folder);
        below.is_some_and(|rest| rest.starts_with('/'))
    })
}

/// The hash of what the image has for a path; none for a folder, for what does not follow, and for a file that is not in the root.
fn of_image(sysroot: &Path, path: &str, content: &Content) -> Result<Option<String>> {
    if !follows(path) {
        return Ok(None);
    }
    match content {
        Content::Folder(_) => Ok(None),
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

/// The hash of what the node has at a path; none if that is nothing, no file and no link, or behind a link.
fn of_node(sysroot: &Path, path: &str) -> Result<Option<String>> {
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
    if !meta.is_file() {
        return Ok(None);
    }
    let rights = Rights {
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
    };
    of_file(&place, rights).map(Some)
}

/// Where a path is, if all folders above it are folders: a link would lead elsewhere here than on the running node.
fn place(sysroot: &Path, path: &str) -> Option<PathBuf> {
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
