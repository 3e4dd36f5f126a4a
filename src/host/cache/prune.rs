//! The entries of the cache by kind, and the removal of entries that have not been used for some time.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::{Cache, MADE, remove};

/// An entry that can be removed alone: a step's folder or a download.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its kind: a step's name, or `download`.
    pub kind: String,
    /// Its path.
    pub path: PathBuf,
    /// Bytes on the disk.
    pub size: u64,
    /// Seconds since it was last used.
    pub age: u64,
}

impl Cache {
    /// All entries of the cache, the longest unused first.
    ///
    /// # Errors
    /// If the cache cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut out = Vec::new();
        for step in folder(&self.root.join("steps"))? {
            let kind = name_of(&step);
            for path in folder(&step)? {
                let used = fs::metadata(path.join(MADE)).and_then(|meta| meta.modified());
                // Without its mark the step is incomplete.
                let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
                out.push(entry(&kind, path, used)?);
            }
        }
        for prefix in folder(&self.root.join("downloads"))? {
            for path in folder(&prefix)? {
                let used = fs::metadata(&path)?.modified()?;
                out.push(entry("download", path, used)?);
            }
        }
        out.sort_by_key(|entry| std::cmp::Reverse(entry.age));
        Ok(out)
    }

    /// Removes entries unused for `unused`. Gives the removed entries, or with `dry_run` those that would be removed.
    ///
    /// # Errors
    /// If another build uses this cache now, or an entry cannot be removed.
    pub fn prune(&self, unused: Duration, dry_run: bool) -> Result<Vec<Entry>> {
        if !dry_run && self.in_use.try_lock().is_err() {
            bail!(
                "another slipway uses the cache {}; nothing was removed",
                self.root.display()
            );
        }
        let old: Vec<Entry> = self
            .entries()?
            .into_iter()
            .filter(|entry| entry.age >= unused.as_secs())
            .collect();
        if !dry_run {
            for entry in &old {
                // Renamed first: a partly removed entry must not be found under its name.
                let aside = self.root.join("tmp").join(format!(
                    "pruned-{}",
                    name_of(&entry.path).get(..32).unwrap_or("entry")
                ));
                remove(&aside)?;
                fs::rename(&entry.path, &aside)
                    .with_context(|| format!("removing {}", entry.path.display()))?;
                remove(&aside)?;
            }
            self.in_use.lock_shared().context("locking the cache")?;
        }
        Ok(old)
    }
}

/// Records the current use of an entry. Best effort: a cache on a read-only file system still works.
pub(super) fn used(path: &Path) {
    let noted = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    // An absent entry is about to be fetched.
    if let Err(error) = noted
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::debug!("noting the use of {}: {error}", path.display());
    }
}

fn entry(kind: &str, path: PathBuf, used: SystemTime) -> Result<Entry> {
    let age = SystemTime::now().duration_since(used).unwrap_or_default();
    Ok(Entry {
        kind: kind.to_owned(),
        size: size(&path)?,
        age: age.as_secs(),
        path,
    })
}

/// Bytes on the disk of a file, or of a folder with its content.
fn size(path: &Path) -> Result<u64> {
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
mod tests {
    use super::*;
    use crate::host::cache::Key;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn age(path: &Path, age: Duration) {
        let file = File::open(path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn only_what_is_long_unused_goes_and_a_hit_is_a_use() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("cache")).unwrap();
        let [old, hit] = ["old", "hit"].map(|name| Key::of_data(name, 1).finish());
        for key in [&old, &hit] {
            let made = cache
                .step("test", key, |at| Ok(fs::write(at.join("x"), "1")?))
                .unwrap();
            age(&made.path.join(MADE), DAY * 30);
        }
        let object = cache.object(&"ab".repeat(32));
        fs::create_dir_all(object.parent().unwrap()).unwrap();
        fs::write(&object, "download").unwrap();
        age(&object, DAY * 8);
        assert!(cache.step("test", &hit, |_| panic!("a hit")).unwrap().hit);

        let would = cache.prune(DAY * 7, true).unwrap();
        assert_eq!(would.len(), 2, "{would:?}");
        assert!(would[0].size > 0 && would[0].kind == "test");
        assert!(object.exists());
        let gone = cache.prune(DAY * 7, false).unwrap();
        assert_eq!(gone.len(), 2);
        assert!(!object.exists());
        let left = cache.entries().unwrap();
        assert_eq!(left.len(), 1);
        assert!(left[0].path.ends_with(hit.as_str()));
        assert_eq!(folder(&cache.root.join("tmp")).unwrap().len(), 0);
    }

    #[test]
    fn nothing_is_removed_under_another_build() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("cache")).unwrap();
        let other = Cache::at(place.path().join("cache")).unwrap();
        let refused = cache.prune(DAY, false).unwrap_err();
        assert!(refused.to_string().contains("another slipway"), "{refused}");
        drop(other);
        cache.prune(DAY, false).unwrap();
    }
}
