//! The lock's own folder: all its files by their hashes, which builds take before they ask a server.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use data_encoding::HEXLOWER;
use sha2::Digest as _;

use super::fetching::LockedRecipe;
use super::objects::{Wanted, bring_image, of_lock, references};
use super::{file, kubelet};
use crate::debian::files::by_hash;
use crate::format::digest;
use crate::host::atomic_file;
use crate::host::session::Session;
use crate::oci::{self, Reference};

/// Writes all files of a lock to `folder`, each below its hash, and makes it the lock's own: those that the cache lacks are fetched.
/// Gives their number and size in bytes.
///
/// # Errors
/// If a file cannot be had, all of a set or an image at once, or cannot be written. The lock is then as it was.
pub fn write(session: &Session, locked: &mut LockedRecipe, folder: &Path) -> Result<(usize, u64)> {
    let about = || format!("writing {}", folder.display());
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
    let mut size = 0;
    for object in &objects {
        let path = folder.join(by_hash(&object.sha256));
        let from = session.cache.object(&object.sha256);
        size += keep(&from, &path, &object.sha256)
            .with_context(|| format!("taking {}", object.name))?;
    }
    locked.lock.vendor = Some(recorded(locked.recipe.folder(), folder).with_context(about)?);
    file::write(&locked.recipe.lock_path(), &locked.lock)?;
    step.made(Some(size));
    Ok((objects.len(), size))
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

/// Copies a file whose hash is known, which is computed of what is written; gives its size. One that is there is left.
fn keep(from: &Path, to: &Path, sha256: &str) -> Result<u64> {
    if let Ok(found) = digest::sha256(to)
        && found == sha256
    {
        return Ok(fs::metadata(to)?.len());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut source = File::open(from).with_context(|| format!("reading {}", from.display()))?;
    let (mut hash, mut size) = (sha2::Sha256::new(), 0);
    atomic_file::write(to, 0o644, |file| {
        let mut piece = vec![0; 1 << 20];
        loop {
            let n = source.read(&mut piece)?;
            if n == 0 {
                break;
            }
            hash.update(&piece[..n]);
            file.write_all(&piece[..n])?;
            size += n as u64;
        }
        let found = HEXLOWER.encode(&hash.finalize_reset());
        ensure!(
            found == sha256,
            "{} of the cache has SHA-256 {found}, expected {sha256}; remove it",
            from.display()
        );
        Ok(())
    })?;
    Ok(size)
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
}
