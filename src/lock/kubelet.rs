//! The kubelet that a lock pins: the program of the first source that answers, and the same program again by its digest.

// Floor: a kubelet as a file
mod program;
mod version;

// Floor: sources
mod foreign;
mod module;
mod release;

use std::fs;

use anyhow::{Context, Result, bail, ensure};

use super::file::{Lock, LockedFrom, LockedKubelet};
use crate::host::cache::{Cache, Key};
use crate::host::progress::{Progress, Step};
use crate::recipe::{KubeletSource, Kubernetes, Recipe};
use program::Work;

pub use program::Program;

/// Pins the kubelet of a recipe: asks its sources in order and takes the first that answers. `lock` must hold the
/// recipe's packages already, because compiling takes the toolchain from there.
///
/// # Errors
/// If no source answers; says of each why.
pub fn pin(
    recipe: &Recipe,
    cache: &Cache,
    lock: &Lock,
    progress: &Progress,
) -> Result<Option<LockedKubelet>> {
    let Some(kubernetes) = &recipe.kubernetes else {
        return Ok(None);
    };
    let work = Work {
        recipe,
        cache,
        lock,
        progress,
    };
    let mut refusals = Vec::new();
    for source in &kubernetes.kubelet {
        let step = progress.step(&format!("kubelet from {}", name(source)));
        match pin_from(source, kubernetes, &work, &step) {
            Ok((locked, hit)) => {
                ensure!(
                    version::fits(&locked.version, &kubernetes.version),
                    "{}: the recipe wants Kubernetes {}, {} gave {}",
                    recipe.path.display(),
                    kubernetes.version,
                    name(source),
                    locked.version
                );
                let size = Some(locked.size);
                if hit {
                    step.hit(size)
                } else {
                    step.made(size)
                }
                return Ok(Some(locked));
            }
            Err(error) => {
                progress.say(&format!("kubelet from {}: {error:#}", name(source)));
                refusals.push(format!("{}: {error:#}", name(source)));
            }
        }
    }
    bail!(
        "no source of {} has a kubelet {}:\n  {}",
        recipe.path.display(),
        kubernetes.version,
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

/// Gives the pin, and whether nothing had to be fetched or made for it.
fn pin_from(
    source: &KubeletSource,
    kubernetes: &Kubernetes,
    work: &Work<'_>,
    step: &Step,
) -> Result<(LockedKubelet, bool)> {
    match source {
        KubeletSource::Release { url } => release::pin(url, kubernetes, work, step),
        KubeletSource::File { path } => foreign::pin_file(path, work),
        KubeletSource::Oci { reference } => foreign::pin_image(reference, work, step),
        KubeletSource::GoModule => module::pin(&kubernetes.version, work, step),
    }
}

/// The pinned kubelet as a file: from the cache, else from its source, by its digest.
///
/// # Errors
/// If its source has it no more, or gives other bytes than the lock says.
pub fn obtain(
    recipe: &Recipe,
    cache: &Cache,
    lock: &Lock,
    locked: &LockedKubelet,
    progress: &Progress,
) -> Result<Program> {
    let work = Work {
        recipe,
        cache,
        lock,
        progress,
    };
    let step = progress.step("kubelet");
    let path = cache.object(&locked.sha256);
    let hit = fs::metadata(&path).is_ok_and(|found| found.len() == locked.size);
    if !hit {
        let about = || format!("getting the locked kubelet {}", locked.version);
        match &locked.source {
            LockedFrom::Release { url } => release::fetch(url, &locked.sha256, &work, &step),
            LockedFrom::File { path } => foreign::fetch_file(path, locked, &work),
            LockedFrom::Oci { reference, digest } => {
                foreign::fetch_image(reference, digest, locked, &work, &step)
            }
            LockedFrom::GoModule { go_mod, go_sum } => {
                module::fetch(go_mod, go_sum, locked, &work, &step)
            }
        }
        .with_context(about)?;
    }
    cache.use_object(&locked.sha256);
    let size = Some(locked.size);
    if hit {
        step.hit(size)
    } else {
        step.made(size)
    }
    Ok(Program {
        version: locked.version.clone(),
        sha256: locked.sha256.clone(),
        path,
    })
}

/// What decides the kubelet's part of a lock.
///
/// # Errors
/// If the recipe cannot be written as JSON.
pub fn wishes(recipe: &Recipe) -> Result<Key> {
    let wishes = recipe
        .kubernetes
        .as_ref()
        .map(|k| serde_json::to_string(&(&k.version, &k.kubelet)))
        .transpose()?
        .unwrap_or_default();
    Ok(Key::of("kubelet wishes", 1)
        .text("wishes", &wishes)
        .finish())
}
