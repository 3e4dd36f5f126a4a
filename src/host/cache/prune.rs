//! The entries of the cache by kind, and the removal of the longest unused: those of some time, or all above the limit.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};

use super::uses::{self, Others};
use super::{Cache, MADE, SYNCED};

/// The file whose holder removes entries; all others wait.
const EVICTING: &str = ".slipway-evicting";
/// The kind of downloads.
const DOWNLOAD: &str = "download";
/// A download under way that was not written to for so long is one that a killed program left. It is longer than servers are waited for.
const ABANDONED: Duration = Duration::from_secs(3600);

/// An entry that can be removed alone: a step's folder or a download.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its kind: a step's name, or `download`.
    pub kind: String,
    /// Its path.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Bytes on the disk.
    pub size: u64,
    /// Seconds since it was last used.
    pub age: u64,
}

/// A path as text: one that is not UTF-8 cannot be in JSON.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl Cache {
    /// All entries of the cache, the longest unused first. Without those of a folder that is a link: they are another cache's.
    ///
    /// # Errors
    /// If the cache cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut out = Vec::new();
        for step in own_folder(&self.root.join("steps"))? {
            let kind = name_of(&step);
            for path in folder(&step)? {
                let used = fs::metadata(path.join(MADE)).and_then(|meta| meta.modified());
                // Without its mark the step is incomplete.
                let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
                out.extend(entry(&kind, path, used, step_size)?);
            }
        }
        for prefix in own_folder(&self.root.join("downloads"))? {
            for path in folder(&prefix)? {
                let used = fs::metadata(&path).and_then(|meta| meta.modified());
                let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
                out.extend(entry(DOWNLOAD, path, used, size)?);
            }
        }
        out.sort_by_key(|entry| std::cmp::Reverse(entry.age));
        Ok(out)
    }

    /// Removes entries unused for `unused`, but those that a running program uses. Gives the removed entries, or with `dry_run`
    /// those that would be removed.
    ///
    /// # Errors
    /// If an entry cannot be removed.
    pub fn prune(&self, unused: Duration, dry_run: bool) -> Result<Vec<Entry>> {
        let old = |entries: Vec<Entry>, others: &Others| {
            let mut entries = entries;
            entries.retain(|entry| entry.age >= unused.as_secs() && !self.is_used(entry, others));
            entries
        };
        if dry_run {
            let entries = self.entries()?;
            let gate = uses::gate(&self.root)?;
            gate.lock().context("closing the cache's gate")?;
            return Ok(old(entries, &self.uses.of_others()?));
        }
        self.take_away(old)
    }

    /// Removes the longest unused entries until the cache has at most its limit, but none that this program or another running
    /// one uses. Gives the removed entries.
    ///
    /// # Errors
    /// If the cache cannot be read, or an entry not be removed.
    pub fn bound(&self) -> Result<Vec<Entry>> {
        let Some(limit) = self.limit.0 else {
            return Ok(Vec::new());
        };
        let total = |entries: &[Entry]| entries.iter().map(|entry| entry.size).sum::<u64>();
        // The usual case needs no lock.
        if total(&self.entries()?) <= limit {
            return Ok(Vec::new());
        }
        self.take_away(|entries, others| {
            let mut left = total(&entries);
            let mut chosen = Vec::new();
            for entry in entries {
                if left <= limit {
                    break;
                }
                if !self.is_used(&entry, others) {
                    left -= entry.size;
                    chosen.push(entry);
                }
            }
            chosen
        })
    }

    fn is_used(&self, entry: &Entry, others: &Others) -> bool {
        let id = self.id_of(&entry.path);
        is_under_way(entry) || self.uses.has(&id) || others.use_it(&id)
    }

    /// Removes the chosen entries. They are renamed into a scratch folder first: a partly removed entry must not be found under
    /// its name, and what a kill leaves of the folder is removed by the next program.
    fn take_away(
        &self,
        choose: impl FnOnce(Vec<Entry>, &Others) -> Vec<Entry>,
    ) -> Result<Vec<Entry>> {
        let one = File::create(self.root.join(EVICTING)).context("opening the cache's lock")?;
        one.lock().context("waiting for the cache's lock")?;
        // Sizes take a while, so they are found before the gate is closed.
        let entries = self.entries()?;
        let aside = self.scratch()?;
        let gate = uses::gate(&self.root)?;
        gate.lock().context("closing the cache's gate")?;
        let chosen = choose(entries, &self.uses.of_others()?);
        for (number, entry) in chosen.iter().enumerate() {
            match fs::rename(&entry.path, aside.path().join(number.to_string())) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error)
                        .with_context(|| format!("removing {}", entry.path.display()));
                }
                _ => {}
            }
        }
        drop(gate);
        drop(one);
        drop(aside);
        Ok(chosen)
    }
}

/// Whether an entry is the temporary file of a download, whose program records the name that it gets at the end.
fn is_under_way(entry: &Entry) -> bool {
    entry.kind == DOWNLOAD
        && name_of(&entry.path).starts_with('.')
        && entry.age < ABANDONED.as_secs()
}

/// Records the current use of an entry. Best effort: a cache on a read-only file system still works.
pub(super) fn used(path: &Path) {
    let noted = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    // An absent entry is about to be fetched.
    if let Err(error) = noted
        && error.kind() != ErrorKind::NotFound
    {
        tracing::debug!("noting the use of {}: {error}", path.display());
    }
}

/// None if another program removed it meanwhile.
fn entry(
    kind: &str,
    path: PathBuf,
    used: SystemTime,
    size: impl FnOnce(&Path) -> Result<u64>,
) -> Result<Option<Entry>> {
    let age = SystemTime::now().duration_since(used).unwrap_or_default();
    let size = match size(&path) {
        Ok(size) => size,
        Err(_) if fs::symlink_metadata(&path).is_err() => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(Entry {
        kind: kind.to_owned(),
        size,
        age: age.as_secs(),
        path,
    }))
}

/// The size of a finished step, which is written into its mark: its folder has ten thousands of files.
fn step_size(path: &Path) -> Result<u64> {
    let mark = path.join(SYNCED);
    let known = fs::read_to_string(&mark);
    if let Some(known) = known.as_ref().ok().and_then(|text| text.parse().ok()) {
        return Ok(known);
    }
    let found = size(path)?;
    if known.is_ok()
        && let Err(error) = fs::write(&mark, found.to_string())
    {
        tracing::debug!("noting the size of {}: {error}", path.display());
    }
    Ok(found)
}

/// Bytes on the disk of a file, or of a folder with its content.
pub(super) fn size(path: &Path) -> Result<u64> {
    let meta =
        fs::symlink_metadata(path).with_context(|| format!("looking at {}", path.display()))?;
    let mut total = meta.blocks() * 512;
    if meta.is_dir() {
        for path in folder(path)? {
            total += size(&path)?;
        }
    }
    Ok(total)
}

/// The content of a folder, none if it is a link.
fn own_folder(path: &Path) -> Result<Vec<PathBuf>> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => Ok(Vec::new()),
        _ => folder(path),
    }
}

fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let about = || format!("reading {}", path.display());
    let mut out = Vec::new();
    for entry in fs::read_dir(path).with_context(about)? {
        out.push(entry.with_context(about)?.path());
    }
    out.sort();
    Ok(out)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
