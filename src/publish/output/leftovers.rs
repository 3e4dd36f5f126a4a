//! Leftovers of killed builds beside output folders: hundreds of megabytes in hidden folders, also of images that are not built again.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{LOCK, NEW, OLD, beside};
use crate::host::cache;

/// Removes the unfinished folders of images whose lock nobody holds, and puts back an old folder that was not replaced. Best
/// effort: a build succeeds without.
pub(super) fn remove(parent: &Path) {
    let found = match unfinished(parent) {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!("looking for leftovers in {}: {error:#}", parent.display());
            return;
        }
    };
    for folder in found {
        if let Err(error) = clean(&folder) {
            tracing::warn!("removing leftovers of {}: {error:#}", folder.display());
        }
    }
}

/// The output folders, there or not, with an unfinished or an old folder beside them.
fn unfinished(parent: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix('.')) else {
            continue;
        };
        let image = [NEW, OLD]
            .iter()
            .find_map(|ending| name.strip_suffix(ending)?.strip_suffix('.'));
        if let Some(image) = image.filter(|image| !image.is_empty())
            && entry.file_type()?.is_dir()
        {
            found.push(parent.join(image));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Removes what is beside an output folder, unless a build holds its lock. Without a lock it is not of a build.
fn clean(folder: &Path) -> Result<()> {
    let lock = beside(folder, LOCK)?;
    if !fs::symlink_metadata(&lock).is_ok_and(|meta| meta.is_file()) {
        return Ok(());
    }
    // Held until all is removed: a build of this image that begins now waits.
    let held = File::options().write(true).open(&lock)?;
    match held.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(error).context("locking"),
    }
    let old = beside(folder, OLD)?;
    if fs::symlink_metadata(folder).is_err() && old.is_dir() {
        // Killed between the two renames: the last image that was published.
        fs::rename(&old, folder).context("putting it back")?;
    }
    cache::remove(&old)?;
    cache::remove(&beside(folder, NEW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_build_left_goes_and_what_a_live_one_writes_stays() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for name in [
            ".dead-1.new",
            ".live-1.new",
            ".torn-1.new",
            ".torn-1.old",
            ".done-1.old",
            "done-1",
            ".other.new",
            ".new",
        ] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("disk.raw"), name).unwrap();
        }
        for name in ["dead-1", "live-1", "torn-1", "done-1"] {
            fs::write(at(&format!(".{name}.lock")), "").unwrap();
        }
        let held = File::open(at(".live-1.lock")).unwrap();
        held.lock().unwrap();
        remove(place.path());
        let mut left: Vec<_> = fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        left.sort();
        // Another program's has no lock of ours.
        assert_eq!(
            left,
            [".live-1.new", ".new", ".other.new", "done-1", "torn-1"]
        );
        let torn = fs::read_to_string(at("torn-1/disk.raw")).unwrap();
        assert_eq!(torn, ".torn-1.old");
        drop(held);
        remove(place.path());
        assert!(!at(".live-1.new").exists());
    }
}
