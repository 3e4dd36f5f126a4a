//! Copies a factory folder into a writable one: only what is not there yet, with owner, mode and time.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use anyhow::{Context, Result};

/// Copies what `to` lacks of `from`; gives how many entries were made. Existing ones are never touched.
pub(super) fn copy(from: &Path, to: &Path) -> Result<usize> {
    let Ok(entries) = fs::read_dir(from) else {
        // An image without a factory has nothing to seed.
        return Ok(0);
    };
    let mut count = 0;
    for entry in entries {
        let name = entry
            .with_context(|| format!("reading {}", from.display()))?
            .file_name();
        let (from, to) = (from.join(&name), to.join(&name));
        count += one(&from, &to).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(count)
}

fn one(from: &Path, to: &Path) -> Result<usize> {
    let meta = from.symlink_metadata()?;
    let there = to.symlink_metadata().ok();
    if meta.is_dir() {
        if there.is_some_and(|there| !there.is_dir()) {
            return Ok(0);
        }
        let new = usize::from(!to.exists());
        if new == 1 {
            fs::create_dir(to)?;
            settle(to, &meta)?;
        }
        return Ok(new + copy(from, to)?);
    }
    if there.is_some() {
        return Ok(0);
    }
    if meta.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
        lchown(to, Some(meta.uid()), Some(meta.gid()))?;
    } else if meta.is_file() {
        fs::copy(from, to)?;
        settle(to, &meta)?;
        File::open(to)?.set_times(FileTimes::new().set_modified(meta.modified()?))?;
    } else {
        return Ok(0);
    }
    Ok(1)
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
}
