//! Copies a factory folder into a writable one: only entries that do not exist yet, with owner, mode and time.
//!
//! Each entry is copied to a temporary name and renamed when all of it is on the disk: after a power cut a half-copied
//! entry does not count as existing.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Copies the entries of `from` that do not exist in `to`; returns how many were made. Existing ones are never changed.
pub(super) fn copy(from: &Path, to: &Path) -> Result<usize> {
    let mut copied = Copied::default();
    copied.below(from, to, true)?;
    if !copied.waiting.is_empty() {
        sync(to)?;
    }
    for (beside, place) in &copied.waiting {
        fs::rename(beside, place).with_context(|| format!("renaming to {}", place.display()))?;
    }
    Ok(copied.count)
}

/// Waits until the file system of a folder is on its disk.
pub(super) fn sync(folder: &Path) -> Result<()> {
    let open = File::open(folder).with_context(|| format!("opening {}", folder.display()))?;
    nix::unistd::syncfs(open).context("waiting for the disk")
}

#[derive(Debug, Default)]
struct Copied {
    count: usize,
    /// Complete entries that wait for their rename.
    waiting: Vec<(PathBuf, PathBuf)>,
}

impl Copied {
    /// Copies the entries of a folder. With `seen` other processes see the target: then each entry is copied to a
    /// temporary name.
    fn below(&mut self, from: &Path, to: &Path, seen: bool) -> Result<()> {
        let Ok(entries) = fs::read_dir(from) else {
            // An image without a factory has nothing to seed.
            return Ok(());
        };
        for entry in entries {
            let name = entry
                .with_context(|| format!("reading {}", from.display()))?
                .file_name();
            let from = from.join(&name);
            self.one(&from, &to.join(&name), seen)
                .with_context(|| format!("copying {}", from.display()))?;
        }
        Ok(())
    }

    fn one(&mut self, from: &Path, to: &Path, seen: bool) -> Result<()> {
        let meta = from.symlink_metadata()?;
        match to.symlink_metadata() {
            Ok(there) if there.is_dir() && meta.is_dir() => return self.below(from, to, seen),
            Ok(_) => return Ok(()),
            Err(_) => {}
        }
        let target = match seen {
            true => beside(to)?,
            false => to.to_owned(),
        };
        if meta.is_dir() {
            fs::create_dir(&target)?;
            self.below(from, &target, false)?;
            settle(&target, &meta)?;
        } else if meta.is_symlink() {
            symlink(fs::read_link(from)?, &target)?;
            lchown(&target, Some(meta.uid()), Some(meta.gid()))?;
        } else if meta.is_file() {
            fs::copy(from, &target)?;
            settle(&target, &meta)?;
            File::open(&target)?.set_times(FileTimes::new().set_modified(meta.modified()?))?;
        } else {
            return Ok(());
        }
        self.count += 1;
        if seen {
            self.waiting.push((target, to.to_owned()));
        }
        Ok(())
    }
}

/// A path beside `to` that does not exist.
fn beside(to: &Path) -> Result<PathBuf> {
    let name = to.file_name().context("an entry has a name")?;
    let path = to.with_file_name(format!(".{}.slipway", name.to_string_lossy()));
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path)?,
        Ok(_) => fs::remove_file(&path)?,
        Err(_) => {}
    }
    Ok(path)
}

/// The owner before the mode, since a change of owner clears the set-user-id bit.
fn settle(path: &Path, meta: &fs::Metadata) -> Result<()> {
    lchown(path, Some(meta.uid()), Some(meta.gid()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_what_is_missing_comes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("factory"), folder.path().join("var"));
        fs::create_dir_all(from.join("lib/a")).unwrap();
        fs::create_dir_all(to.join("lib")).unwrap();
        fs::write(from.join("lib/a/new"), "new").unwrap();
        fs::set_permissions(from.join("lib/a"), fs::Permissions::from_mode(0o1730)).unwrap();
        fs::write(from.join("lib/kept"), "factory").unwrap();
        fs::write(to.join("lib/kept"), "mine").unwrap();
        symlink("/run", from.join("run")).unwrap();
        assert_eq!(copy(&from, &to).unwrap(), 3);
        assert_eq!(copy(&from, &to).unwrap(), 0);
        assert_eq!(fs::read_to_string(to.join("lib/kept")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(to.join("lib/a/new")).unwrap(), "new");
        assert_eq!(fs::read_link(to.join("run")).unwrap(), Path::new("/run"));
        let mode = fs::metadata(to.join("lib/a")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o1730);
        assert_eq!(copy(&folder.path().join("none"), &to).unwrap(), 0);
    }

    #[test]
    fn what_was_cut_off_beside_its_place_is_copied_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("factory"), folder.path().join("var"));
        fs::create_dir_all(from.join("lib")).unwrap();
        fs::write(from.join("lib/file"), "whole").unwrap();
        fs::write(from.join("log"), "whole").unwrap();
        // A temporary folder with an extra file, and a file that was not on the disk yet.
        fs::create_dir_all(to.join(".lib.slipway")).unwrap();
        fs::write(to.join(".lib.slipway/other"), "").unwrap();
        fs::write(to.join(".log.slipway"), "").unwrap();
        assert_eq!(copy(&from, &to).unwrap(), 3);
        assert_eq!(fs::read_to_string(to.join("lib/file")).unwrap(), "whole");
        assert_eq!(fs::read_to_string(to.join("log")).unwrap(), "whole");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 2);
        assert_eq!(fs::read_dir(to.join("lib")).unwrap().count(), 1);
    }
}
