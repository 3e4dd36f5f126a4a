//! Lock: every package, download and container image of a recipe, pinned by path, size and digest.

// Floor: the lock file
mod file;

// Floor: packages as files
mod fetching;

// Floor: programs that are no packages
pub mod kubelet;

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};

use crate::debian::Mirrors;
use crate::debian::archive::{Archive, Request, suites};
use crate::debian::mirror::Host;
use crate::debian::packages::Pool;
use crate::debian::pinned::LockedPackage;
use crate::debian::signature::Keyring;
use crate::debian::solve::{self, Requirements};
use crate::format::time::rfc3339;
use crate::host::cache::Key;
use crate::host::progress::{Progress, Step};
use crate::host::session::Session;
use crate::recipe::{Debian, LockRequest, Recipe, SetRequest};

pub use fetching::LockedRecipe;
pub use file::{Lock, LockedFrom, LockedProgram, LockedSource, VERSION};

/// The treatment of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Make it if there is none, or if the recipe's requirements have changed since.
    Make,
    /// Never make it: a missing or outdated lock is an error.
    Locked,
    /// Always make it.
    Renew,
}

/// The recipe's lock: read, or made from the archive and written.
///
/// # Errors
/// If the archive cannot be read or verified, a requirement cannot be met, or `mode` forbids a necessary change.
pub fn pin(session: &Session, recipe: Recipe, mode: Mode) -> Result<LockedRecipe> {
    let path = recipe.lock_path();
    let request = recipe.lock_request();
    let digest = digest(&request)?;
    let known = file::read(&path)?;
    let step = session.progress.step("lock");
    match (&known, mode) {
        (Some(known), Mode::Make | Mode::Locked) if known.recipe_digest == digest => {
            let lock = known.clone();
            step.hit(None);
            return Ok(LockedRecipe { recipe, lock });
        }
        (Some(_), Mode::Locked) => bail!(
            "{} is out of date: {} changed since it was locked; `slipway lock {}` makes a new one",
            path.display(),
            recipe.path.display(),
            recipe.path.display()
        ),
        (None, Mode::Locked) => bail!(
            "{} is missing; `slipway lock {}` makes it",
            path.display(),
            recipe.path.display()
        ),
        _ => {}
    }
    let wanted = request.kubelet.as_ref();
    let wanted = wanted.map(|wanted| {
        let tables = kubelet::tables(&recipe, wanted)?;
        let images = kubelet::images(&tables, &wanted.version, &request.images)?;
        anyhow::Ok((wanted, tables, images))
    });
    let wanted = wanted.transpose()?;
    let lock = make(session, &recipe.debian, &request, &step, digest)?;
    let mut locked = LockedRecipe { recipe, lock };
    // Compiling a kubelet takes the toolchain from the packages chosen above.
    if let Some((wanted, tables, images)) = wanted {
        let pinned = kubelet::pin(session, &locked, wanted, &tables)?;
        locked.lock.images = images;
        locked.lock.kubelet = Some(pinned.kubelet);
        locked.lock.components = pinned.components;
    }
    if let Some(known) = &known {
        warn_of_older_sources(known, &locked.lock, &session.progress);
    }
    let size = file::write(&path, &locked.lock)?;
    step.made(Some(size));
    Ok(locked)
}

/// Hash of everything in the recipe that the lock depends on.
fn digest(request: &LockRequest) -> Result<String> {
    let key = Key::of("lock", VERSION).value("request", request)?;
    Ok(key.finish().to_string())
}

/// Chooses other sets than the recipe's from the current archive; no file is read or written. For programs that
/// only tests need.
///
/// # Errors
/// The same as [`pin`].
pub fn resolve(session: &Session, recipe: &Recipe, sets: &[SetRequest]) -> Result<LockedRecipe> {
    let step = session.progress.step("choose packages");
    let request = LockRequest {
        sets: sets.to_vec(),
        ..recipe.lock_request()
    };
    let lock = make(session, &recipe.debian, &request, &step, String::new())?;
    step.made(None);
    Ok(LockedRecipe {
        recipe: recipe.clone(),
        lock,
    })
}

/// Chooses the packages. Only the mirrors of `debian` are used: they do not affect the choice.
fn make(
    session: &Session,
    debian: &Debian,
    request: &LockRequest,
    step: &Step,
    recipe_digest: String,
) -> Result<Lock> {
    let mirrors = Mirrors::find(
        debian.mirror.as_deref(),
        debian.security_mirror.as_deref(),
        &Host::here(),
    )?;
    let sets = &request.sets;
    let with_backports = sets.iter().any(|set| !set.backports.is_empty());
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .context("this machine's clock is before 1970")?;
    let architecture = request.architecture.debian();
    let source = Request {
        mirrors: &mirrors,
        suites: &suites(&request.suite, with_backports),
        components: &request.components,
        architecture,
        keyring: &Keyring::debian()?,
        now: now.as_secs(),
    };
    step.note("reading the archive's indexes");
    let archive = Archive::read(&source, &session.cache, step)?;
    let pool = archive.pool()?;
    step.note("choosing packages");
    let mut lock = Lock {
        version: VERSION,
        recipe_digest,
        epoch: 0,
        sources: Vec::new(),
        sets: choose(&archive, &pool, architecture, sets)?,
        kubelet: None,
        components: BTreeMap::new(),
        images: BTreeMap::new(),
    };
    for (suite, release) in &archive.suites {
        lock.epoch = lock.epoch.max(release.date);
        lock.sources.push(LockedSource {
            archive: suite.archive.to_owned(),
            suite: suite.name.clone(),
            date: release.date,
        });
    }
    Ok(lock)
}

/// Solves every set; the mistakes of all of them are reported at once.
fn choose(
    archive: &Archive,
    pool: &Pool<'_>,
    architecture: &str,
    sets: &[SetRequest],
) -> Result<BTreeMap<String, Vec<LockedPackage>>> {
    let mut chosen = BTreeMap::new();
    let mut mistakes = Vec::new();
    for set in sets {
        let requirements = Requirements {
            packages: &set.packages,
            backports: &set.backports,
            essential: set.essential,
            dependencies: set.dependencies,
        };
        match solve::solve(pool, architecture, &requirements) {
            Ok(ids) => {
                let packages = ids.iter().map(|&id| locked(archive, pool, id)).collect();
                chosen.insert(set.name.to_owned(), packages);
            }
            Err(mistake) => mistakes.push(format!("set {}:\n{mistake}", set.name)),
        }
    }
    if !mistakes.is_empty() {
        bail!("choosing packages\n{}", mistakes.join("\n"));
    }
    Ok(chosen)
}

fn locked(archive: &Archive, pool: &Pool<'_>, id: usize) -> LockedPackage {
    let package = &pool.packages[id];
    LockedPackage {
        name: package.name.to_owned(),
        version: package.version.to_owned(),
        architecture: package.architecture.to_owned(),
        archive: archive.suites[package.origin].0.archive.to_owned(),
        path: package.path.to_owned(),
        size: package.size,
        sha256: package.sha256.to_owned(),
    }
}

/// Warns if the mirror is behind that of the last lock: this is not an error, but it downgrades packages.
fn warn_of_older_sources(known: &Lock, new: &Lock, progress: &Progress) {
    for source in &new.sources {
        let older = known.sources.iter().find(|known| {
            known.archive == source.archive
                && known.suite == source.suite
                && known.date > source.date
        });
        if let Some(known) = older {
            progress.say(&format!(
                "note: this mirror's {} is of {}, the last lock's was of {}",
                source.suite,
                rfc3339(source.date),
                rfc3339(known.date)
            ));
        }
    }
}
