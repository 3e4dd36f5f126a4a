//! The kubelet of a lock: pinned from the first source that has it, and fetched again by its digest.

// Floor: a kubelet as a file
mod program;
mod version;

// Floor: sources
mod module;
mod prebuilt;
mod release;

use std::fs;

use anyhow::{Context, Result, bail, ensure};

use super::fetching::LockedRecipe;
use super::file::{LockedFrom, LockedKubelet};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::recipe::{KubeletRequest, KubeletSource};

pub use program::Program;

/// Pins the kubelet of a recipe: asks its sources in order and takes the first that answers. The lock must contain
/// the packages already, because compiling takes the toolchain from there.
///
/// # Errors
/// If no source answers; with the reason for each.
pub fn pin(
    session: &Session,
    locked: &LockedRecipe,
    request: &KubeletRequest,
) -> Result<LockedKubelet> {
    let recipe = &locked.recipe;
    let mut refusals = Vec::new();
    // In the recipe's order: a release server is fast, compiling takes minutes and is for hosts without access to one.
    for source in &request.sources {
        let step = session
            .progress
            .step(&format!("kubelet from {}", name(source)));
        match pin_from(session, locked, source, &request.version, &step) {
            Ok((kubelet, hit)) => {
                ensure!(
                    version::fits(&kubelet.version, &request.version),
                    "{}: the recipe wants Kubernetes {}, {} gave {}",
                    recipe.path.display(),
                    request.version,
                    name(source),
                    kubelet.version
                );
                step.done(hit, Some(kubelet.size));
                return Ok(kubelet);
            }
            Err(error) => {
                session
                    .progress
                    .say(&format!("kubelet from {}: {error:#}", name(source)));
                refusals.push(format!("{}: {error:#}", name(source)));
            }
        }
    }
    bail!(
        "no source of {} has a kubelet {}:\n  {}",
        recipe.path.display(),
        request.version,
        refusals.join("\n  ")
    )
}

fn name(source: &KubeletSource) -> String {
    match source {
        KubeletSource::Release { url } => format!("the release server ({url})"),
        KubeletSource::File { path } => format!("the file {}", path.display()),
        KubeletSource::Oci { reference } => format!("the image {reference}"),
        KubeletSource::GoModule => "the Go module".to_owned(),
    }
}

/// Gives the pin, and whether it came from the cache.
fn pin_from(
    session: &Session,
    locked: &LockedRecipe,
    source: &KubeletSource,
    version: &str,
    step: &Step,
) -> Result<(LockedKubelet, bool)> {
    match source {
        KubeletSource::Release { url } => release::pin(url, version, session, locked, step),
        KubeletSource::File { path } => prebuilt::pin_file(path, session, locked),
        KubeletSource::Oci { reference } => prebuilt::pin_image(reference, session, locked, step),
        KubeletSource::GoModule => module::pin(version, session, locked, step),
    }
}

/// The pinned kubelet as a file: from the cache, else from its source, by its digest.
///
/// # Errors
/// If its source does not have it any more, or gives bytes that differ from the lock.
pub fn obtain(
    session: &Session,
    locked: &LockedRecipe,
    kubelet: &LockedKubelet,
) -> Result<Program> {
    let step = session.progress.step("kubelet");
    let path = session.cache.object(&kubelet.sha256);
    let hit = fs::metadata(&path).is_ok_and(|found| found.len() == kubelet.size);
    if !hit {
        let about = || format!("getting the locked kubelet {}", kubelet.version);
        match &kubelet.source {
            LockedFrom::Release { url } => release::fetch(url, &kubelet.sha256, session, &step),
            LockedFrom::File { path } => prebuilt::fetch_file(path, kubelet, session, locked),
            LockedFrom::Oci { reference, digest } => {
                prebuilt::fetch_image(reference, digest, kubelet, session, locked, &step)
            }
            LockedFrom::GoModule { go_mod, go_sum } => {
                module::fetch(go_mod, go_sum, kubelet, session, locked, &step)
            }
        }
        .with_context(about)?;
    }
    session.cache.use_object(&kubelet.sha256);
    step.done(hit, Some(kubelet.size));
    Ok(Program {
        version: kubelet.version.clone(),
        sha256: kubelet.sha256.clone(),
        path,
    })
}
