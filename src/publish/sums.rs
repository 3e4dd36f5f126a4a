//! SHA256SUMS: the list of hashes of an output folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::format::digest;
use crate::format::threads;
use crate::host::session::Session;
use crate::host::tree;

/// The list of hashes, as `sha256sum --check` reads it.
pub const SUMS: &str = "SHA256SUMS";
/// The file that is left out of [`SUMS`], because it contains times.
pub const REPORT: &str = "build-report.json";
/// The page that shows the image and the report: left out for the same reason.
pub const PAGE: &str = "report.html";

/// Hashes of a folder's files; the largest file is hashed in the background.
#[derive(Debug)]
pub struct Sums {
    path: PathBuf,
    written: Sender<u64>,
    hash: JoinHandle<Result<String>>,
}

impl Sums {
    /// Begins to hash the file `path`, which is being written, and other files are made from it afterwards. One thread hashes it,
    /// which takes longer than all other files together.
    #[must_use]
    pub fn begin(path: &Path) -> Self {
        let (written, ends) = channel();
        let path = path.to_owned();
        let file = path.clone();
        Self {
            path,
            written,
            hash: thread::spawn(move || digest::sha256_growing(&file, ends)),
        }
    }

    /// Says that the file is as it will be up to this byte.
    pub fn written(&self, end: u64) {
        // Without its other end, the thread has failed, and says why at the end.
        self.written.send(end).ok();
    }

    /// Hashes the other files below `folder` and writes the list beside them. Gives its lines as (path, hash).
    ///
    /// # Errors
    /// When a file cannot be read or the list cannot be written.
    pub fn finish(self, session: &Session, folder: &Path) -> Result<Vec<(String, String)>> {
        let path = self
            .path
            .strip_prefix(folder)?
            .to_string_lossy()
            .into_owned();
        drop(self.written);
        let hash = match self.hash.join() {
            Ok(hash) => hash?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        write(session, folder, vec![(path, hash)])
    }
}

/// Hashes every file below `output`, on all cores, except those that are `known` by path, and writes the list beside
/// them. Gives its lines as (path, hash).
fn write(
    session: &Session,
    output: &Path,
    known: Vec<(String, String)>,
) -> Result<Vec<(String, String)>> {
    let step = session.progress.step("sums");
    let mut files = list(output)?;
    files.retain(|(name, _)| known.iter().all(|(known, _)| known != name));
    // The largest first, so that no thread starts with one when the others are done.
    let mut order: Vec<&(String, u64)> = files.iter().collect();
    order.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    step.total(files.iter().map(|(_, size)| size).sum());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads::number() {
            scope.spawn(|| {
                while let Some((name, size)) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hash = digest::sha256(&output.join(name));
                    step.advance(*size);
                    if let Ok(mut done) = done.lock() {
                        done.push((name.clone(), hash));
                    }
                }
            });
        }
    });
    let mut out = known;
    for (name, hash) in done.into_inner().unwrap_or_default() {
        out.push((name, hash?));
    }
    out.sort();
    let lines = out
        .iter()
        .map(|(name, hash)| (name.as_str(), hash.as_str()));
    fs::write(output.join(SUMS), text(lines)).with_context(|| format!("writing {SUMS}"))?;
    step.made(None);
    Ok(out)
}

/// The list of these files, (path, hash), in their order.
pub(super) fn text<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    files
        .map(|(name, hash)| format!("{hash}  {name}\n"))
        .collect()
}

/// Files below a folder with their sizes, by path, without the list itself and what contains times.
fn list(folder: &Path) -> Result<Vec<(String, u64)>> {
    let files = tree::walk(folder)?.into_iter().filter_map(|item| {
        let name = item.inside[1..].to_owned();
        let listed = item.meta.is_file() && ![SUMS, REPORT, PAGE].contains(&name.as_str());
        listed.then_some((name, item.meta.len()))
    });
    Ok(files.collect())
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::host::cache::Cache;
    use crate::host::progress::{Kind, Progress};

    #[test]
    fn the_list_holds_every_file_but_itself_and_the_report() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pxe")).unwrap();
        for name in ["b", "a", "pxe/root", SUMS, REPORT, PAGE] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let known = vec![("b".to_owned(), HEXLOWER.encode(&Sha256::digest(b"b")))];
        let cache = Cache::at(folder.path().join("../cache")).unwrap();
        let session = Session::new(cache, Progress::new(Kind::Quiet));
        write(&session, folder.path(), known).unwrap();
        let text = fs::read_to_string(folder.path().join(SUMS)).unwrap();
        let names: Vec<&str> = text.lines().map(|line| &line[66..]).collect();
        assert_eq!(names, ["a", "b", "pxe/root"]);
        assert!(text.starts_with(&HEXLOWER.encode(&Sha256::digest(b"a"))));
    }
}
