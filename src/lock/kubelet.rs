//! The kubelet of a lock, and the other programs of its release that the recipe wants: pinned from the first source that
//! has them all, and fetched again by their digests.

// Floor: a kubelet as a file
mod coredns;
mod program;
mod version;

// Floor: the Go toolchain
mod release_module;
mod toolchain;

// Floor: the release table's word
mod table;

// Floor: sources
mod module;
mod module_program;
mod own_module;
mod packages;
mod prebuilt;
mod release;

// Floor: programs with releases of their own
mod own_release;

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use super::fetching::LockedRecipe;
use super::file::{Lock, LockedFrom, LockedProgram};
use super::objects::{bring_program as bring, is_compiled};
use crate::host::cache::Absent;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::recipe::{ContainerImage, KubeletRequest, KubeletSource, Mistake, Recipe, SET_TOOLS_GO};
use crate::release::{FILE, Tables};

use module::Content;
pub use module_program::{ModuleProgram, module_program};
pub use own_release::Packed;
pub use packages::{Obtained, Packages, packages};
pub use program::{Pinned, Program};
use release_module::Modules;

/// The release tables of a recipe, once they know its version of Kubernetes: an unknown one is refused before anything is
/// asked for. A recipe's own kubelet, a file or an image, may be of any version.
///
/// # Errors
/// If the version is unknown, with the nearest ones, or a table is refused.
pub fn tables(recipe: &Recipe, request: &KubeletRequest) -> Result<Tables> {
    let tables = Tables::read(&recipe.folder().join(FILE))?;
    if !request.sources.iter().any(is_own)
        && let Err(error) = tables.find(&request.version)
    {
        let mut mistakes = recipe.places.mistakes();
        mistakes.add(Mistake::of(
            recipe.places.value(&["kubernetes", "version"]),
            format!("{error:#}"),
            "expected a version of a release table",
        ));
        return Err(mistakes.into());
    }
    Ok(tables)
}

/// The references with digests of a release's images, by component, as the release table has them: nothing is asked for.
///
/// # Errors
/// If the table does not have the version or, all at once, images of it.
pub fn images(
    recipe: &Recipe,
    tables: &Tables,
    version: &str,
    wanted: &[ContainerImage],
) -> Result<BTreeMap<String, String>> {
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let release = tables.find(version)?;
    let mut found = BTreeMap::new();
    let mut mistakes = recipe.places.mistakes();
    for image in wanted {
        let name = image.name();
        match release.images.iter().find(|image| image.name == name) {
            Some(image) => {
                let reference = format!("{}@{}", image.reference, image.digest);
                found.insert(name.to_owned(), reference);
            }
            None => mistakes.add(
                Mistake::of(
                    recipe.places.word(&["containers", "images"], name),
                    format!(
                        "the release table has no image {name} of Kubernetes {}, which it knows for compiling alone",
                        release.version
                    ),
                    "expected an image of the table, or images-from = \"build\"",
                )
                .help(format!(
                    "`slipway release add {}` adds it from the vendor's registry",
                    release.version
                )),
            ),
        }
    }
    mistakes.none()?;
    Ok(found)
}

/// The programs of an earlier lock, if they are what a recipe wants still, with the packages of a new lock: of the version, all that it
/// wants and no more, from one of its sources, as the release table has them, and compiled by the same toolchain if they are compiled.
pub fn kept(
    known: &Lock,
    locked: &LockedRecipe,
    request: &KubeletRequest,
    tables: &Tables,
) -> Option<Pinned> {
    let pinned = Pinned {
        kubelet: known.kubelet.clone()?,
        components: known.components.clone(),
        hit: true,
    };
    let kubelet = &pinned.kubelet;
    let architecture = locked.recipe.image.architecture.debian();
    let is_source = |source: &KubeletSource| match (source, &kubelet.source) {
        (KubeletSource::Release { url }, LockedFrom::Release { url: found }) => {
            *found == release::kubelet_url(url, tables, &kubelet.version, architecture)
        }
        (
            KubeletSource::Oci { reference },
            LockedFrom::Oci {
                reference: found, ..
            },
        ) => reference == found,
        (KubeletSource::GoModule, LockedFrom::GoModule { .. }) => true,
        // A file is read again: it costs nothing, and it may be another one.
        _ => false,
    };
    let compiled = pinned.components.values().chain([kubelet]).any(|program| {
        matches!(
            program.source,
            LockedFrom::GoModule { .. } | LockedFrom::KubeletModule
        )
    });
    let tools = |lock: &Lock| lock.sets.get(SET_TOOLS_GO).cloned();
    let entry = tables.get(kubelet.version.trim_start_matches('v'));
    let fits = version::fits(&kubelet.version, &request.version)
        && request.components.iter().eq(pinned.components.keys())
        && request.sources.iter().any(is_source)
        && pinned.components.iter().all(|(name, program)| {
            let release = kubelet.version.as_str();
            !own_module::is_own(name)
                || own_release::is_current(name, program, release, request, tables, architecture)
        })
        && (!compiled || tools(known) == tools(&locked.lock))
        && entry.is_none_or(|entry| table::verify(entry, &pinned, architecture).is_ok());
    fits.then_some(pinned)
}

/// Whether a source is not the vendor's release, but the user's own kubelet.
const fn is_own(source: &KubeletSource) -> bool {
    matches!(
        source,
        KubeletSource::File { .. } | KubeletSource::Oci { .. }
    )
}

/// Pins the kubelet of a recipe, and the other programs that it wants of the same release: asks its sources in order and
/// takes the first that has all; and then those that have releases of their own. The lock must contain the packages already,
/// because compiling takes the toolchain from there.
///
/// # Errors
/// If no source answers; with the reason for each.
pub fn pin(
    session: &Session,
    locked: &LockedRecipe,
    request: &KubeletRequest,
    tables: &Tables,
) -> Result<Pinned> {
    let (of_kubernetes, own) = own_release::split(request);
    let mut pinned = pin_release(session, locked, &of_kubernetes, tables)?;
    own_release::add(&mut pinned, &own, request, tables, session, locked)?;
    // Another hash than the table's is not a source that is away: no other is tried.
    let version = pinned.kubelet.version.trim_start_matches('v');
    if let Some(entry) = tables.get(version) {
        table::verify(entry, &pinned, locked.recipe.image.architecture.debian())?;
    }
    Ok(pinned)
}

/// Pins the programs of Kubernetes' release.
fn pin_release(
    session: &Session,
    locked: &LockedRecipe,
    request: &KubeletRequest,
    tables: &Tables,
) -> Result<Pinned> {
    let recipe = &locked.recipe;
    let mut refusals = Vec::new();
    // In the recipe's order: a release server is fast, compiling takes minutes and is for hosts without access to one.
    for source in &request.sources {
        let step = session
            .progress
            .step(&format!("kubelet from {}", name(source)));
        let pinned = of_release(tables, source, request)
            .and_then(|request| pin_from(session, locked, source, &request, tables, &step));
        match pinned {
            Ok(pinned) => {
                let found = &pinned.kubelet.version;
                ensure!(
                    version::fits(found, &request.version),
                    "{}: the recipe wants Kubernetes {}, {} gave {found}",
                    recipe.path.display(),
                    request.version,
                    name(source),
                );
                step.done(pinned.hit, Some(pinned.size()));
                if !refusals.is_empty() {
                    session.progress.warn(&format!(
                        "the kubelet is pinned from {}, since {}",
                        name(source),
                        refusals.join("; ")
                    ));
                }
                return Ok(pinned);
            }
            // Another program than the table's is not a source that is away.
            Err(error) if release::is_final(&error) => return Err(error),
            Err(error) => {
                refusals.push(format!("{}: {error:#}", name(source)));
            }
        }
    }
    bail!(
        "no source of {} has {} of Kubernetes {}:\n  {}",
        recipe.path.display(),
        wanted(request),
        request.version,
        refusals.join("\n  ")
    )
}

/// The request with the patch release that the tables have for it, if the source is one of releases.
fn of_release(
    tables: &Tables,
    source: &KubeletSource,
    request: &KubeletRequest,
) -> Result<KubeletRequest> {
    let mut request = request.clone();
    if !is_own(source) {
        let release = tables.find(&request.version)?;
        request.version.clone_from(&release.version);
    }
    Ok(request)
}

fn name(source: &KubeletSource) -> String {
    match source {
        KubeletSource::Release { url } => format!("the release server ({})", fetch::shown(url)),
        KubeletSource::File { path } => format!("the file {}", path.display()),
        KubeletSource::Oci { reference } => format!("the image {reference}"),
        KubeletSource::GoModule => "the Go module".to_owned(),
    }
}

/// The names of the requested programs, for people.
fn wanted(request: &KubeletRequest) -> String {
    let mut names = vec!["kubelet"];
    names.extend(request.components.iter().map(String::as_str));
    names.join(", ")
}

fn pin_from(
    session: &Session,
    locked: &LockedRecipe,
    source: &KubeletSource,
    request: &KubeletRequest,
    tables: &Tables,
    step: &Step,
) -> Result<Pinned> {
    if is_own(source) {
        ensure!(
            request.components.is_empty(),
            "it holds the kubelet only, and the recipe wants {}",
            wanted(request)
        );
    }
    match source {
        KubeletSource::Release { url } => {
            let mut of_release = request.clone();
            let wants_coredns = of_release.components.remove(coredns::NAME);
            let entry = tables.get(&request.version);
            let mut pinned = release::pin(url, &of_release, entry, session, locked, step)?;
            if wants_coredns {
                module::add_coredns(&mut pinned, session, locked, step)?;
            }
            Ok(pinned)
        }
        KubeletSource::File { path } => prebuilt::pin_file(path, session, locked),
        KubeletSource::Oci { reference } => prebuilt::pin_image(reference, session, locked, step),
        KubeletSource::GoModule => module::pin(request, session, locked, step),
    }
}

/// The pinned programs of the lock as files.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The kubelet.
    pub kubelet: Program,
    /// The other programs of its release, by name; several may be one file.
    pub components: BTreeMap<String, Program>,
    /// Programs that have releases of their own, by name.
    pub own: BTreeMap<String, Packed>,
}

impl Programs {
    /// All, with their names.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Program)> {
        let components = self.components.iter();
        let own = self.own.iter().map(|(name, own)| (name, &own.program));
        let others = components.chain(own);
        let others = others.map(|(name, program)| (name.as_str(), program));
        std::iter::once(("kubelet", &self.kubelet)).chain(others)
    }
}

/// The package URL of a program (<https://github.com/package-url/purl-spec>).
#[must_use]
pub fn purl(name: &str, program: &Program) -> String {
    own_module::purl(name, &program.version).unwrap_or_else(|| program.purl(name))
}

/// The pinned programs as files, if the lock has any: from the cache, else from their sources, by their digests.
///
/// # Errors
/// If a source does not have its program any more, or gives bytes that differ from the lock.
pub fn obtain(session: &Session, locked: &LockedRecipe) -> Result<Option<Programs>> {
    let lock = &locked.lock;
    let Some(kubelet) = &lock.kubelet else {
        return Ok(None);
    };
    let kubelet = obtain_one(session, locked, "kubelet", kubelet)?;
    let (mut components, mut own) = (BTreeMap::new(), BTreeMap::new());
    for (name, locked_program) in &lock.components {
        let program = obtain_one(session, locked, name, locked_program)?;
        if own_module::is_own(name) && !own_module::OF_IMAGES.contains(&name.as_str()) {
            let packed = Packed::new(name, program, &locked_program.source);
            own.insert(name.clone(), packed);
        } else {
            components.insert(name.clone(), program);
        }
    }
    Ok(Some(Programs {
        kubelet,
        components,
        own,
    }))
}

/// The modules that the kubelet is compiled from.
fn modules_of(locked: &LockedRecipe) -> Result<Modules<'_>> {
    match locked.lock.kubelet.as_ref().map(|kubelet| &kubelet.source) {
        Some(LockedFrom::GoModule { go_mod, go_sum }) => Ok(Modules { go_mod, go_sum }),
        _ => bail!(
            "the lock says that it is compiled with the kubelet, and the kubelet is not compiled"
        ),
    }
}

/// The release of Kubernetes.
fn release_of(locked: &LockedRecipe) -> Result<&str> {
    let kubelet = locked.lock.kubelet.as_ref();
    Ok(&kubelet.context("the lock has no kubelet")?.version)
}

fn obtain_one(
    session: &Session,
    locked: &LockedRecipe,
    name: &str,
    program: &LockedProgram,
) -> Result<Program> {
    let step = session.progress.step(name);
    let path = session.cache.object(&program.sha256);
    let hit = fs::metadata(&path).is_ok_and(|found| found.len() == program.size);
    // What a server has is not for the machines to share.
    let shared = session.cache.shared().filter(|_| is_compiled(program));
    let fetch_shared =
        || shared.is_some_and(|shared| shared.fetch_file(&program.sha256, program.size, &path));
    let is_here =
        hit || bring(session, locked, (name, program), &|bytes| {
            step.advance(bytes)
        })? || fetch_shared();
    if !is_here && session.cache.is_look_only() {
        return Err(Absent.into());
    }
    if !is_here {
        let about = || format!("getting the locked {name} {}", program.version);
        match &program.source {
            LockedFrom::Release { url } | LockedFrom::Archive { url, .. } => {
                release::fetch(url, &program.sha256, session, &step)
            }
            LockedFrom::File { path } => prebuilt::fetch_file(path, program, session, locked),
            LockedFrom::Oci { reference, digest } => {
                prebuilt::fetch_image(reference, digest, program, session, locked, &step)
            }
            LockedFrom::GoModule { go_mod, go_sum } if own_module::is_own(name) => {
                own_module::fetch(name, program, (go_mod, go_sum), session, locked, &step)
            }
            LockedFrom::GoModule { go_mod, go_sum } => {
                let modules = Modules { go_mod, go_sum };
                let content = match name {
                    coredns::NAME => Content::CoreDns,
                    _ => Content::Kubelet,
                };
                let release = release_of(locked)?;
                module::fetch(content, modules, release, program, session, locked, &step)
            }
            LockedFrom::KubeletModule => {
                let modules = modules_of(locked)?;
                let content = Content::Components;
                let release = release_of(locked)?;
                module::fetch(content, modules, release, program, session, locked, &step)
            }
        }
        .with_context(about)?;
    }
    session.cache.use_object(&program.sha256);
    if let Some(shared) = shared {
        shared.store_file(&program.sha256, program.size, path.clone());
    }
    step.done(hit, Some(program.size));
    Ok(Program {
        version: program.version.clone(),
        sha256: program.sha256.clone(),
        path,
    })
}
