//! A prebuilt kubelet: a program of the building host, or one inside an OCI image.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::program::{LIMIT, Pinned, ask_version, keep};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::oci;
use crate::recipe::{KubeletSource, Recipe};

/// Paths of the kubelet in images; the first existing one is used.
const PLACES: &[&str] = &[
    "usr/bin/kubelet",
    "usr/local/bin/kubelet",
    "bin/kubelet",
    "kubelet",
];

/// The file of the building host that a request calls `path`: most are relative to the recipe's folder, one of the command line is
/// relative to the current folder.
fn named<'a>(path: &Path, recipe: &'a Recipe) -> Option<&'a Path> {
    let sources = recipe.kubernetes.iter().flat_map(|k| &k.kubelet);
    let mut files = sources.filter_map(|source| match source {
        KubeletSource::File { path } => Some(path.as_path()),
        _ => None,
    });
    let folder = recipe.folder();
    files.find(|file| file.strip_prefix(folder).unwrap_or(file) == path)
}

/// Pins a file; `path` is that of the lock's request.
pub(super) fn pin_file(path: &Path, session: &Session, locked: &LockedRecipe) -> Result<Pinned> {
    let file = named(path, &locked.recipe);
    let file = file.with_context(|| format!("the recipe names no file {}", path.display()))?;
    // The copy is asked: the file may be another one a moment later.
    let (sha256, size) = keep(&session.cache, file)?;
    let version = ask_version(&session.cache, &session.cache.object(&sha256))?;
    let kubelet = LockedProgram {
        version,
        sha256,
        size,
        source: LockedFrom::File {
            path: path.to_string_lossy().into_owned(),
        },
    };
    Ok(Pinned::kubelet(kubelet, true))
}

/// Copies the file that the recipe names now, if its digest still matches the lock.
pub(super) fn fetch_file(
    path: &str,
    kubelet: &LockedProgram,
    session: &Session,
    locked: &LockedRecipe,
) -> Result<()> {
    let sources = locked.recipe.kubernetes.iter().flat_map(|k| &k.kubelet);
    let named = sources
        .filter_map(|source| match source {
            KubeletSource::File { path } => Some(path),
            _ => None,
        })
        .find(|named| named.ends_with(path))
        .with_context(|| format!("the recipe does not name the file {path} any more"))?;
    let (found, _) = keep(&session.cache, named)?;
    ensure!(
        found == kubelet.sha256,
        "{} has SHA-256 {found}, expected {} as the lock says; `slipway lock --renew` takes the present one",
        named.display(),
        kubelet.sha256
    );
    Ok(())
}

pub(super) fn pin_image(
    reference: &str,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<Pinned> {
    let mut read: oci::Reference = reference.parse().map_err(anyhow::Error::msg)?;
    let architecture = locked.recipe.image.architecture.debian();
    let answers = &session.answers;
    // A tag may be moved between two images of one run.
    if let Some(digest) = answers.digest(reference, architecture) {
        read = read.at(&digest);
    }
    let pulled = answers.ask(reference, architecture, || {
        oci::pull(session, &read, architecture, step)
    })?;
    answers.keep_digest(reference, architecture, &pulled.digest);
    let scratch = session.cache.scratch()?;
    let program = scratch.path().join("kubelet");
    pulled.extract_file(PLACES, LIMIT, &program)?;
    let version = ask_version(&session.cache, &program)?;
    let (sha256, size) = keep(&session.cache, &program)?;
    answers.give(reference, architecture);
    let kubelet = LockedProgram {
        version,
        sha256,
        size,
        source: LockedFrom::Oci {
            reference: reference.to_owned(),
            digest: pulled.digest.clone(),
        },
    };
    Ok(Pinned::kubelet(kubelet, false))
}

pub(super) fn fetch_image(
    reference: &str,
    digest: &str,
    kubelet: &LockedProgram,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<()> {
    let reference: oci::Reference = reference.parse().map_err(anyhow::Error::msg)?;
    let architecture = locked.recipe.image.architecture.debian();
    let pinned = reference.at(digest);
    let pulled = oci::pull(session, &pinned, architecture, step)?;
    let scratch = session.cache.scratch()?;
    let program = scratch.path().join("kubelet");
    pulled.extract_file(PLACES, LIMIT, &program)?;
    let (found, _) = keep(&session.cache, &program)?;
    ensure!(
        found == kubelet.sha256,
        "the kubelet of {digest} has SHA-256 {found}, expected {} as the lock says",
        kubelet.sha256
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Choice, load_as};

    /// A file of the recipe is beside it; one of the command line is not joined to the recipe's folder.
    #[test]
    fn the_file_is_the_one_that_the_recipe_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let text = "image = { name = 'a', version = '1' }\n\
                    kernel = { package = 'linux-image-amd64', platforms = ['qemu'], cmdline = ['a'] }\n\
                    kubernetes = { version = '1.36.3', kubelet = [{ file = 'bin/kubelet' }] }\n";
        std::fs::write(&path, text).unwrap();
        let own = folder.path().join("bin/kubelet");
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        std::fs::write(&own, "").unwrap();
        // The current folder of tests is that of the crate.
        let setting = "kubernetes.kubelet=[{ file = 'Cargo.toml' }]".to_owned();
        for (settings, expected, file) in [
            (vec![], "bin/kubelet", own.as_path()),
            (vec![setting], "Cargo.toml", Path::new("Cargo.toml")),
        ] {
            let choice = Choice {
                settings,
                ..Choice::default()
            };
            let recipe = load_as(&path, &choice);
            let recipe = recipe.unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)));
            let sources = recipe.lock_request().kubelet.unwrap().sources;
            let [KubeletSource::File { path }] = sources.as_slice() else {
                panic!("{sources:?}");
            };
            assert_eq!(path, Path::new(expected));
            assert_eq!(named(path, &recipe), Some(file));
        }
    }
}
