//! A prebuilt kubelet: a program of the building host, or one inside an OCI image.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::program::{LIMIT, Pinned, ask_version, keep};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::oci;
use crate::recipe::KubeletSource;

/// Paths of the kubelet in images; the first existing one is used.
const PLACES: &[&str] = &[
    "usr/bin/kubelet",
    "usr/local/bin/kubelet",
    "bin/kubelet",
    "kubelet",
];

/// Pins a file; `path` is relative to the recipe's folder.
pub(super) fn pin_file(path: &Path, session: &Session, locked: &LockedRecipe) -> Result<Pinned> {
    let file = locked.recipe.folder().join(path);
    // The copy is asked: the file may be another one a moment later.
    let (sha256, size) = keep(&session.cache, &file)?;
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
