//! The lock's own store: all its files by their hashes, which builds take before they ask a server. A folder, a bucket or a
//! repository of a registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use data_encoding::HEXLOWER;
use sha2::Digest as _;

use super::fetching::LockedRecipe;
use super::file::Lock;
use super::objects::{self, Wanted, bring_image, of_lock, references};
use super::{file, kubelet};
use crate::debian::files::SCHEME;
use crate::host::interrupt::Interrupt;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::oci::{self, Reference};
use crate::store::{Haste, Object, Store};

/// Files that are sent at once.
const AT_ONCE: usize = 8;

/// Writes all files of a lock to `to`, a folder or the address of a store, each under its hash, and makes it the lock's own: those that
/// the cache lacks are fetched. Gives their number and size in bytes.
///
/// # Errors
/// If a file cannot be had, all of a set or an image at once, or cannot be written, or another program changed the lock meanwhile, which
/// may take minutes. The lock is then as it was.
pub fn write(session: &Session, locked: &mut LockedRecipe, to: &Path) -> Result<(usize, u64)> {
    let about = || format!("writing {}", fetch::shown(&to.to_string_lossy()));
    let target = Target::of(session, to).with_context(about)?;
    let path = locked.recipe.lock_path();
    let begun = file::read(&path)?;
    locked.check_offline(session, Wanted::All)?;
    let architecture = locked.recipe.image.architecture.debian();
    for set in locked.lock.sets.keys() {
        locked.fetch(session, set)?;
    }
    kubelet::obtain(session, locked)?;
    locked.fetch_files(session)?;
    for text in references(locked) {
        let step = session.progress.step(&format!("image {text}"));
        bring_image(session, locked, &text, &|bytes| step.advance(bytes))?;
        let reference: Reference = text.parse().map_err(anyhow::Error::msg)?;
        oci::pull(session, &reference, architecture, &step)?;
        step.made(None);
    }
    let objects = of_lock(session, locked, Wanted::All)?;
    let step = session.progress.step("vendor");
    let written = target.write(session, &objects, &step).with_context(about)?;
    let size = written.iter().map(|object| object.size).sum();
    locked.lock.vendor = Some(
        target
            .recorded(locked.recipe.folder())
            .with_context(about)?,
    );
    record(&path, begun.as_ref(), &mut locked.lock)?;
    step.made(Some(size));
    Ok((written.len(), size))
}

/// Writes the lock over the one that was there when its files were begun.
fn record(path: &Path, begun: Option<&Lock>, lock: &mut Lock) -> Result<()> {
    let known = file::read(path)?;
    ensure!(
        known.as_ref() == begun,
        "{} was changed while its files were written; the same command again writes those of the present one, without those that are there",
        path.display()
    );
    file::write(path, known.as_ref(), lock)?;
    Ok(())
}

/// Where the files go.
struct Target {
    /// The address of the store.
    url: String,
    /// The folder, if it is one.
    folder: Option<PathBuf>,
    options: fetch::Options,
    interrupt: Interrupt,
}

impl Target {
    fn of(session: &Session, to: &Path) -> Result<Self> {
        let options = session.fetch_options();
        let target = match to.to_str() {
            Some(url) if url.contains("://") => Self {
                url: url.trim_end_matches('/').to_owned(),
                folder: None,
                options,
                interrupt: session.interrupt.clone(),
            },
            _ => Self {
                url: format!("{SCHEME}{}", std::path::absolute(to)?.display()),
                folder: Some(to.to_owned()),
                options,
                interrupt: session.interrupt.clone(),
            },
        };
        let store = target.open()?;
        ensure!(
            store.is_writable(),
            "it is a server's, which is only read; expected a folder, oci:// or s3://"
        );
        Ok(target)
    }

    fn open(&self) -> Result<Store> {
        let store = Store::open(&self.url, &self.options, Haste::Patient)?;
        Ok(store.ended_by(&self.interrupt))
    }

    /// Writes the files, and a note that names them all: what no note names, a registry collects.
    fn write(
        &self,
        session: &Session,
        objects: &[objects::Object],
        step: &Step,
    ) -> Result<Vec<Object>> {
        let written = self.write_files(session, objects, step)?;
        if self.folder.is_none() {
            let list: Vec<&str> = written.iter().map(|file| file.sha256.as_str()).collect();
            let sum = HEXLOWER.encode(&sha2::Sha256::digest(list.join("\n")));
            self.open()?
                .put_note(&format!("lock-{sum}"), "the files of a lock", &written)?;
        }
        Ok(written)
    }

    fn write_files(
        &self,
        session: &Session,
        objects: &[objects::Object],
        step: &Step,
    ) -> Result<Vec<Object>> {
        let next = AtomicUsize::new(0);
        let failures = Mutex::new(Vec::new());
        let files = objects.iter().map(|object| {
            let path = session.cache.object(&object.sha256);
            let size = fs::metadata(&path)
                .with_context(|| format!("taking {}", object.name))?
                .len();
            let sha256 = object.sha256.clone();
            Ok((object, Object { sha256, size }, path))
        });
        let files = files.collect::<Result<Vec<_>>>()?;
        step.total(files.iter().map(|(_, file, _)| file.size).sum());
        let work = || -> Result<()> {
            let mut store = self.open()?;
            while let Some((object, file, path)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = store.put(file, path) {
                    next.store(files.len(), Ordering::Relaxed);
                    let mut failures = failures
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    failures.push(format!("taking {}: {error:#}", object.name));
                }
                step.advance(file.size);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE.min(files.len()))
                .map(|_| scope.spawn(work))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let done = thread.join();
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        let failures = failures
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !failures.is_empty() {
            bail!("{}", failures.join("\n"));
        }
        Ok(files.into_iter().map(|(_, file, _)| file).collect())
    }

    /// The store as a lock has it.
    fn recorded(&self, recipe: &Path) -> Result<String> {
        match &self.folder {
            Some(folder) => recorded(recipe, folder),
            None => Ok(self.url.clone()),
        }
    }
}

/// A folder as a lock has it: relative to that of the recipe if it is below it.
fn recorded(recipe: &Path, folder: &Path) -> Result<String> {
    // A recipe of the current folder has none in its path.
    let recipe = Path::new(".").join(recipe);
    let (recipe, folder) = (fs::canonicalize(recipe)?, fs::canonicalize(folder)?);
    let path: PathBuf = match folder.strip_prefix(&recipe) {
        Ok(below) if below != Path::new("") => below.to_owned(),
        _ => folder,
    };
    let text = path.to_str().context("its path is not UTF-8")?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_recorded_as_the_recipe_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(top.join("recipes/files")).unwrap();
        let found = |recipe: &Path, files: &Path| recorded(recipe, files).unwrap();
        let recipes = top.join("recipes");
        assert_eq!(found(&recipes, &recipes.join("files")), "files");
        assert_eq!(found(&recipes, &top), top.to_str().unwrap());
        // A test's current folder is that of the package.
        assert_eq!(found(Path::new(""), Path::new("src")), "src");
    }

    #[test]
    fn a_lock_that_another_program_changed_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let mut lock = Lock {
            version: file::VERSION,
            ..Lock::default()
        };
        file::write(&path, None, &mut lock).unwrap();
        let begun = file::read(&path).unwrap();
        let mut other = Lock {
            epoch: 7,
            ..lock.clone()
        };
        file::write(&path, begun.as_ref(), &mut other).unwrap();
        lock.vendor = Some("files".to_owned());
        let error = record(&path, begun.as_ref(), &mut lock).unwrap_err();
        assert!(error.to_string().contains("was changed while"), "{error}");
        assert_eq!(file::read(&path).unwrap().as_ref(), Some(&other));
        record(&path, Some(&other), &mut lock).unwrap();
        assert_eq!(file::read(&path).unwrap(), Some(lock));
    }
}
