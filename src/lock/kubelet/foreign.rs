//! A kubelet that others made: a program of the building host, or one inside an OCI image.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::program::{LIMIT, Work, ask_version, keep};
use crate::host::cache::file_digest;
use crate::host::progress::Step;
use crate::lock::file::{LockedFrom, LockedKubelet};
use crate::oci;
use crate::recipe::KubeletSource;

/// Where images hold their kubelet, the first that is there counts.
const PLACES: &[&str] = &[
    "usr/bin/kubelet",
    "usr/local/bin/kubelet",
    "bin/kubelet",
    "kubelet",
];

pub(super) fn pin_file(path: &Path, work: &Work<'_>) -> Result<(LockedKubelet, bool)> {
    let version = ask_version(work.cache, path)?;
    let (sha256, size) = keep(work.cache, path)?;
    let locked = LockedKubelet {
        version,
        sha256,
        size,
        source: LockedFrom::File {
            path: path
                .strip_prefix(work.recipe.folder())
                .unwrap_or(path)
                .to_string_lossy()
                .into_owned(),
        },
    };
    Ok((locked, true))
}

/// Takes the file that the recipe names now, if it is still the one of the lock.
pub(super) fn fetch_file(path: &str, locked: &LockedKubelet, work: &Work<'_>) -> Result<()> {
    let sources = work.recipe.kubernetes.iter().flat_map(|k| &k.kubelet);
    let named = sources
        .filter_map(|source| match source {
            KubeletSource::File { path } => Some(path),
            _ => None,
        })
        .find(|named| named.ends_with(path))
        .with_context(|| format!("the recipe does not name the file {path} any more"))?;
    let found = file_digest(named)?;
    ensure!(
        found == locked.sha256,
        "{} has SHA-256 {found}, expected {} as the lock says; `slipway lock --renew` takes the present one",
        named.display(),
        locked.sha256
    );
    keep(work.cache, named)?;
    Ok(())
}

pub(super) fn pin_image(
    reference: &str,
    work: &Work<'_>,
    step: &Step,
) -> Result<(LockedKubelet, bool)> {
    let reference_read: oci::Reference = reference.parse().map_err(anyhow::Error::msg)?;
    let architecture = work.recipe.image.architecture.debian();
    let pulled = oci::pull(work.cache, &reference_read, architecture, step)?;
    let scratch = work.cache.scratch()?;
    let program = scratch.path().join("kubelet");
    pulled.extract_file(PLACES, LIMIT, &program)?;
    let version = ask_version(work.cache, &program)?;
    let (sha256, size) = keep(work.cache, &program)?;
    let locked = LockedKubelet {
        version,
        sha256,
        size,
        source: LockedFrom::Oci {
            reference: reference.to_owned(),
            digest: pulled.digest.clone(),
        },
    };
    Ok((locked, false))
}

pub(super) fn fetch_image(
    reference: &str,
    digest: &str,
    locked: &LockedKubelet,
    work: &Work<'_>,
    step: &Step,
) -> Result<()> {
    let reference: oci::Reference = reference.parse().map_err(anyhow::Error::msg)?;
    let architecture = work.recipe.image.architecture.debian();
    let pinned = reference.at(digest);
    let pulled = oci::pull(work.cache, &pinned, architecture, step)?;
    let scratch = work.cache.scratch()?;
    let program = scratch.path().join("kubelet");
    pulled.extract_file(PLACES, LIMIT, &program)?;
    let (found, _) = keep(work.cache, &program)?;
    ensure!(
        found == locked.sha256,
        "the kubelet of {digest} has SHA-256 {found}, expected {} as the lock says",
        locked.sha256
    );
    Ok(())
}
