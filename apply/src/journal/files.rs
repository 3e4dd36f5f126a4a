//! The journal of the files: the state of each file before the first boot wrote to it. The boot after a power cut
//! undoes the changes, and so starts from the same state as the first one, even with another config.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use image::paths::STATE_FILES as JOURNAL;
use serde::{Deserialize, Serialize};

use super::StateFile;
use crate::digest::sha256;
use crate::tree::{Tree, TreeEntry, join, split};

/// The kind of a file that existed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Folder,
    Link(String),
    /// Bytes and SHA-256 of a regular file.
    File(u64, String),
    Other,
}

/// A file that existed, with its mode and owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Before {
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
}

/// One path that the config changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Change {
    /// The file that existed, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Before>,
    /// The file that the config makes: SHA-256 of its content, or the target of a link. None if not known beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// Whether a folder is made with its complete content: a home.
    whole: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Content {
    /// SHA-256 of the config.
    config: String,
    /// UUID of the file system at `/var` whose writable layer of `/etc` was empty when the first boot began.
    #[serde(skip_serializing_if = "Option::is_none")]
    etc: Option<String>,
    /// Folders that were made for mount points.
    folders: BTreeSet<String>,
    /// Real paths.
    places: BTreeMap<String, Change>,
    /// Real paths where an earlier attempt, as its config allowed, replaced a file that cannot be restored.
    replaced: BTreeSet<String>,
    /// Users and groups that did not exist.
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
}

/// The journal of the files that a first boot writes. The default one is not stored.
#[derive(Debug, Default)]
pub struct FileJournal(StateFile<Content>);

/// The changes that a config is about to make.
#[derive(Debug, Default)]
pub struct Intent {
    places: BTreeMap<String, Change>,
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
}

impl Intent {
    /// A file is written at `path`: `after` is its content.
    pub fn file(&mut self, tree: &Tree, path: &str, after: Option<&[u8]>) -> Result<()> {
        self.record(tree, path, after.map(sha256), false)
    }

    /// A file is written at `path` whose content has this SHA-256.
    pub fn file_of(&mut self, tree: &Tree, path: &str, sha256: String) -> Result<()> {
        self.record(tree, path, Some(sha256), false)
    }

    /// A link to `target` is made at `path`; without a target, the existing one is removed.
    pub fn link(&mut self, tree: &Tree, path: &str, target: Option<&str>) -> Result<()> {
        self.record(tree, path, target.map(str::to_owned), false)
    }

    /// A folder is made at `path`, or gets another mode or owner.
    pub fn folder(&mut self, tree: &Tree, path: &str) -> Result<()> {
        self.record(tree, path, None, false)
    }

    /// A folder is made at `path` with its complete content.
    pub fn home(&mut self, tree: &Tree, path: &str) -> Result<()> {
        self.record(tree, path, None, true)
    }

    /// Users and groups that are added.
    pub fn accounts(&mut self, users: BTreeSet<String>, groups: BTreeSet<String>) {
        self.users = users;
        self.groups = groups;
    }

    fn record(
        &mut self,
        tree: &Tree,
        path: &str,
        after: Option<String>,
        whole: bool,
    ) -> Result<()> {
        let real = tree.real(path)?;
        // The folders above it that are made too.
        let mut above = split(&real).0;
        while above != "/" && tree.find(above).is_none_or(|entry| entry.stat().is_none()) {
            self.places.entry(above.to_owned()).or_default();
            above = split(above).0;
        }
        let before = match tree.find(&real) {
            Some(entry) => state_of(tree, &entry)?,
            None => None,
        };
        let change = Change {
            before,
            after,
            whole,
        };
        let slot = self.places.entry(real).or_default();
        // A folder above another path may be an entry of the config, too.
        if !slot.whole {
            *slot = change;
        }
        Ok(())
    }
}

fn state_of(tree: &Tree, entry: &TreeEntry) -> Result<Option<Before>> {
    let Some(meta) = entry.stat() else {
        return Ok(None);
    };
    let kind = if meta.is_dir() {
        Kind::Folder
    } else if meta.is_file() {
        let (bytes, sha256) = entry.sha256()?;
        Kind::File(bytes, sha256)
    } else {
        entry.link_target().map_or(Kind::Other, Kind::Link)
    };
    Ok(Some(Before {
        kind,
        mode: meta.permissions().mode() & 0o7777,
        owner: tree.owner(entry),
    }))
}

impl FileJournal {
    /// The journal below `state`; an empty one if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(state: &Path) -> Result<Self> {
        StateFile::read(Some(state.join(JOURNAL))).map(Self)
    }

    /// Removes a journal that belongs to another node.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(state: &Path) -> Result<()> {
        super::remove(&state.join(JOURNAL))
    }

    /// Changes the path of `state`, which was mounted elsewhere.
    pub fn keep_in(&mut self, state: &Path) {
        self.0.path = Some(state.join(JOURNAL));
    }

    /// Whether the writable layer of `/etc` on the file system with this UUID holds only files of an interrupted first
    /// boot.
    pub fn etc_is_ours(&self, var: &str) -> bool {
        self.0.content.etc.as_deref() == Some(var)
    }

    /// Records that the layer on this file system is empty.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn note_etc(&mut self, var: &str) -> Result<()> {
        self.0.content.etc = Some(var.to_owned());
        self.write()
    }

    /// Records folders before they are made for mount points; returns them together with those of earlier attempts.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn note_folders(&mut self, folders: &[String]) -> Result<Vec<String>> {
        let known = self.0.content.folders.len();
        self.0.content.folders.extend(folders.iter().cloned());
        if self.0.content.folders.len() > known {
            self.write()?;
        }
        Ok(self.0.content.folders.iter().cloned().collect())
    }

    /// Whether the journal is stored.
    pub const fn is_kept(&self) -> bool {
        self.0.path.is_some()
    }

    /// Whether an earlier attempt was interrupted after its first write.
    pub fn is_resumed(&self) -> bool {
        !self.0.content.places.is_empty()
    }

    /// Whether an earlier attempt replaced the file at this real path irrevocably.
    pub fn replaced(&self, real: &str) -> bool {
        self.0.content.replaced.contains(real)
    }

    /// Accounts that an earlier attempt may have half made: users, then groups.
    pub const fn accounts(&self) -> (&BTreeSet<String>, &BTreeSet<String>) {
        (&self.0.content.users, &self.0.content.groups)
    }

    /// Records the changes before they are made; on the disk when this returns.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn begin(&mut self, config: &str, intent: Intent) -> Result<()> {
        config.clone_into(&mut self.0.content.config);
        self.0.content.places = intent.places;
        self.0.content.users = intent.users;
        self.0.content.groups = intent.groups;
        self.write()
    }

    /// Undoes an attempt that was interrupted. No other program has written since.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn undo(&mut self, tree: &Tree) -> Result<()> {
        if !self.is_resumed() {
            return Ok(());
        }
        tracing::warn!("ignition: undoing an earlier attempt that was interrupted");
        // Deeper paths first, so that folders are empty when they are removed.
        for (real, change) in self.0.content.places.iter().rev() {
            let (above, name) = split(real);
            if let Some(beside) = tree.find(&join(above, &crate::tree::temporary_name(name))) {
                beside.remove()?;
            }
            let Some(entry) = tree.find(real) else {
                if change.before.is_some() {
                    self.0.content.replaced.insert(real.clone());
                }
                continue;
            };
            let whole = match &change.before {
                None => remove_created(&entry, change).map(|()| true),
                Some(was) => restore(tree, &entry, was),
            };
            if !whole.with_context(|| format!("taking back what was done to {real}"))? {
                self.0.content.replaced.insert(real.clone());
            }
        }
        for folder in self.0.content.folders.iter().rev() {
            if let Some(entry) = tree.find(folder) {
                entry.remove_empty();
            }
        }
        tree.finish()
    }

    fn write(&self) -> Result<()> {
        if self.is_kept() {
            crate::tree::failpoint()?;
        }
        // Only root may read hashes of files that only root may read.
        self.0.write(0o600)
    }
}

/// Removes a file that did not exist before. A file whose content differs from the config's was written by another
/// program and stays.
fn remove_created(entry: &TreeEntry, change: &Change) -> Result<()> {
    let Some(meta) = entry.stat() else {
        return Ok(());
    };
    if meta.is_dir() {
        if change.whole {
            return entry.remove();
        }
        entry.remove_empty();
        return Ok(());
    }
    let ours = match &change.after {
        None => true,
        Some(after) if meta.is_file() => *after == entry.sha256()?.1,
        Some(after) => entry.link_target().as_ref() == Some(after),
    };
    match ours {
        true => entry.remove(),
        false => Ok(()),
    }
}

/// Restores a file; returns whether that was possible.
fn restore(tree: &Tree, entry: &TreeEntry, was: &Before) -> Result<bool> {
    let now = state_of(tree, entry)?;
    match (&was.kind, now.as_ref().map(|now| &now.kind)) {
        (Kind::File(size, sum), Some(Kind::File(_, now))) if sum != now => {
            // A file that was appended to starts with its old content.
            let data = entry.read_first(*size)?;
            if sha256(&data) != *sum {
                return Ok(false);
            }
            tree.write(entry, &data, was.mode, was.owner)?;
            return Ok(true);
        }
        (Kind::Link(target), None) => {
            tree.link(entry, target, was.owner)?;
            return Ok(true);
        }
        (before, Some(now)) if before == now => {}
        _ => return Ok(false),
    }
    if now.as_ref() != Some(was) {
        tree.own(entry, was.owner)?;
        tree.chmod(entry, was.mode)?;
    }
    Ok(true)
}
