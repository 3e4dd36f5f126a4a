//! The next content of a record, on the disk beside it until it takes its place: a disk without room for it leaves the record as it was.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use linux::atomic_file;

use super::cut::failpoint;

/// A content that waits to take its record's place, and is removed if it does not.
#[derive(Debug)]
pub(super) struct Staged {
    beside: PathBuf,
    path: PathBuf,
}

impl Staged {
    /// Writes the content of the record at `path`, whose folder is there. It is on the disk then.
    pub(super) fn write(path: PathBuf, text: &str) -> Result<Self> {
        let name = path.file_name().context("a record has a name")?;
        let beside = path.with_file_name(format!(".{}.next", name.to_string_lossy()));
        failpoint()?;
        let staged = Self { beside, path };
        let filled = staged.fill(text);
        filled.with_context(|| format!("writing {}", staged.beside.display()))?;
        Ok(staged)
    }

    fn fill(&self, text: &str) -> io::Result<()> {
        // That of a boot that was cut off.
        atomic_file::remove(&self.beside)?;
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(0o644);
        let mut file = options.open(&self.beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Lets the content take its record's place, on the disk too.
    pub(super) fn place(self) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        failpoint()?;
        fs::rename(&self.beside, &self.path)
            .and_then(|()| File::open(folder)?.sync_all())
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

impl Drop for Staged {
    /// On a full disk it would take the last space.
    fn drop(&mut self) {
        if self.beside.symlink_metadata().is_err() {
            return;
        }
        let removed = failpoint().and_then(|()| Ok(fs::remove_file(&self.beside)?));
        if let Err(error) = removed {
            tracing::warn!("{}: {error:#}", self.beside.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_takes_its_place_or_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let names = || linux::block::entries(folder.path());
        fs::write(&path, "before").unwrap();
        // A longer one that a power cut left.
        fs::write(folder.path().join(".record.next"), "half of it").unwrap();
        let staged = Staged::write(path.clone(), "after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(names().len(), 2);
        drop(staged);
        assert_eq!(names(), ["record"]);
        let staged = Staged::write(path.clone(), "after").unwrap();
        staged.place().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(names(), ["record"]);
    }
}
