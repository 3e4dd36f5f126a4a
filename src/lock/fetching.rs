//! Fetches the packages of a set in parallel, each by its digest, into the cache.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail};
use fetch::{Digest, Failure};

use super::file::Lock;
use crate::debian::Mirrors;
use crate::debian::files::{self, Files, SCHEME};
use crate::debian::mirror::{DEBS, Host, SNAPSHOT, is_debians, server};
use crate::debian::pinned::{Deb, LockedPackage};
use crate::format::time::rfc3339;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::recipe::Recipe;
use crate::store::{Haste, Store};

/// Parallel downloads. Mirrors allow this many, and more are not faster.
const AT_ONCE: usize = 8;
/// How often a server may be unreachable before it is asked for no more packages: each time takes up to minutes.
const UNREACHABLE: usize = 3;

/// A recipe with its lock.
#[derive(Clone, Debug)]
pub struct LockedRecipe {
    /// The checked recipe.
    pub recipe: Recipe,
    /// Its pinned inputs.
    pub lock: Lock,
}

impl LockedRecipe {
    /// The address of the lock's own store, if `slipway lock --vendor` made one.
    pub(super) fn vendor(&self) -> Option<String> {
        vendor(&self.recipe, &self.lock)
    }

    /// The packages of a set for steps, which call [`Session::do_deferred`] before they read one: with results of other machines a
    /// package is fetched only if a step is made here.
    ///
    /// # Errors
    /// As [`LockedRecipe::fetch`].
    pub fn packages(&self, session: &Session, set: &str) -> Result<Vec<Deb>> {
        if session.cache.shared().is_none() {
            return self.fetch(session, set);
        }
        let (locked, name) = (self.clone(), set.to_owned());
        session.defer(move |session| locked.fetch(session, &name).map(drop));
        debs(session, &self.lock, set)
    }

    /// The packages of a set as files; those that are not in the cache are fetched.
    ///
    /// # Errors
    /// If the lock has no such set, or a package is available neither from the mirror nor from the snapshots, or its
    /// digest differs from the lock; the error names all such packages.
    pub fn fetch(&self, session: &Session, set: &str) -> Result<Vec<Deb>> {
        let debian = &self.recipe.debian;
        let mirrors = || {
            let found = Mirrors::find(
                debian.mirror.as_deref(),
                debian.security_mirror.as_deref(),
                &Host::here(),
            )?;
            let debs = debian.debs.iter();
            Ok(Mirrors {
                debs: debs
                    .map(|deb| Ok((deb.sha256.clone(), deb.url()?)))
                    .collect::<Result<_>>()?,
                ..found.with(&debian.archives)
            })
        };
        let vendor = self.vendor();
        let from = (debian.snapshots.as_slice(), vendor.as_deref());
        fetch_from(session, mirrors, from, &self.lock, set).with_context(|| {
            format!(
                "fetching packages of the lock {}",
                self.recipe.lock_path().display()
            )
        })
    }
}

/// The address of the own store of a recipe's lock.
pub(super) fn vendor(recipe: &Recipe, lock: &Lock) -> Option<String> {
    let vendor = lock.vendor.as_ref()?;
    if vendor.contains("://") {
        return Some(vendor.trim_end_matches('/').to_owned());
    }
    let folder = std::path::absolute(recipe.folder().join(vendor)).ok()?;
    Some(format!("{SCHEME}{}", folder.display()))
}

/// The packages of a set with their paths in the cache, there or not.
fn debs(session: &Session, lock: &Lock, set: &str) -> Result<Vec<Deb>> {
    let packages = lock.sets.get(set);
    let packages = packages.with_context(|| format!("the lock has no set {set}"))?;
    let deb = |package: &LockedPackage| Deb {
        package: package.clone(),
        path: session.cache.object(&package.sha256),
    };
    Ok(packages.iter().map(deb).collect())
}

/// [`LockedRecipe::fetch`] from these mirrors and snapshots, and before them from the store `vendor`; `mirrors` is called only if a package must be fetched.
fn fetch_from(
    session: &Session,
    mirrors: impl FnOnce() -> Result<Mirrors>,
    (snapshots, vendor): (&[String], Option<&str>),
    lock: &Lock,
    set: &str,
) -> Result<Vec<Deb>> {
    let debs = debs(session, lock, set)?;
    let all: Vec<&str> = debs.iter().map(|deb| deb.package.sha256.as_str()).collect();
    let step = session
        .progress
        .step_once(&format!("fetch {set}"), &all.join(" "));
    // A file gets this name only after its digest was verified.
    let missing: Vec<&Deb> = debs
        .iter()
        .filter(|deb| {
            std::fs::metadata(&deb.path).map_or(true, |found| found.len() != deb.package.size)
        })
        .collect();
    for deb in &debs {
        session.cache.use_object(&deb.package.sha256);
    }
    let size = debs.iter().map(|deb| deb.package.size).sum();
    if missing.is_empty() {
        step.hit(Some(size));
        return Ok(debs);
    }
    step.total(missing.iter().map(|deb| deb.package.size).sum());
    let found = match (mirrors(), vendor) {
        (Ok(mirrors), _) => Some(mirrors),
        // A host without any mirror has what the folder has.
        (Err(_), Some(_)) => None,
        (Err(error), None) => return Err(error),
    };
    let mut places = match &found {
        Some(mirrors) => Places::new(mirrors, snapshots, lock)?,
        None => Places::default(),
    };
    places.vendor = vendor.map(str::to_owned);
    places.options = session.fetch_options();
    fetch_all(&missing, &places, &step)?;
    step.made(Some(size));
    Ok(debs)
}

/// Those of these packages that can be had, as files, and for each other one why not. Of an archive that is not known any more is none.
///
/// # Errors
/// If servers or the store `vendor` cannot be asked at all.
pub(super) fn try_to_fetch(
    session: &Session,
    mirrors: &Mirrors,
    (snapshots, vendor): (&[String], Option<&str>),
    lock: &Lock,
    packages: &[LockedPackage],
    step: &Step,
) -> Result<(Vec<Deb>, Vec<String>)> {
    let mut places = Places::of_known(mirrors, snapshots, lock);
    places.vendor = vendor.map(str::to_owned);
    places.options = session.fetch_options();
    let files = Files::new(&places.options)?;
    let mut store = places.open_vendor()?;
    let (mut debs, mut failures) = (Vec::new(), Vec::new());
    for package in packages {
        let deb = Deb {
            package: package.clone(),
            path: session.cache.object(&package.sha256),
        };
        let there = std::fs::metadata(&deb.path).is_ok_and(|found| found.len() == package.size);
        let fetched = match there {
            true => Ok(()),
            false => fetch_one((&files, store.as_mut()), &deb, &places, step),
        };
        match fetched {
            Ok(()) => debs.push(deb),
            Err(failure) => {
                failures.push(format!("{} {}: {failure}", package.name, package.version))
            }
        }
    }
    Ok((debs, failures))
}

/// Base URLs by archive, in the order of the attempts.
#[derive(Default)]
struct Places {
    /// The store of files by their hashes, which is asked first.
    vendor: Option<String>,
    /// How servers are asked.
    options: fetch::Options,
    by_archive: BTreeMap<String, Vec<String>>,
    /// URLs of packages of no archive, by SHA-256.
    debs: BTreeMap<String, String>,
    /// How often servers were unreachable, by scheme, host and port, and why the last time.
    away: Mutex<BTreeMap<String, (usize, String)>>,
}

impl Places {
    /// Asks the server of a URL for a package, unless it was unreachable too often: that is its answer then.
    fn ask(&self, url: &str, request: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let away = || self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let at = server(url);
        let known = away().get(at).cloned();
        if let Some((_, why)) = known.filter(|(times, _)| *times >= UNREACHABLE) {
            return Err(Failure::Unreachable {
                url: fetch::shown(url),
                attempts: 1,
                why,
            });
        }
        let answer = request();
        if let Err(Failure::Unreachable { why, .. }) = &answer {
            let mut away = away();
            let (times, last) = away.entry(at.to_owned()).or_default();
            *times += 1;
            last.clone_from(why);
        }
        answer
    }

    /// [`Places::of_known`], where all archives of the lock have to be known.
    fn new(mirrors: &Mirrors, snapshots: &[String], lock: &Lock) -> Result<Self> {
        for source in &lock.sources {
            mirrors
                .archive(&source.archive)
                .with_context(|| format!("the lock names an unknown archive {}", source.archive))?;
        }
        Ok(Self::of_known(mirrors, snapshots, lock))
    }

    /// Those of the lock's archives that the mirrors know. A snapshot's base may contain `{archive}` and `{time}` (as
    /// `20261120T021110Z`); both come from the lock.
    fn of_known(mirrors: &Mirrors, snapshots: &[String], lock: &Lock) -> Self {
        let mut by_archive = BTreeMap::new();
        for source in &lock.sources {
            let Some((base, _)) = mirrors.archive(&source.archive) else {
                continue;
            };
            let bases: &mut Vec<String> = by_archive
                .entry(source.archive.clone())
                .or_insert_with(|| vec![base.to_owned()]);
            // Debian's snapshots have nothing of other archives, unless their URL says so.
            let has = |base: &&String| {
                is_debians(&source.archive) || (*base != SNAPSHOT && base.contains("{archive}"))
            };
            let snapshots: Vec<&String> = snapshots.iter().filter(has).collect();
            let times = std::iter::once(&lock.epoch).chain(&lock.earlier);
            let each = times.flat_map(|time| snapshots.iter().map(move |base| (time, *base)));
            for (time, snapshot) in each {
                let snapshot = match snapshot.as_str() {
                    SNAPSHOT => &mirrors.snapshot,
                    _ => snapshot,
                };
                let time = rfc3339(*time).replace(['-', ':'], "");
                let base = snapshot
                    .trim_end_matches('/')
                    .replace("{archive}", &source.archive)
                    .replace("{time}", &time);
                if !bases.contains(&base) {
                    bases.push(base);
                }
            }
        }
        Self {
            by_archive,
            debs: mirrors.debs.clone(),
            ..Self::default()
        }
    }

    /// The lock's own store, if it has one.
    fn open_vendor(&self) -> Result<Option<Store>> {
        let open = |url: &String| Store::open(url, &self.options, Haste::Patient);
        self.vendor.as_ref().map(open).transpose()
    }

    fn urls(&self, package: &LockedPackage) -> Vec<String> {
        if package.archive == DEBS {
            return self
                .debs
                .get(&package.sha256)
                .cloned()
                .into_iter()
                .collect();
        }
        self.by_archive
            .get(&package.archive)
            .into_iter()
            .flatten()
            .map(|base| format!("{base}/{}", package.path))
            .collect()
    }
}

fn fetch_all(missing: &[&Deb], places: &Places, step: &Step) -> Result<()> {
    let next = AtomicUsize::new(0);
    let broken = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    // The largest first, so that no thread starts with one when the others are done.
    let mut order: Vec<&Deb> = missing.to_vec();
    order.sort_by_key(|deb| std::cmp::Reverse(deb.package.size));
    let work = || -> Result<()> {
        let files = Files::new(&places.options)?;
        let mut vendor = places.open_vendor()?;
        while let Some(deb) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if broken.load(Ordering::Relaxed) {
                break;
            }
            if let Err(failure) = fetch_one((&files, vendor.as_mut()), deb, places, step) {
                // A missing package does not affect the others; a mirror that does not answer does.
                broken.fetch_or(
                    matches!(failure, Failure::Unreachable { .. } | Failure::Disk { .. }),
                    Ordering::Relaxed,
                );
                let described = describe(&deb.package, &failure);
                failures
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(described);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE.min(order.len()))
            .map(|_| scope.spawn(work))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(())
}

fn describe(package: &LockedPackage, failure: &Failure) -> String {
    let remedy = match files::is_gone(failure) {
        false => String::new(),
        true if package.archive == DEBS => {
            "; `debs` of the recipe's [debian] says that it is there".to_owned()
        }
        true if is_debians(&package.archive) => {
            "; the mirror does not have this version any more: `slipway lock --renew` takes the present one, or name a \
             snapshot archive in `snapshots` of the recipe's [debian]"
                .to_owned()
        }
        true => format!(
            "; archive {} does not have this version any more: `slipway lock --renew={}` takes the present one",
            package.archive, package.name
        ),
    };
    format!("{} {}: {failure}{remedy}", package.name, package.version)
}

/// Tries the URLs in order. Returns the error of the first one that may have the file, else of the first one, unless the disk fails or the
/// lock's own store is damaged.
fn fetch_one(
    (files, vendor): (&Files, Option<&mut Store>),
    deb: &Deb,
    places: &Places,
    step: &Step,
) -> Result<(), Failure> {
    let disk = |source| Failure::Disk {
        path: deb.path.clone(),
        source,
    };
    if let Some(folder) = deb.path.parent() {
        std::fs::create_dir_all(folder).map_err(disk)?;
    }
    let mut first = None;
    let package = &deb.package;
    if let Some(digest) = Digest::sha256(&package.sha256) {
        let fetch = |url: &str| {
            let wanted = (url, package.size, digest);
            files.file(wanted, &deb.path, &|bytes| step.advance(bytes))
        };
        if let Some(vendor) = vendor {
            let on_bytes = |bytes| step.advance(bytes);
            let at = places.vendor.as_deref().unwrap_or_default();
            let got = places.ask(at, || {
                vendor.get(&package.sha256, package.size, &deb.path, &on_bytes)
            });
            match got {
                Ok(()) => return Ok(()),
                Err(failure) if files::is_elsewhere(&failure) => {}
                // Other bytes in the user's own store are for the user to see.
                Err(failure) => return Err(failure),
            }
        }
        for url in places.urls(package) {
            match places.ask(&url, || fetch(&url)) {
                Ok(()) => return Ok(()),
                Err(failure @ Failure::Disk { .. }) => return Err(failure),
                // A server that does not have the file says less than one that does not answer.
                Err(failure) => match &first {
                    Some(known) if !files::is_gone(known) || files::is_gone(&failure) => {}
                    _ => first = Some(failure),
                },
            }
        }
    }
    Err(first.unwrap_or_else(|| Failure::Address {
        url: deb.package.path.clone(),
        why: format!(
            "the lock has no source {} with a usable digest",
            deb.package.archive
        ),
    }))
}

#[cfg(test)]
mod tests;
