//! Files, directories and links: checked against the root before the first write, then made.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::Result;
use ignition::model::{Directory, File, Link, NodeGroup, NodeUser};

use crate::accounts::Accounts;
use crate::fetched::{Content, Contents, Fetched};
use crate::joined::Joined;
use crate::journal::files::{FileJournal, Intent};
use crate::tree::{Tree, TreeEntry, is_below, split};

/// One entry to make, with all decisions.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// Path as the config has it.
    path: String,
    owner: (Option<u32>, Option<u32>),
    mode: Option<u32>,
    /// Whether the config replaces an existing entry: the mode and owner of that one are not kept either.
    overwrite: bool,
    kind: Kind<'a>,
}

#[derive(Debug)]
enum Kind<'a> {
    Directory {
        /// Whether the directory exists and [`empty`] makes it anew.
        emptied: bool,
    },
    File {
        contents: Option<&'a Content>,
        append: &'a [Content],
    },
    Link {
        target: String,
        hard: bool,
    },
}

/// Plans all entries, in the order in which they are made: shallow ones first, hard links last. Problems are added to
/// `wrong`. `repeated` means that an earlier run completed.
pub(crate) fn plan<'a>(
    fetched: &'a Fetched,
    tree: &Tree,
    accounts: &Accounts,
    (journal, repeated): (&FileJournal, bool),
    wrong: &mut Vec<String>,
) -> Vec<Entry<'a>> {
    let Some(storage) = &fetched.model.storage else {
        return Vec::new();
    };
    let emptied = match repeated {
        // What is in them now is of the earlier run, or came later.
        true => Vec::new(),
        false => emptied(tree, storage.directories.as_deref().unwrap_or_default()),
    };
    let filesystems = storage.filesystems.iter().flatten();
    let mut planner = EntryPlanner {
        tree,
        accounts,
        journal,
        mounts: filesystems.filter_map(|model| model.path.clone()).collect(),
        emptied,
        seen: BTreeMap::new(),
        wrong,
    };
    let mut out = Vec::new();
    for (i, directory) in storage.directories.iter().flatten().enumerate() {
        out.push(planner.directory(&format!("$.storage.directories.{i}"), directory));
    }
    let files = storage.files.iter().flatten().zip(&fetched.files);
    for (i, (file, contents)) in files.enumerate() {
        out.push(planner.file(&format!("$.storage.files.{i}"), file, contents));
    }
    for (i, link) in storage.links.iter().flatten().enumerate() {
        out.push(planner.link(&format!("$.storage.links.{i}"), link));
    }
    let hard = |entry: &Entry<'_>| matches!(entry.kind, Kind::Link { hard: true, .. });
    out.sort_by_key(|entry| (hard(entry), entry.path.matches('/').count()));
    out
}

/// Real paths of the existing directories that `overwrite` empties.
fn emptied(tree: &Tree, directories: &[Directory]) -> Vec<String> {
    let existing = |directory: &Directory| {
        let entry = tree.find(&through_var_link(tree, &directory.path))?;
        let is_dir = entry.stat().is_some_and(|meta| meta.is_dir());
        is_dir.then_some(entry.real)
    };
    let overwritten = directories.iter().filter(|d| d.overwrite == Some(true));
    overwritten.filter_map(existing).collect()
}

/// Removes the directories that `overwrite` empties, and makes them anew: before the accounts, since homes of the config may be
/// in them. After a power cut the content cannot be restored, as that of a file that was overwritten.
pub(crate) fn empty(tree: &Tree, entries: &[Entry<'_>]) -> Result<()> {
    for entry in entries {
        if !matches!(entry.kind, Kind::Directory { emptied: true }) {
            continue;
        }
        // One that was in another one is gone, and made later.
        let place = tree.find(&entry.path);
        if let Some(place) = place.filter(|place| place.stat().is_some_and(|now| now.is_dir())) {
            tree.remove(&place)?;
            tree.make_folder(&place, entry.mode.unwrap_or(0o755), entry.owner_or((0, 0)))?;
        }
    }
    Ok(())
}

/// Whether the existing file of `size` bytes holds the `wanted` content already: all of it where the config gives contents,
/// else its end where an earlier run may have appended it.
fn stays(
    entry: &TreeEntry,
    size: u64,
    is_whole: bool,
    wanted: &Joined<'_>,
    repeated: bool,
) -> Result<bool> {
    let before = match is_whole {
        true if size == wanted.length() => 0,
        false if wanted.length() == 0 => return Ok(true),
        false if repeated && size >= wanted.length() => size - wanted.length(),
        _ => return Ok(false),
    };
    let mut file = entry.open()?;
    file.seek(SeekFrom::Start(before))?;
    Ok(wanted.is(file)?)
}

/// A directory entry for one of the node's own links into `/var` means the folder behind it.
fn through_var_link(tree: &Tree, path: &str) -> String {
    let link = tree.rules.var_links.iter().find(|(link, _)| *link == path);
    match link {
        Some((link, target)) => ignition::validate::clean(&format!("{}/{target}", split(link).0)),
        None => path.to_owned(),
    }
}

fn mode(mode: Option<i64>) -> Option<u32> {
    mode.and_then(|mode| u32::try_from(mode).ok())
}

/// Whether the link exists already.
fn matches(tree: &Tree, path: &str, target: &str, hard: bool) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Some(entry) = tree.find(path) else {
        return false;
    };
    if !hard {
        let now = entry.link_target();
        return now.is_some_and(|now| clean_target(&now) == clean_target(target));
    }
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    let other = tree
        .find(&hard_target(target))
        .and_then(|other| other.stat());
    entry.stat().map(id) == other.map(id)
}

/// A relative target of a hard link is relative to the root, as for Ignition.
fn hard_target(target: &str) -> String {
    match target.starts_with('/') {
        true => target.to_owned(),
        false => ignition::validate::clean(&format!("/{target}")),
    }
}

/// The target of a link as Go's `filepath.Clean` has it, by which Ignition compares.
fn clean_target(target: &str) -> String {
    if target.starts_with('/') {
        return ignition::validate::clean(target);
    }
    let mut out: Vec<&str> = Vec::new();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if out.last().is_some_and(|last| *last != "..") => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.join("/")
}

struct EntryPlanner<'a> {
    tree: &'a Tree,
    accounts: &'a Accounts,
    journal: &'a FileJournal,
    /// Mount points of the config.
    mounts: Vec<String>,
    /// Real paths of directories whose content is removed before the entries are made.
    emptied: Vec<String>,
    seen: BTreeMap<String, String>,
    wrong: &'a mut Vec<String>,
}

impl EntryPlanner<'_> {
    fn wrong(&mut self, at: &str, path: &str, why: &str) {
        self.wrong.push(format!("{at}: {path}: {why}"));
    }

    /// Whether an interrupted attempt, whose config allowed it, replaced the former content of this path.
    fn replaced(&self, path: &str) -> bool {
        let real = self.tree.real(path);
        real.is_ok_and(|real| self.journal.replaced(&real))
    }

    /// Checks that the path is writable and no other entry's; returns the metadata of the file that exists when the entry is
    /// made.
    fn check(&mut self, at: &str, path: &str) -> Option<Metadata> {
        match self.tree.check_writable(path) {
            Ok(real) => {
                let mut removed = self.emptied.iter().chain(&self.accounts.removed);
                let is_removed = removed.any(|above| is_below(&real, above));
                if let Some(other) = self.seen.insert(real, at.to_owned()) {
                    self.wrong(at, path, &format!("it is the same file as that of {other}"));
                }
                if is_removed {
                    return None;
                }
                self.tree.find(path)?.stat()
            }
            Err(error) => {
                self.wrong.push(format!("{at}: {error}"));
                None
            }
        }
    }

    /// Checks that an existing directory, which an entry with `overwrite` replaces, can be removed.
    fn check_removable(&mut self, at: &str, path: &str, now: Option<&Metadata>) {
        if now.is_none_or(|now| !now.is_dir()) {
            return;
        }
        let entry = self.tree.find(path);
        if let Some(Err(why)) = entry.map(|entry| self.tree.check_removable(&entry)) {
            self.wrong(at, path, &why);
        }
    }

    fn directory<'a>(&mut self, at: &str, directory: &Directory) -> Entry<'a> {
        let path = through_var_link(self.tree, &directory.path);
        let overwrite = directory.overwrite == Some(true);
        let now = self.check(at, &path);
        if now.as_ref().is_some_and(|now| !now.is_dir()) && !overwrite && !self.replaced(&path) {
            let why = "it exists and is not a directory; overwrite is not set";
            self.wrong(at, &path, why);
        }
        let mut mounts = self.mounts.iter();
        let mount = mounts.find(|m| **m == path || is_below(m, &path)).cloned();
        if let Some(mount) = mount.filter(|_| overwrite) {
            // Known before the file system is made and mounted.
            let why = format!("overwrite cannot remove it: a file system is mounted at {mount}");
            self.wrong(at, &path, &why);
        } else if overwrite && self.is_emptied(&path) {
            self.check_removable(at, &path, now.as_ref());
        }
        Entry {
            owner: self.owner(at, directory.user.as_ref(), directory.group.as_ref()),
            mode: mode(directory.mode),
            overwrite,
            kind: Kind::Directory {
                emptied: overwrite && self.is_emptied(&path),
            },
            path,
        }
    }

    fn is_emptied(&self, path: &str) -> bool {
        let real = self.tree.real(path);
        real.is_ok_and(|real| self.emptied.contains(&real))
    }

    fn file<'a>(&mut self, at: &str, file: &File, contents: &'a Contents) -> Entry<'a> {
        let now = self.check(at, &file.path);
        let overwrite = file.overwrite == Some(true);
        if overwrite || self.replaced(&file.path) {
            self.check_removable(at, &file.path, now.as_ref());
        } else if let Some(now) = now {
            self.check_existing(at, &file.path, &now, contents);
        }
        Entry {
            path: file.path.clone(),
            owner: self.owner(at, file.user.as_ref(), file.group.as_ref()),
            mode: mode(file.mode),
            overwrite,
            kind: Kind::File {
                contents: contents.contents.as_ref(),
                append: &contents.append,
            },
        }
    }

    /// An existing file may stay only if it matches the config: a second run finds the result of the first one.
    fn check_existing(&mut self, at: &str, path: &str, now: &Metadata, wanted: &Contents) {
        if !now.is_file() {
            let why = "it exists and is not a regular file; overwrite is not set";
            self.wrong(at, path, why);
        } else if let Some(contents) = &wanted.contents {
            let all = Joined::of(Some(contents), &wanted.append);
            let found = self.tree.find(path).and_then(|entry| entry.open().ok());
            let is = |found: std::fs::File| all.is(found).unwrap_or(false);
            if now.len() != all.length() || !found.is_some_and(is) {
                let why = "it exists with other contents; overwrite is not set";
                self.wrong(at, path, why);
            }
        }
    }

    fn link<'a>(&mut self, at: &str, link: &Link) -> Entry<'a> {
        let target = link.target.clone().unwrap_or_default();
        let hard = link.hard == Some(true);
        let now = self.check(at, &link.path);
        let overwrite = link.overwrite == Some(true);
        if overwrite || self.replaced(&link.path) {
            self.check_removable(at, &link.path, now.as_ref());
        } else if now.is_some() && !matches(self.tree, &link.path, &target, hard) {
            let why = "it exists and is not this link; overwrite is not set";
            self.wrong(at, &link.path, why);
        }
        Entry {
            path: link.path.clone(),
            owner: self.owner(at, link.user.as_ref(), link.group.as_ref()),
            mode: None,
            overwrite,
            kind: Kind::Link { target, hard },
        }
    }

    fn owner(
        &mut self,
        at: &str,
        user: Option<&NodeUser>,
        group: Option<&NodeGroup>,
    ) -> (Option<u32>, Option<u32>) {
        let user_name = user.and_then(|user| user.name.as_deref());
        let uid = self.id(
            (at, "user"),
            user.and_then(|user| user.id),
            user_name,
            user_name.and_then(|name| self.accounts.uid(name)),
        );
        let group_name = group.and_then(|group| group.name.as_deref());
        let gid = self.id(
            (at, "group"),
            group.and_then(|group| group.id),
            group_name,
            group_name.and_then(|name| self.accounts.gid(name)),
        );
        (uid, gid)
    }

    /// The id of the config's entry, else that of `name` (`known`).
    fn id(
        &mut self,
        (at, what): (&str, &str),
        id: Option<i64>,
        name: Option<&str>,
        known: Option<u32>,
    ) -> Option<u32> {
        match (id, name.filter(|name| !name.is_empty())) {
            (Some(id), _) => {
                let valid = u32::try_from(id).ok();
                if valid.is_none() {
                    self.wrong
                        .push(format!("{at}.{what}: {id} is not a valid id"));
                }
                valid
            }
            (None, Some(name)) => {
                if known.is_none() {
                    self.wrong.push(format!("{at}.{what}: no {what} {name}"));
                }
                known
            }
            (None, None) => None,
        }
    }
}

impl Entry<'_> {
    /// Records the paths that [`Entry::apply`] will write to.
    pub(crate) fn intend(&self, tree: &Tree, intent: &mut Intent) -> Result<()> {
        match &self.kind {
            Kind::Directory { .. } => intent.folder(tree, &self.path),
            Kind::File { contents, append } => {
                let whole = Joined::of(*contents, append);
                intent.file_of(tree, &self.path, whole.sha256()?)
            }
            Kind::Link { hard: true, .. } => intent.link(tree, &self.path, None),
            Kind::Link { target, .. } => intent.link(tree, &self.path, Some(target)),
        }
    }

    /// Makes the entry. [`plan`] decided whether it may replace an existing file. `repeated` means that an earlier run
    /// completed, so no journal has the state before it.
    pub(crate) fn apply(&self, tree: &Tree, repeated: bool) -> Result<()> {
        let entry = tree.entry(&self.path)?;
        if let Kind::Link { hard: true, .. } = self.kind {
            // The link's target may be one of the files that are not renamed yet.
            tree.settle()?;
        }
        match &self.kind {
            Kind::Directory { .. } => self.directory(tree, &entry),
            Kind::File { contents, append } => self.file(tree, &entry, *contents, append, repeated),
            Kind::Link { target, hard } => {
                if matches(tree, &self.path, target, *hard) {
                    return match hard {
                        true => Ok(()),
                        false => tree.own(&entry, self.owner_or(self.kept_owner(tree, &entry))),
                    };
                }
                entry.remove()?;
                match hard {
                    true => tree.hard_link(&entry, &hard_target(target)),
                    false => tree.link(&entry, target, self.owner_or((0, 0))),
                }
            }
        }
    }

    fn owner_or(&self, otherwise: (u32, u32)) -> (u32, u32) {
        (
            self.owner.0.unwrap_or(otherwise.0),
            self.owner.1.unwrap_or(otherwise.1),
        )
    }

    fn directory(&self, tree: &Tree, entry: &TreeEntry) -> Result<()> {
        match entry.stat() {
            Some(now) if now.is_dir() => self.permissions(tree, entry, 0o755),
            now => {
                if now.is_some() {
                    entry.remove()?;
                }
                tree.make_folder(entry, self.mode.unwrap_or(0o755), self.owner_or((0, 0)))
            }
        }
    }

    /// The owner of an existing entry, if the config does not replace it.
    fn kept_owner(&self, tree: &Tree, entry: &TreeEntry) -> (u32, u32) {
        match self.overwrite {
            true => (0, 0),
            false => tree.owner(entry),
        }
    }

    /// Sets owner and mode of an entry that stays; `new` is the mode of one that is made.
    fn permissions(&self, tree: &Tree, entry: &TreeEntry, new: u32) -> Result<()> {
        tree.own(entry, self.owner_or(self.kept_owner(tree, entry)))?;
        match self.mode.or(self.overwrite.then_some(new)) {
            Some(mode) => tree.chmod(entry, mode),
            None => Ok(()),
        }
    }

    fn file(
        &self,
        tree: &Tree,
        entry: &TreeEntry,
        contents: Option<&Content>,
        append: &[Content],
        repeated: bool,
    ) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let now = entry.stat();
        if now.as_ref().is_some_and(|meta| !meta.is_file()) {
            entry.remove()?;
        }
        let old = now.filter(Metadata::is_file);
        let wanted = Joined::of(contents, append);
        if let Some(old) = &old
            && stays(entry, old.len(), contents.is_some(), &wanted, repeated)?
        {
            return self.permissions(tree, entry, 0o644);
        }
        // Contents make a new file; appending keeps mode and owner of the existing one.
        let kept = old.filter(|_| contents.is_none());
        let owner = self.owner_or(kept.as_ref().map_or((0, 0), |_| tree.owner(entry)));
        let mode = |meta: &Metadata| meta.permissions().mode() & 0o7777;
        let mode = self.mode.unwrap_or(kept.as_ref().map_or(0o644, mode));
        match (kept, wanted.file()) {
            (None, Some(file)) => tree.take(entry, file, mode, owner),
            (None, None) => tree.write_from(entry, &mut wanted.reader()?, mode, owner),
            (Some(_), _) => {
                let mut both = entry.open()?.chain(wanted.reader()?);
                tree.write_from(entry, &mut both, mode, owner)
            }
        }
    }

    /// Whether this is a regular file, for counting.
    pub(crate) const fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File { .. })
    }
}
