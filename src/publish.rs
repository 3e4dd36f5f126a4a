//! Output: the folder of one image, made beside its final place and put there by one rename.

pub mod sbom;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::artifact::{self, REPORT, SUMS};
use crate::host::cache::{self, Key};
use crate::host::progress::{Progress, StepRecord};

/// What a build tells of itself: `build-report.json`. It holds times, so no hash covers it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Hash of everything that decides the bytes of the other files.
    pub key: String,
    /// The steps in the order in which they ended.
    pub steps: Vec<StepRecord>,
    /// The files, with what tells a changed one from the one that was written.
    pub files: Vec<Written>,
}

/// One file of the folder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// Path below the folder.
    pub path: String,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Inode, size in bytes, and change time in nanoseconds.
    pub identity: (u64, u64, i64),
}

/// An output folder that nobody else writes meanwhile.
#[derive(Debug)]
pub struct Output {
    folder: PathBuf,
    _held: File,
}

impl Output {
    /// Takes the folder, waiting for another build of the same image.
    ///
    /// # Errors
    /// If its parent cannot be made or locked.
    pub fn take(folder: &Path) -> Result<Self> {
        let parent = folder.parent().context("an output folder has a parent")?;
        let about = || format!("taking the output folder {}", folder.display());
        fs::create_dir_all(parent).with_context(about)?;
        let held = File::create(beside(folder, "lock")?).with_context(about)?;
        held.lock().with_context(about)?;
        Ok(Self {
            folder: folder.to_owned(),
            _held: held,
        })
    }

    /// Whether the folder holds exactly what a build with this key writes.
    #[must_use]
    pub fn holds(&self, key: &Key) -> bool {
        self.check(key).is_some()
    }

    fn check(&self, key: &Key) -> Option<()> {
        let report: Report =
            serde_json::from_slice(&fs::read(self.folder.join(REPORT)).ok()?).ok()?;
        if report.key != key.as_str() || report.files.is_empty() {
            return None;
        }
        for file in &report.files {
            let path = self.folder.join(&file.path);
            if identity(&path).ok()? != file.identity
                && artifact::sha256(&path).ok()? != file.sha256
            {
                return None;
            }
        }
        Some(())
    }

    /// Makes the folder anew: `make` fills an empty one, which then takes the old one's place. It gives the files
    /// whose hashes it knows already, as (path, SHA-256).
    ///
    /// # Errors
    /// If `make` fails, or the folder cannot be written; the old one is then still there.
    pub fn replace(
        &self,
        key: &Key,
        progress: &Progress,
        make: impl FnOnce(&Path) -> Result<Vec<(String, String)>>,
    ) -> Result<()> {
        let (fresh, old) = (beside(&self.folder, "new")?, beside(&self.folder, "old")?);
        cache::remove(&fresh)?;
        cache::remove(&old)?;
        let about = || format!("writing {}", self.folder.display());
        fs::create_dir(&fresh).with_context(about)?;
        let known = make(&fresh)?;
        let mut files = Vec::new();
        for (path, sha256) in artifact::sums(&fresh, known, progress)? {
            let identity = identity(&fresh.join(&path))?;
            files.push(Written {
                path,
                sha256,
                identity,
            });
        }
        let report = Report {
            key: key.as_str().to_owned(),
            steps: progress.records(),
            files,
        };
        // Nothing takes the old one's place before all of it is on the disk.
        fs::write(
            fresh.join(REPORT),
            serde_json::to_string_pretty(&report)? + "\n",
        )
        .with_context(about)?;
        let names = report.files.iter().map(|file| file.path.as_str());
        for name in names.chain([SUMS, REPORT, "."]) {
            let file = File::open(fresh.join(name)).with_context(about)?;
            file.sync_all().with_context(about)?;
        }
        if self.folder.exists() {
            fs::rename(&self.folder, &old).with_context(about)?;
        }
        fs::rename(&fresh, &self.folder).with_context(about)?;
        let parent = File::open(self.folder.parent().unwrap_or(&self.folder));
        parent
            .and_then(|parent| parent.sync_all())
            .with_context(about)?;
        cache::remove(&old)
    }
}

/// A hidden sibling of the folder.
fn beside(folder: &Path, suffix: &str) -> Result<PathBuf> {
    let name = folder
        .file_name()
        .and_then(|name| name.to_str())
        .context("an output folder has a name")?;
    Ok(folder.with_file_name(format!(".{name}.{suffix}")))
}

fn identity(path: &Path) -> Result<(u64, u64, i64)> {
    let meta =
        fs::symlink_metadata(path).with_context(|| format!("looking at {}", path.display()))?;
    Ok((
        meta.ino(),
        meta.size(),
        meta.ctime() * 1_000_000_000 + meta.ctime_nsec(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::progress::Kind;

    fn write(output: &Output, key: &Key, text: &str) -> Result<()> {
        output.replace(key, &Progress::new(Kind::Quiet), |folder| {
            fs::write(folder.join("file"), text)?;
            Ok(Vec::new())
        })
    }

    #[test]
    fn a_folder_is_held_until_its_key_or_a_file_changes() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("out/demo-1");
        let output = Output::take(&folder).unwrap();
        let (key, other) = (Key::of("a", 1).finish(), Key::of("b", 1).finish());
        assert!(!output.holds(&key));
        write(&output, &key, "one").unwrap();
        assert!(output.holds(&key));
        assert!(!output.holds(&other));
        fs::write(folder.join("file"), "two").unwrap();
        assert!(!output.holds(&key));
        write(&output, &key, "one").unwrap();
        assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "one");
        fs::remove_file(folder.join("file")).unwrap();
        assert!(!output.holds(&key));
    }

    #[test]
    fn a_failed_build_leaves_the_old_folder() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("demo-1");
        let output = Output::take(&folder).unwrap();
        let key = Key::of("a", 1).finish();
        write(&output, &key, "one").unwrap();
        let failed = output.replace(&key, &Progress::new(Kind::Quiet), |_| anyhow::bail!("no"));
        assert!(failed.is_err());
        assert!(output.holds(&key));
    }
}
