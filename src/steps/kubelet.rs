//! Kubelet: the program from its first source that answers, pinned; and the container that it runs in.

mod container;
mod foreign;
mod module;
mod node;
mod release;
mod version;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::host::cache::{Cache, Key, file_digest};
use crate::host::progress::{Progress, Step};
use crate::host::sandbox::Sandbox;
use crate::install::tools::{self, Tools};
use crate::lock::{self, Lock};
use crate::recipe::{KubeletSource, Kubernetes, Recipe, SET_TOOLS_GO};

pub use container::{container_image, container_layer};
pub use node::{containers_layer, node_layer};

/// The most bytes that a kubelet may have: today's has 84 million.
const LIMIT: u64 = 512 << 20;

/// The kubelet that a lock pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LockedKubelet {
    /// Release, as `v1.36.3`.
    pub version: String,
    /// SHA-256 of the program, hexadecimal.
    pub sha256: String,
    /// Size of the program in bytes.
    pub size: u64,
    /// Where it comes from.
    pub source: LockedFrom,
}

/// Where a pinned kubelet comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LockedFrom {
    /// A release server.
    Release {
        /// URL of the program.
        url: String,
    },
    /// A program of the building host, the one that the recipe names.
    File {
        /// Its path, as the recipe gives it.
        path: String,
    },
    /// An OCI image.
    Oci {
        /// Its reference, as the recipe gives it.
        reference: String,
        /// Digest of its manifest, as `sha256:…`.
        digest: String,
    },
    /// The Go module, compiled here.
    GoModule {
        /// `go.mod` of the program that is compiled.
        go_mod: String,
        /// `go.sum`: the hash of every module.
        go_sum: String,
    },
}

/// The kubelet as a file.
#[derive(Clone, Debug)]
pub struct Program {
    /// Release, as `v1.36.3`.
    pub version: String,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Where it is.
    pub path: PathBuf,
}

/// What the sources work with.
pub(crate) struct Work<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) cache: &'a Cache,
    /// Its packages are pinned already, its kubelet perhaps not.
    pub(crate) lock: &'a Lock,
    pub(crate) progress: &'a Progress,
}

impl Work<'_> {
    /// The Go toolchain of the tools tree.
    fn go(&self) -> Result<Tools> {
        let debs = lock::fetch_set(
            self.recipe,
            self.cache,
            self.lock,
            SET_TOOLS_GO,
            self.progress,
        )?;
        tools::install(self.cache, &debs, SET_TOOLS_GO, self.progress)
    }
}

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

/// Takes a program into the cache's objects, under its own digest: digest and size.
fn keep(cache: &Cache, program: &Path) -> Result<(String, u64)> {
    let sha256 = file_digest(program)?;
    let object = cache.object(&sha256);
    if let Some(folder) = object.parent() {
        fs::create_dir_all(folder)?;
        let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
        std::io::copy(&mut fs::File::open(program)?, &mut temporary)?;
        temporary
            .as_file()
            .set_permissions(fs::Permissions::from_mode(0o644))?;
        temporary.as_file().sync_all()?;
        temporary.persist(&object)?;
    }
    Ok((sha256, fs::metadata(&object)?.len()))
}

/// What a kubelet says of itself, as `v1.36.3`: it is run in an empty root, which only a static program survives.
fn ask_version(cache: &Cache, program: &Path) -> Result<String> {
    let scratch = cache.scratch()?;
    let inside = scratch.path().join("kubelet");
    fs::copy(program, &inside)?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o755))?;
    let said = Sandbox::new(scratch.path())
        .command("/kubelet")
        .arg("--version")
        .run()
        .with_context(|| {
            format!(
                "asking {} for its version in an empty root (a kubelet must be linked statically)",
                program.display()
            )
        })?;
    let said = String::from_utf8_lossy(&said);
    let version = said.trim().strip_prefix("Kubernetes ").unwrap_or_default();
    ensure!(
        version::parse(version).is_some(),
        "{} says {:?} to --version, expected \"Kubernetes v1.…\"",
        program.display(),
        said.trim()
    );
    Ok(version.to_owned())
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
