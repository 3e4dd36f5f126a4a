//! The files that a lock names, by their hashes: which a build takes, which are missing, and those that come from the lock's own
//! folder (`slipway lock --vendor`) before any server is asked.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::fetching::LockedRecipe;
use super::file::{LockedFrom, LockedProgram};
use crate::debian::files::{self, SCHEME};
use crate::host::cache::Cache;
use crate::host::progress::bytes;
use crate::host::session::Session;
use crate::oci::{self, Reference};
use crate::recipe::{Download, PrebuiltFrom, SET_TOOLS_GO, SET_TOOLS_RUN, TreeFrom};
use crate::store::{Haste, Store};
use anyhow::{Context as _, Result, bail};

/// Size limit of a file whose size the lock does not have, bytes.
pub(super) const LIMIT: u64 = 8 << 30;

/// A file that a lock names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Object {
    /// What it is, for people.
    pub name: String,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Size in bytes, if the lock has it.
    pub size: Option<u64>,
}

impl Object {
    fn is_in(&self, cache: &Cache) -> bool {
        let found = fs::metadata(cache.object(&self.sha256));
        found.is_ok_and(|found| self.size.is_none_or(|size| size == found.len()))
    }
}

/// What files are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A build: neither the tools that run an image, nor a toolchain for programs that are there.
    Build,
    /// All.
    All,
}

impl LockedRecipe {
    /// The files that are wanted and that neither the cache nor the lock's own folder has.
    ///
    /// # Errors
    /// If a file of that folder is damaged.
    pub fn missing(&self, session: &Session, wanted: Wanted) -> Result<Vec<Object>> {
        let mut missing = Vec::new();
        for object in of_lock(session, self, wanted)? {
            if !object.is_in(&session.cache) && !self.is_vendored(&object) {
                missing.push(object);
            }
        }
        Ok(missing)
    }

    /// Refuses a build that would have to ask a server, if none may be asked.
    ///
    /// # Errors
    /// Names all files that are missing.
    pub fn check_offline(&self, session: &Session, wanted: Wanted) -> Result<()> {
        if !session.offline {
            return Ok(());
        }
        let missing = self.missing(session, wanted)?;
        if missing.is_empty() {
            return Ok(());
        }
        let lines = missing.iter().map(|Object { name, size, .. }| match size {
            Some(size) => format!("{name}, {}", bytes(*size)),
            None => name.clone(),
        });
        bail!(
            "{} files of {} are not here, and no request is made offline:\n  {}",
            missing.len(),
            self.recipe.lock_path().display(),
            lines.collect::<Vec<_>>().join("\n  ")
        )
    }

    /// Whether the lock's own folder, if it is one of this host, has a file.
    fn is_vendored(&self, object: &Object) -> bool {
        let vendor = self.vendor();
        let folder = vendor.as_ref().and_then(|url| url.strip_prefix(SCHEME));
        folder.is_some_and(|folder| {
            Path::new(folder)
                .join(files::by_hash(&object.sha256))
                .is_file()
        })
    }
}

/// The files of a lock, each once.
pub(super) fn of_lock(
    session: &Session,
    locked: &LockedRecipe,
    wanted: Wanted,
) -> Result<Vec<Object>> {
    let lock = &locked.lock;
    let mut all = Vec::new();
    let mut compiles = false;
    let programs = lock.kubelet.iter().map(|program| ("kubelet", program));
    let components = lock.components.iter();
    let components = components.map(|(name, program)| (name.as_str(), program));
    for (name, program) in programs.chain(components) {
        let object = of_program(name, program);
        compiles |=
            is_compiled(program) && !object.is_in(&session.cache) && !locked.is_vendored(&object);
        all.push(object);
    }
    for (set, packages) in &lock.sets {
        let counts = match set.as_str() {
            SET_TOOLS_RUN => wanted == Wanted::All,
            SET_TOOLS_GO => wanted == Wanted::All || compiles,
            _ => true,
        };
        all.extend(packages.iter().filter(|_| counts).map(|package| Object {
            name: format!("{} {}", package.name, package.version),
            sha256: package.sha256.clone(),
            size: Some(package.size),
        }));
    }
    all.extend(locked.recipe.downloads().map(|(file, _)| of_download(file)));
    for reference in references(locked) {
        all.extend(of_image(session, locked, &reference)?);
    }
    // A program of several names, and a package of several sets, is one file.
    let mut seen = BTreeSet::new();
    all.retain(|object| seen.insert(object.sha256.clone()));
    all.sort();
    Ok(all)
}

fn of_program(name: &str, program: &LockedProgram) -> Object {
    let how = match is_compiled(program) {
        true => ", compiled",
        false => "",
    };
    Object {
        name: format!("{name} {}{how}", program.version),
        sha256: program.sha256.clone(),
        size: Some(program.size),
    }
}

/// A file of a server that the recipe names.
pub(super) fn of_download(file: &Download) -> Object {
    Object {
        name: fetch::shown(&file.url),
        sha256: file.sha256.clone(),
        size: None,
    }
}

/// Whether a program is compiled, which takes minutes.
pub(super) const fn is_compiled(program: &LockedProgram) -> bool {
    matches!(
        program.source,
        LockedFrom::GoModule { .. } | LockedFrom::KubeletModule
    )
}

/// The container images that a build takes from registries.
pub(super) fn references(locked: &LockedRecipe) -> Vec<String> {
    let prebuilt = locked.recipe.prebuilt.iter();
    let prebuilt = prebuilt.filter_map(|wanted| match &wanted.from {
        PrebuiltFrom::Oci(reference) => Some(reference.clone()),
        PrebuiltFrom::Layout(_) => None,
    });
    let trees = locked.recipe.trees.iter();
    let trees = trees.filter_map(|tree| match &tree.from {
        TreeFrom::Image { reference, .. } => Some(reference.clone()),
        TreeFrom::Archive { .. } => None,
    });
    let images = locked.lock.images.values().cloned();
    images.chain(prebuilt).chain(trees).collect()
}

/// The files of an image, as far as those that are here name them.
fn of_image(session: &Session, locked: &LockedRecipe, reference: &str) -> Result<Vec<Object>> {
    let reference: Reference = reference.parse().map_err(anyhow::Error::msg)?;
    let architecture = locked.recipe.image.architecture.debian();
    let mut bring = |object: &oci::Stored| {
        let object = named(&reference, object);
        bring(session, locked, &object, &|_| ())
    };
    let stored = oci::stored(&session.cache, &reference, architecture, &mut bring)?;
    Ok(stored
        .iter()
        .map(|object| named(&reference, object))
        .collect())
}

fn named(reference: &Reference, stored: &oci::Stored) -> Object {
    Object {
        name: format!("{} of the image {reference}", stored.what),
        sha256: stored.sha256.clone(),
        size: stored.size,
    }
}

/// Brings the files of an image from the lock's own folder to the cache, if it has them: a pull then asks for nothing.
///
/// # Errors
/// If one of them is damaged.
pub fn bring_image(
    session: &Session,
    locked: &LockedRecipe,
    reference: &str,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    for object in of_image(session, locked, reference)? {
        bring(session, locked, &object, on_bytes)?;
    }
    Ok(())
}

/// Brings a program from the lock's own folder to the cache; gives whether the cache has it now.
///
/// # Errors
/// If it is damaged there.
pub(super) fn bring_program(
    session: &Session,
    locked: &LockedRecipe,
    (name, program): (&str, &LockedProgram),
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<bool> {
    bring(session, locked, &of_program(name, program), on_bytes)
}

/// Brings a file from the lock's own folder to the cache; gives whether the cache has it now.
///
/// # Errors
/// If it is damaged there.
pub(super) fn bring(
    session: &Session,
    locked: &LockedRecipe,
    object: &Object,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<bool> {
    if object.is_in(&session.cache) {
        return Ok(true);
    }
    let Some(vendor) = locked.vendor() else {
        return Ok(false);
    };
    let mut store = Store::open(&vendor, &session.fetch_options(), Haste::Patient)?;
    let path = session.cache.object(&object.sha256);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let most = object.size.unwrap_or(LIMIT);
    match store.get(&object.sha256, most, &path, on_bytes) {
        Ok(()) => Ok(true),
        Err(failure) if files::is_elsewhere(&failure) => Ok(false),
        Err(failure) => Err(failure).with_context(|| format!("taking {}", object.name)),
    }
}
