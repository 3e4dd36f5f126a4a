//! Output: the folder of one image, written beside its final path and renamed to it.

mod leftovers;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::page::{FileRow, Page};
use super::sums::{self, PAGE, REPORT, SUMS, Sums};
use crate::code::Builder;
use crate::format::digest;
use crate::host::cache::{self, Key};
use crate::host::interrupt::{Interrupt, Unfinished};
use crate::host::progress::StepRecord;
use crate::host::session::Session;

/// Endings of the hidden siblings of an output folder: the one that is being written, the one that is being replaced, and the lock
/// that a build holds.
const NEW: &str = "new";
const OLD: &str = "old";
const LOCK: &str = "lock";

/// The record of a build, `build-report.json`. It holds times, so `SHA256SUMS` leaves it out.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Hash of all inputs of the other files.
    pub key: String,
    /// The program that made them; none in a report of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder: Option<Builder>,
    /// The steps in the order in which they ended.
    pub steps: Vec<StepRecord>,
    /// The files, with size and time of change: a file that was touched since is detected by them.
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

/// A locked output folder: no other build writes it meanwhile.
#[derive(Debug)]
pub struct Output {
    /// The folder.
    pub folder: PathBuf,
    key: Key,
    _held: File,
}

impl Output {
    /// Locks the folder `<parent>/<name>-<version>` of an image, waiting for another build of it, and removes what killed builds of
    /// any image have left in `parent`.
    ///
    /// # Errors
    /// If its parent cannot be created or locked, or the image has no key.
    pub fn take(parent: &Path, image: &Image) -> Result<Self> {
        Self::take_folder(&parent.join(image.folder()), image.key()?)
    }

    fn take_folder(folder: &Path, key: Key) -> Result<Self> {
        let parent = folder.parent().context("an output folder has a parent")?;
        let about = || format!("taking the output folder {}", folder.display());
        fs::create_dir_all(parent).with_context(about)?;
        let held = File::create(beside(folder, LOCK)?).with_context(about)?;
        held.lock().with_context(about)?;
        leftovers::remove(parent);
        Ok(Self {
            folder: folder.to_owned(),
            key,
            _held: held,
        })
    }

    /// Whether the folder contains this image's files, unchanged.
    #[must_use]
    pub fn is_current(&self) -> bool {
        check(&self.folder, &self.key).is_some()
    }

    /// Whether the folder of an image below `parent` has it already; takes no lock and makes nothing.
    ///
    /// # Errors
    /// If the image has no key.
    pub fn has(parent: &Path, image: &Image) -> Result<bool> {
        Ok(check(&parent.join(image.folder()), &image.key()?).is_some())
    }

    /// Creates a new, empty folder beside the old one. It is removed with what is returned, unless it was published.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn begin(&self, interrupt: &Interrupt) -> Result<Unfinished> {
        let fresh = beside(&self.folder, NEW)?;
        cache::remove(&fresh)?;
        fs::create_dir(&fresh).with_context(|| format!("writing {}", fresh.display()))?;
        Ok(interrupt.unfinished(&fresh))
    }

    /// Writes the remaining files into the new folder, which then replaces the old one.
    ///
    /// # Errors
    /// If the new folder cannot be written, or an interrupt was requested; the old one is then unchanged.
    pub fn publish(&self, session: &Session, image: &Image, sums: Sums) -> Result<()> {
        let step = session.progress.step("publish");
        let fresh = beside(&self.folder, NEW)?;
        image.write_files(&fresh)?;
        step.note("hashing");
        // The disk writes the data while the processor hashes. Only these files: others' data is not waited for.
        let sums = thread::scope(|scope| {
            let synced = scope.spawn(|| cache::sync_files(&fresh));
            let sums = sums.finish(session, &fresh)?;
            match synced.join() {
                Ok(synced) => synced.map(|()| sums),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        step.made(None);
        let files = written(&fresh, sums)?;
        let steps = session.progress.of_image();
        let page = Page::of(image, &fresh, steps, files.iter().map(row).collect())?.html(None)?;
        fs::write(fresh.join(PAGE), page).with_context(|| format!("writing {PAGE}"))?;
        self.replace(session, &fresh, files)
    }

    /// Writes the report and replaces the old folder by the new one.
    ///
    /// Two renames: a folder cannot be renamed over one that is not empty. Between them there is no folder, never a
    /// mixed one.
    fn replace(&self, session: &Session, fresh: &Path, files: Vec<Written>) -> Result<()> {
        let old = beside(&self.folder, OLD)?;
        cache::remove(&old)?;
        let about = || format!("writing {}", self.folder.display());
        let report = Report {
            key: self.key.as_str().to_owned(),
            builder: Some(Builder::this()),
            steps: session.progress.of_image(),
            files,
        };
        // The old folder is replaced only after the new one is on the disk.
        fs::write(
            fresh.join(REPORT),
            serde_json::to_string_pretty(&report)? + "\n",
        )
        .with_context(about)?;
        let names = report.files.iter().map(|file| file.path.as_str());
        let unsummed = [SUMS, REPORT, PAGE].into_iter();
        let unsummed = unsummed.filter(|name| fresh.join(name).exists());
        for name in names.chain(unsummed).chain(["."]) {
            let file = File::open(fresh.join(name)).with_context(about)?;
            file.sync_all().with_context(about)?;
        }
        // An interrupt between the renames would remove the new folder, and the old one would go as well.
        let guard = session.interrupt.finish(fresh);
        let _guard = guard.context("interrupted").with_context(about)?;
        if self.folder.exists() {
            fs::rename(&self.folder, &old).with_context(about)?;
        }
        fs::rename(fresh, &self.folder).with_context(about)?;
        let parent = File::open(self.folder.parent().unwrap_or(&self.folder));
        parent
            .and_then(|parent| parent.sync_all())
            .with_context(about)?;
        cache::remove(&old)
    }
}

/// Something if the folder has the files of this key, unchanged.
fn check(folder: &Path, key: &Key) -> Option<()> {
    let report: Report = serde_json::from_slice(&fs::read(folder.join(REPORT)).ok()?).ok()?;
    if report.key != key.as_str() || report.files.is_empty() {
        return None;
    }
    for file in &report.files {
        let path = folder.join(&file.path);
        if identity(&path).ok()? != file.identity && digest::sha256(&path).ok()? != file.sha256 {
            return None;
        }
    }
    // The report has no hash of these. A page may have got the picture of a boot since.
    let files = report.files.iter();
    let files = files.map(|file| (file.path.as_str(), file.sha256.as_str()));
    let is_listed = fs::read_to_string(folder.join(SUMS)).ok()? == sums::text(files);
    (is_listed && folder.join(PAGE).is_file()).then_some(())
}

/// The files of a folder with these hashes.
fn written(folder: &Path, sums: Vec<(String, String)>) -> Result<Vec<Written>> {
    let written = |(path, sha256): (String, String)| {
        let identity = identity(&folder.join(&path))?;
        Ok(Written {
            path,
            sha256,
            identity,
        })
    };
    sums.into_iter().map(written).collect()
}

fn row(file: &Written) -> FileRow {
    FileRow {
        path: file.path.clone(),
        size: file.identity.1,
        sha256: file.sha256.clone(),
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
    use crate::host::cache::Cache;
    use crate::host::progress::{Kind, Progress};

    fn session(place: &Path) -> Session {
        let cache = Cache::at(place.join("cache")).unwrap();
        Session::new(cache, Progress::new(Kind::Quiet))
    }

    fn write(output: &Output, session: &Session, text: &str) {
        let unfinished = output.begin(&session.interrupt).unwrap();
        let fresh = unfinished.path();
        let file = fresh.join("file");
        fs::write(&file, text).unwrap();
        fs::write(fresh.join(PAGE), "page").unwrap();
        let sums = Sums::begin(&file).finish(session, fresh).unwrap();
        let files = written(fresh, sums).unwrap();
        output.replace(session, fresh, files).unwrap();
    }

    fn key(name: &str) -> Key {
        Key::of_data(name, 1).finish()
    }

    #[test]
    fn a_folder_is_current_until_its_key_or_a_file_changes() {
        let place = tempfile::tempdir().unwrap();
        let session = session(place.path());
        let folder = place.path().join("out/demo-1");
        let mut output = Output::take_folder(&folder, key("a")).unwrap();
        assert!(!output.is_current());
        write(&output, &session, "one");
        assert!(output.is_current());
        let report: Report =
            serde_json::from_slice(&fs::read(folder.join(REPORT)).unwrap()).unwrap();
        assert_eq!(report.builder, Some(Builder::this()));
        output.key = key("b");
        assert!(!output.is_current());
        output.key = key("a");
        fs::write(folder.join("file"), "two").unwrap();
        assert!(!output.is_current());
        write(&output, &session, "one");
        assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "one");
        fs::remove_file(folder.join("file")).unwrap();
        assert!(!output.is_current());
        for name in [SUMS, PAGE] {
            write(&output, &session, "one");
            assert!(output.is_current());
            fs::remove_file(folder.join(name)).unwrap();
            assert!(!output.is_current(), "without {name}");
        }
        write(&output, &session, "one");
        fs::write(folder.join(SUMS), "0  file\n").unwrap();
        assert!(!output.is_current());
    }

    #[test]
    fn a_build_removes_what_a_killed_one_of_another_image_left() {
        let place = tempfile::tempdir().unwrap();
        let session = session(place.path());
        let out = place.path().join("out");
        let killed = Output::take_folder(&out.join("other-1"), key("a")).unwrap();
        std::mem::forget(killed.begin(&session.interrupt).unwrap());
        let take = || Output::take_folder(&out.join("demo-1"), key("a")).unwrap();
        drop(take());
        assert!(out.join(".other-1.new").exists(), "it is alive");
        drop(killed);
        drop(take());
        assert!(!out.join(".other-1.new").exists());
    }

    #[test]
    fn an_interrupted_build_does_not_replace_the_old_folder() {
        let place = tempfile::tempdir().unwrap();
        let session = session(place.path());
        let folder = place.path().join("demo-1");
        let output = Output::take_folder(&folder, key("a")).unwrap();
        write(&output, &session, "one");
        let unfinished = output.begin(&session.interrupt).unwrap();
        let fresh = unfinished.path();
        fs::write(fresh.join("file"), "two").unwrap();
        let sums = Sums::begin(&fresh.join("file"));
        let sums = sums.finish(&session, fresh).unwrap();
        let files = written(fresh, sums).unwrap();
        // The program is about to end, and removes the new folder at any time from now on.
        session.interrupt.request();
        let error = output.replace(&session, fresh, files).unwrap_err();
        assert!(format!("{error:#}").contains("interrupted"), "{error:#}");
        assert!(output.is_current());
        assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "one");
        drop(unfinished);
        assert!(!place.path().join(".demo-1.new").exists());
    }

    #[test]
    fn a_failed_build_leaves_the_old_folder_and_nothing_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let session = session(place.path());
        let folder = place.path().join("demo-1");
        let output = Output::take_folder(&folder, key("a")).unwrap();
        write(&output, &session, "one");
        let unfinished = output.begin(&session.interrupt).unwrap();
        fs::write(unfinished.path().join("file"), "half").unwrap();
        drop(unfinished);
        assert!(output.is_current());
        assert!(!place.path().join(".demo-1.new").exists());
    }
}
