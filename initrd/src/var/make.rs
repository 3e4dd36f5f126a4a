//! Makes entries below `/var`, each under a temporary name that is renamed when all of them are on the disk: after a power cut a
//! half-made entry does not count as there.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::paths::FACTORY;
use image::var_list::{Content, Rights};

use super::cut::failpoint;
use super::follow::{self, Lists};

/// The folder that all paths of the lists are in.
const VAR: &str = "/var";
/// Of a folder that no list has: a package's own line of tmpfiles.d(5) has its mode and owner.
const FOLDER: Rights = Rights {
    mode: 0o755,
    uid: 0,
    gid: 0,
};

/// Entries of an image's lists on their way to `/var`.
#[derive(Debug)]
pub(super) struct Making<'a> {
    sysroot: &'a Path,
    lists: &'a Lists,
    /// How many entries were made.
    pub(super) count: usize,
    /// Where the content of a folder goes, and whether others see it there; none where something else is in the folder's place, or
    /// the folder is immutable.
    folders: BTreeMap<String, Option<(PathBuf, bool)>>,
    /// Complete entries that wait for their rename.
    waiting: Vec<(PathBuf, PathBuf)>,
}

impl<'a> Making<'a> {
    pub(super) fn new(sysroot: &'a Path, lists: &'a Lists) -> Self {
        Self {
            sysroot,
            lists,
            count: 0,
            folders: BTreeMap::from([(VAR.to_owned(), Some((sysroot.join("var"), true)))]),
            waiting: Vec::new(),
        }
    }

    /// Makes an entry if nothing is at its path; whether something is there then.
    pub(super) fn one(&mut self, path: &str) -> Result<bool> {
        let Some((folder, seen)) = self.parent(path)? else {
            return Ok(false);
        };
        let place = folder.join(name(path));
        if place.symlink_metadata().is_ok() || self.folders.contains_key(path) {
            return Ok(true);
        }
        match &self.lists[path] {
            Content::Folder(_) => self.folder(path).map(|made| made.is_some()),
            content => self.make(path, content, &place, seen),
        }
    }

    /// Makes an entry anew that is there.
    pub(super) fn replace(&mut self, path: &str) -> Result<()> {
        if let Some((folder, seen)) = self.parent(path)? {
            self.make(path, &self.lists[path], &folder.join(name(path)), seen)?;
        }
        Ok(())
    }

    /// Makes a file or a link; whether the image has it.
    fn make(&mut self, path: &str, content: &Content, place: &Path, seen: bool) -> Result<bool> {
        match content {
            Content::Folder(_) => Ok(false),
            Content::Link(target) => {
                let made = self.target(place, seen)?;
                symlink(target, made).context("making the link")?;
                Ok(true)
            }
            Content::File(rights) => {
                let from = self
                    .sysroot
                    .join(format!("{FACTORY}{path}").trim_start_matches('/'));
                let Ok(time) = from.metadata().and_then(|meta| meta.modified()) else {
                    tracing::warn!("the image has no {}, which its list names", from.display());
                    return Ok(false);
                };
                let made = self.target(place, seen)?;
                fs::copy(&from, &made).context("copying the file")?;
                settle(&made, *rights)?;
                File::open(&made)?.set_times(FileTimes::new().set_modified(time))?;
                Ok(true)
            }
        }
    }

    /// The folder that an entry is made in.
    fn parent(&mut self, path: &str) -> Result<Option<(PathBuf, bool)>> {
        let (parent, _) = path.rsplit_once('/').context("a path below /var")?;
        self.folder(parent)
    }

    /// Where the content of a folder goes. The folder is made if nothing is there: it is listed or above what is.
    fn folder(&mut self, path: &str) -> Result<Option<(PathBuf, bool)>> {
        if let Some(known) = self.folders.get(path) {
            return Ok(known.clone());
        }
        let found = match self.parent(path)? {
            Some((parent, seen)) => self.folder_in(&parent.join(name(path)), path, seen)?,
            None => None,
        };
        self.folders.insert(path.to_owned(), found.clone());
        Ok(found)
    }

    fn folder_in(
        &mut self,
        place: &Path,
        path: &str,
        seen: bool,
    ) -> Result<Option<(PathBuf, bool)>> {
        match place.symlink_metadata() {
            Ok(meta) if meta.is_dir() && !follow::is_fixed(place) => {
                return Ok(Some((place.to_owned(), seen)));
            }
            // A link leads elsewhere here than on the running node, and an immutable folder takes nothing.
            Ok(_) => return Ok(None),
            Err(_) => {}
        }
        let rights = match self.lists.get(path) {
            Some(Content::Folder(rights)) => *rights,
            _ => FOLDER,
        };
        let made = self.target(place, seen)?;
        fs::create_dir(&made).context("making the folder")?;
        settle(&made, rights)?;
        Ok(Some((made, false)))
    }

    /// The path under which an entry is made: a temporary one where others see its place.
    fn target(&mut self, place: &Path, seen: bool) -> Result<PathBuf> {
        failpoint()?;
        self.count += 1;
        if !seen {
            return Ok(place.to_owned());
        }
        let beside = beside(place)?;
        remove(&beside)?;
        self.waiting.push((beside.clone(), place.to_owned()));
        Ok(beside)
    }

    /// Puts all that was made into its place, once it is on the disk. `sync` waits for that.
    pub(super) fn rename(&self, sync: impl Fn() -> Result<()>) -> Result<()> {
        if !self.waiting.is_empty() {
            sync()?;
        }
        for (beside, place) in &self.waiting {
            failpoint()?;
            fs::rename(beside, place)
                .with_context(|| format!("renaming to {}", place.display()))?;
        }
        Ok(())
    }

    /// Removes what was made and is not in its place: on a full disk it would take the last space.
    pub(super) fn discard(&self) {
        for (beside, _) in &self.waiting {
            if let Err(error) = failpoint().and_then(|()| remove(beside)) {
                tracing::warn!("{}: {error:#}", beside.display());
            }
        }
    }
}

/// Removes the temporary entry of an attempt that was cut off, if there is one.
pub(super) fn remove_beside(place: &Path) -> Result<()> {
    remove(&beside(place)?)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The temporary path of an entry.
fn beside(to: &Path) -> Result<PathBuf> {
    let name = to.file_name().context("an entry has a name")?;
    Ok(to.with_file_name(format!(".{}.slipway", name.to_string_lossy())))
}

fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    removed.with_context(|| format!("removing {}", path.display()))
}

/// The owner before the mode, since a change of owner clears the set-user-id bit.
fn settle(path: &Path, rights: Rights) -> Result<()> {
    let Rights { mode, uid, gid } = rights;
    failpoint()?;
    lchown(path, Some(uid), Some(gid)).context("setting the owner")?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).context("setting the mode")
}
