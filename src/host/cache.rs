//! The cache: downloads by hash, steps by the hash of their inputs; safe under two builds at once and after a kill.
//!
//! Layout below the cache's folder:
//! `downloads/ab/abcd…` objects by SHA-256 · `steps/NAME/KEY/` finished steps · `tmp/` work in progress ·
//! `locks/` one lock file for each entry of `tmp/` · `digests/` hashes of big files by their stat ·
//! `lists/` the last verified list of each suite, by its URL · `runs/` what each running program uses.
//!
//! A finished step is a folder that was renamed into place, so a killed build leaves no partial step under a final
//! name. Its entries in `tmp/` are removed by the next build, which finds their locks free.
//! A power cut may still truncate files that were renamed but not yet written back; a step therefore records the
//! boot id of the host, and is valid in later boots only if [`Cache::settle`] has synced it.

mod digests;
mod key;
mod limit;
mod prune;
mod remains;
mod sync;
mod uses;
mod verified;

use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Error, Result, bail};
use nix::sys::stat::Mode;

use super::full_disk::{Place, explain, is_full};
use super::progress::bytes;

pub use key::{Key, KeyBuilder};
pub use limit::Limit;
pub use prune::Entry;
pub use sync::{sync, sync_files};
pub use verified::ListFiles;

use sync::has_many;
use uses::Uses;
use verified::Verified;

/// The host's boot id, written into a step's folder before the rename.
const MADE: &str = ".slipway-made";
/// Written beside [`MADE`] once all files of the folder are on the disk; it has their size.
const SYNCED: &str = ".slipway-synced";
/// Lock file of the cache.
const IN_USE: &str = ".slipway-in-use";

/// Results that other machines share. None of these fails: what cannot be had is made here.
pub trait Shared: std::fmt::Debug + Send + Sync {
    /// Fills an empty folder with the result of a step; whether it did. If not, the folder has anything.
    fn fetch(&self, step: &str, key: &Key, folder: &Path) -> bool;
    /// Fetches a file by its SHA-256 and size, both verified; whether it did.
    fn fetch_file(&self, sha256: &str, size: u64, target: &Path) -> bool;
    /// Takes the result of a step that was made here. Its folder is not changed any more.
    fn store(&self, step: &str, key: &Key, folder: PathBuf);
    /// Takes a file that was made here.
    fn store_file(&self, sha256: &str, size: u64, file: PathBuf);
    /// Waits until all that was taken is stored, or cannot be.
    fn finish(&self);
    /// Whether it is a folder of this host, so that no request is made.
    fn is_local(&self) -> bool;
}

/// The cache's folder, and the steps made by this run.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
    boot: String,
    made: Mutex<Vec<PathBuf>>,
    /// Asked before a step is made. Dropped before the uses: until all is sent, no other program removes what is.
    shared: Option<Arc<dyn Shared>>,
    /// What this run may use.
    uses: Uses,
    /// The lists of suites that this run has read.
    verified: Verified,
    /// Whether no step is made.
    look_only: bool,
    /// Its size above which [`Cache::bound`] removes entries.
    limit: Limit,
    /// Locked shared by every run: earlier versions removed old entries under an exclusive lock.
    _in_use: File,
}

/// A finished step.
#[derive(Clone, Debug)]
pub struct Made {
    /// The step's folder. Read-only, because other builds use it too.
    pub path: PathBuf,
    /// Whether it was in the cache, or among the results that machines share.
    pub hit: bool,
}

/// The error of a step that a cache which is only looked at does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the step is not in the cache")
    }
}

impl std::error::Error for Absent {}

/// A private folder of this run, removed when dropped, and by the next run if this one is killed.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Scratch {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let gone = remove(&self.path).and_then(|()| Ok(fs::remove_file(&self.lock)?));
        if let Err(error) = gone {
            tracing::warn!("removing {}: {error:#}", self.path.display());
        }
    }
}

impl Cache {
    /// Opens `$SLIPWAY_CACHE`, else `$XDG_CACHE_HOME/slipway`, else `~/.cache/slipway`.
    ///
    /// # Errors
    /// If none of the variables is set, or the folder cannot be made or written.
    pub fn open() -> Result<Self> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let root = if let Some(given) = set("SLIPWAY_CACHE") {
            PathBuf::from(given)
        } else if let Some(base) = set("XDG_CACHE_HOME") {
            PathBuf::from(base).join("slipway")
        } else if let Some(home) = set("HOME") {
            PathBuf::from(home).join(".cache/slipway")
        } else {
            bail!("finding the cache folder: none of SLIPWAY_CACHE, XDG_CACHE_HOME, HOME is set");
        };
        Self::at(root)
    }

    /// Opens the cache in this folder, creates it if absent, and removes the remains of dead builds.
    ///
    /// Also sets this process's umask to 022: files of a build must not depend on the user's umask.
    ///
    /// # Errors
    /// If the folder cannot be made or written, or the variable of its limit is not a size.
    pub fn at(root: PathBuf) -> Result<Self> {
        nix::sys::stat::umask(Mode::S_IWGRP | Mode::S_IWOTH);
        let root = std::path::absolute(root)?;
        for folder in [
            "downloads",
            "steps",
            "tmp",
            "locks",
            "digests",
            "lists",
            uses::RUNS,
        ] {
            let path = root.join(folder);
            fs::create_dir_all(&path)
                .with_context(|| format!("making the cache folder {}", path.display()))?;
        }
        let in_use = lock_file(&root.join(IN_USE), true).context("opening the cache's lock")?;
        in_use.lock_shared().context("locking the cache")?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or_else(|_| "unknown".into(), |id| id.trim().to_owned());
        let cache = Self {
            boot,
            made: Mutex::default(),
            uses: Uses::begin(&root)?,
            verified: Verified::default(),
            look_only: false,
            limit: Limit::of_environment()?.unwrap_or_else(|| Limit::of_disk(&root)),
            shared: None,
            _in_use: in_use,
            root,
        };
        cache.sweep(remove)?;
        Ok(cache)
    }

    /// The cache's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The same cache with another limit.
    #[must_use]
    pub fn with_limit(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }

    /// The same cache, in which no step is made: one that it does not have is an [`Absent`].
    #[must_use]
    pub fn look_only(self) -> Self {
        Self {
            look_only: true,
            ..self
        }
    }

    /// Whether no step is made in it.
    #[must_use]
    pub const fn is_look_only(&self) -> bool {
        self.look_only
    }

    /// Its limit.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// The name of an entry among the uses: its path below the root.
    fn id_of(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        below.to_string_lossy().into_owned()
    }

    /// Takes results that other machines share, and gives those that are made.
    pub fn share(&mut self, shared: Option<Arc<dyn Shared>>) {
        self.shared = shared;
    }

    /// The results that other machines share.
    #[must_use]
    pub fn shared(&self) -> Option<&dyn Shared> {
        self.shared.as_deref()
    }

    /// Records the current use of the download with this SHA-256, so that [`Cache::prune`] keeps it.
    pub fn use_object(&self, sha256: &str) {
        prune::used(&self.object(sha256));
    }

    /// Path of the download with this SHA-256 (64 hexadecimal digits), present or not; its writer creates the folder. No other
    /// program removes it as long as this one runs.
    #[must_use]
    pub fn object(&self, sha256: &str) -> PathBuf {
        let prefix = sha256.get(..2).unwrap_or("xx");
        let path = self.root.join("downloads").join(prefix).join(sha256);
        self.uses.add(&self.id_of(&path));
        path
    }

    /// Path of the last verified file of this URL that has no digest beforehand: a suite's signed list.
    #[must_use]
    pub fn list(&self, url: &str) -> PathBuf {
        let name = Key::of_data("list", 1).text("url", url).finish();
        self.root.join("lists").join(name.as_str())
    }

    /// Whether it has a verified list of any suite.
    #[must_use]
    pub fn has_lists(&self) -> bool {
        fs::read_dir(self.root.join("lists")).is_ok_and(|mut lists| lists.next().is_some())
    }

    /// Gives the folder of step `name` for these inputs, calling `make` with an empty folder if it is not in the cache.
    ///
    /// If two builds need the same step at once, one makes it and the other waits.
    ///
    /// # Errors
    /// The error of `make`; its folder is then removed.
    pub fn step(
        &self,
        name: &str,
        key: &Key,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Made> {
        let path = self.root.join("steps").join(name).join(key.as_str());
        self.uses.add(&self.id_of(&path));
        if self.is_whole(&path) {
            prune::used(&path.join(MADE));
            return Ok(Made { path, hit: true });
        }
        if self.look_only {
            return Err(Absent.into());
        }
        let id = format!("{name}-{key}");
        let (lock, _held) = self.lock(&id)?;
        let temporary = self.root.join("tmp").join(&id);
        let make = |folder: &Path| self.fetch_or_make(name, key, folder, make);
        let made = self.make_locked(&path, &temporary, make);
        fs::remove_file(&lock).with_context(|| format!("removing {}", lock.display()))?;
        if let (Ok(Made { path, hit: false }), Some(shared)) = (&made, &self.shared) {
            shared.store(name, key, path.clone());
        }
        made
    }

    /// The folders of the whole results of step `name`, in the order of their keys. Another program may remove one at any time.
    #[must_use]
    pub fn results(&self, name: &str) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.root.join("steps").join(name));
        let mut folders: Vec<PathBuf> = (folders.into_iter().flatten().flatten())
            .map(|entry| entry.path())
            .filter(|path| self.is_whole(path))
            .collect();
        folders.sort();
        folders
    }

    /// Fills a folder with the result of a step that others have made, or makes it; whether it was there.
    fn fetch_or_make(
        &self,
        name: &str,
        key: &Key,
        folder: &Path,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<bool> {
        if let Some(shared) = &self.shared {
            if shared.fetch(name, key, folder) {
                return Ok(true);
            }
            remove(folder)?;
            fs::create_dir(folder)?;
        }
        make(folder)?;
        Ok(false)
    }

    fn make_locked(
        &self,
        path: &Path,
        temporary: &Path,
        fill: impl FnOnce(&Path) -> Result<bool>,
    ) -> Result<Made> {
        if self.is_whole(path) {
            return Ok(Made {
                path: path.to_owned(),
                hit: true,
            });
        }
        remove(path)?;
        remove(temporary)?;
        fs::create_dir(temporary)?;
        let hit = match fill(temporary) {
            Ok(hit) => hit,
            Err(error) => {
                let error = self.explained(error, temporary);
                if let Err(second) = remove(temporary) {
                    tracing::warn!("after a failed step: {second:#}");
                }
                return Err(error);
            }
        };
        fs::write(temporary.join(MADE), &self.boot)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(temporary, path)
            .with_context(|| format!("moving a finished step to {}", path.display()))?;
        if let Ok(mut made) = self.made.lock() {
            made.push(path.to_owned());
        }
        Ok(Made {
            path: path.to_owned(),
            hit,
        })
    }

    /// The error of an unfinished step, which is removed after it: if the disk is full, with what is free.
    fn explained(&self, error: Error, temporary: &Path) -> Error {
        if !is_full(&error) {
            return error;
        }
        let id = temporary.file_name().unwrap_or_default().to_string_lossy();
        let (name, _) = id.rsplit_once('-').unwrap_or((&id, ""));
        let written = bytes(prune::size(temporary).unwrap_or_default());
        let what = format!("the step {name}, of which {written} were written");
        explain(error, &what, &[Place::cache(&self.root)])
    }

    /// Whether a step's folder exists and is intact: made in this boot of the host, or synced.
    fn is_whole(&self, path: &Path) -> bool {
        fs::read_to_string(path.join(MADE))
            .is_ok_and(|boot| boot == self.boot || path.join(SYNCED).exists())
    }

    /// Syncs all steps of this run to the disk, so that they remain valid after a power cut.
    ///
    /// # Errors
    /// If the sync fails.
    pub fn settle(&self) -> Result<()> {
        let made = match self.made.lock() {
            Ok(mut made) => std::mem::take(&mut *made),
            Err(_) => return Ok(()),
        };
        if made.is_empty() {
            return Ok(());
        }
        let (many, few): (Vec<_>, Vec<_>) = made.into_iter().partition(|path| has_many(path));
        if !many.is_empty() {
            sync(&self.root)?;
        }
        for path in &few {
            // A later step of another build may have removed it.
            if path.join(MADE).exists() {
                sync_files(path)?;
            }
        }
        for path in many.into_iter().chain(few) {
            if path.join(MADE).exists() {
                fs::write(path.join(SYNCED), prune::size(&path)?.to_string())?;
            }
        }
        Ok(())
    }

    /// A private folder for this run.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn scratch(&self) -> Result<Scratch> {
        let path = tempfile::Builder::new()
            .prefix("scratch-")
            .tempdir_in(self.root.join("tmp"))?
            .keep();
        let id = path
            .file_name()
            .and_then(|name| name.to_str())
            .context("naming a scratch folder")?;
        let (lock, held) = self.lock(id)?;
        // Another build's sweep may have removed the folder just before it was locked.
        fs::create_dir_all(&path)?;
        Ok(Scratch {
            path,
            lock,
            _held: held,
        })
    }

    /// Takes the lock of one entry of `tmp/`, waiting for its holder.
    fn lock(&self, id: &str) -> Result<(PathBuf, File)> {
        let path = self.root.join("locks").join(id);
        loop {
            let file = File::create(&path)
                .with_context(|| format!("making the lock {}", path.display()))?;
            file.lock()
                .with_context(|| format!("waiting for {}", path.display()))?;
            // The previous holder removed the file that we were waiting on: another build may hold its successor.
            match fs::metadata(&path) {
                Ok(now) if now.ino() == file.metadata()?.ino() => return Ok((path, file)),
                _ => {}
            }
        }
    }
}

/// Opens a lock file, for a shared and for an exclusive lock, and creates it with `create`. NFS makes `flock` a lock of a byte range:
/// a shared one needs a file that is open for reading, an exclusive one a file that is open for writing. Another user's file that
/// can only be read is opened for reading, which is enough for a shared lock.
fn lock_file(path: &Path, create: bool) -> io::Result<File> {
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .truncate(false)
        .create(create);
    match options.open(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            File::open(path).map_err(|_| error)
        }
        opened => opened,
    }
}

/// Removes a file or a folder with its content, even below folders that their owner cannot write; absent is fine.
///
/// # Errors
/// If an entry cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
