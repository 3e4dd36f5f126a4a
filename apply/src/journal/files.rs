//! What the files of a config were before the first boot wrote to them, in `state`: a boot that was cut off is undone by
//! the next one, which so begins where the first began, whatever the config says by then.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use image::paths::STATE_FILES as JOURNAL;
use serde::{Deserialize, Serialize};

use super::StateFile;
use crate::digest::sha256;
use crate::tree::{Tree, TreeEntry, join, split};

/// What stood at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Folder,
    Link(String),
    /// Bytes and SHA-256 of a regular file.
    File(u64, String),
    Other,
}

/// What stood at a place, with its mode and owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Before {
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
}

/// One place that the config touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Change {
    /// What was there; nothing if it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Before>,
    /// What the config brings: SHA-256 of a file, or the target of a link. Nothing for what cannot be known beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// Whether a folder is made with all that is in it: a home.
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
    /// Places where an earlier attempt has replaced, as its config allowed, what nobody can bring back.
    replaced: BTreeSet<String>,
    /// Users and groups that were not there.
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
}

/// The journal of the files that a first boot writes. The default one is kept nowhere.
#[derive(Debug, Default)]
pub struct FileJournal(StateFile<Content>);

/// What a config is about to do.
#[derive(Debug, Default)]
pub struct Intent {
    places: BTreeMap<String, Change>,
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
}

impl Intent {
    /// Something is written at `path`: `after` is the content of a file.
    pub fn file(&mut self, tree: &Tree, path: &str, after: Option<&[u8]>) -> Result<()> {
        self.record(tree, path, after.map(sha256), false)
    }

    /// A link to `target` is made at `path`, or what is there goes.
    pub fn link(&mut self, tree: &Tree, path: &str, target: Option<&str>) -> Result<()> {
        self.record(tree, path, target.map(str::to_owned), false)
    }

    /// A folder is made at `path`, or gets another mode or owner.
    pub fn folder(&mut self, tree: &Tree, path: &str) -> Result<()> {
        self.record(tree, path, None, false)
    }

    /// A folder is made at `path` with all that is in it.
    pub fn home(&mut self, tree: &Tree, path: &str) -> Result<()> {
        self.record(tree, path, None, true)
    }

    /// Names that get an account and have none.
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
        // The folders above it that are made on the way.
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
        // A folder on the way to another place may be one that is asked for, too.
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
        let data = entry.read()?;
        Kind::File(data.len() as u64, sha256(&data))
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

    /// Removes the journal, which is another node's.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(state: &Path) -> Result<()> {
        super::remove(&state.join(JOURNAL))
    }

    /// `state` is mounted elsewhere from now on.
    pub fn keep_in(&mut self, state: &Path) {
        self.0.path = Some(state.join(JOURNAL));
    }

    /// Whether the writable layer of `/etc` on the file system with this UUID holds nothing but what a first boot that
    /// was cut off has put there.
    pub fn etc_is_ours(&self, var: &str) -> bool {
        self.0.content.etc.as_deref() == Some(var)
    }

    /// Notes that the layer on this file system is empty.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn note_etc(&mut self, var: &str) -> Result<()> {
        self.0.content.etc = Some(var.to_owned());
        self.write()
    }

    /// Notes folders before they are made for mount points; gives those of earlier attempts with them.
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

    /// Whether it is kept anywhere.
    pub const fn is_kept(&self) -> bool {
        self.0.path.is_some()
    }

    /// Whether an earlier attempt was cut off after it had begun to write.
    pub fn is_resumed(&self) -> bool {
        !self.0.content.places.is_empty()
    }

    /// Whether an earlier attempt has already replaced what was at this real path.
    pub fn replaced(&self, real: &str) -> bool {
        self.0.content.replaced.contains(real)
    }

    /// Accounts that an earlier attempt may have half made: users, then groups.
    pub const fn accounts(&self) -> (&BTreeSet<String>, &BTreeSet<String>) {
        (&self.0.content.users, &self.0.content.groups)
    }

    /// Notes what is about to be done, on the disk when this returns.
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

    /// Takes back what an attempt that was cut off has done. Nothing but this program has written since.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn undo(&mut self, tree: &Tree) -> Result<()> {
        if !self.is_resumed() {
            return Ok(());
        }
        tracing::warn!("ignition: undoing an earlier attempt that was interrupted");
        // What is deeper comes first.
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
        // Hashes and owners of what is below /etc are nobody else's to read.
        self.0.write(0o600)
    }
}

/// Removes what was not there before. What has another content than the config brought is somebody else's and stays.
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
        Some(after) if meta.is_file() => *after == sha256(&entry.read()?),
        Some(after) => entry.link_target().as_ref() == Some(after),
    };
    match ours {
        true => entry.remove(),
        false => Ok(()),
    }
}

/// Brings back what was there; whether that was possible.
fn restore(tree: &Tree, entry: &TreeEntry, was: &Before) -> Result<bool> {
    let now = state_of(tree, entry)?;
    match (&was.kind, now.as_ref().map(|now| &now.kind)) {
        (Kind::File(size, sum), Some(Kind::File(_, now))) if sum != now => {
            // What was appended to begins with what was there.
            let mut data = entry.read()?;
            data.truncate(usize::try_from(*size)?);
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
