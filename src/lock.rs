//! Lock: every package, download and container image of a recipe, pinned by path, size and digest.

// Floor: the lock file
mod file;

// Floor: packages as files, differences
mod changes;
mod fetching;

// Floor: files by their hashes
pub mod objects;

// Floor: files that no lock pins, since the recipe does
mod downloads;

// Floor: the pins of an earlier lock
mod keep;

// Floor: mistakes that the archive finds
mod refused;

// Floor: the choice of packages
mod choose;
mod debs;

// Floor: programs that are no packages
pub mod kubelet;

// Floor: all files of a lock in a folder
pub mod vendor;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::debian::Mirrors;
use crate::debian::archive::{Archive, Request, SuiteRead, suites};
use crate::debian::mirror::{DEBS, Host, is_debians};
use crate::debian::signature::Keyring;
use crate::format::time::rfc3339;
use crate::host::cache::Key;
use crate::host::progress::{Progress, Step};
use crate::host::session::Session;
use crate::recipe::{LockRequest, Recipe, SET_DKMS, SET_KERNEL, SET_ROOT, SetRequest};

use choose::{Pools, choose};
use keep::Earlier;

pub use changes::{Change, changes};
pub use fetching::LockedRecipe;
pub use file::{Lock, LockedFrom, LockedProgram, LockedSource, VERSION};

/// How many changes of a lock a build says.
const SAID: usize = 20;

/// The treatment of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Make it if there is none, or if the recipe's requirements have changed since: every pin that still fits is kept.
    Make,
    /// Never make it: a missing or outdated lock is an error.
    Locked,
    /// Always make it, and choose everything anew.
    Renew,
}

/// Reads a lock file.
///
/// # Errors
/// If it is not there, or cannot be read.
pub fn read(path: &Path) -> Result<Lock> {
    let lock = file::read(path)?;
    lock.with_context(|| format!("{}: no such file", path.display()))
}

/// The recipe's lock: read, or made from the archive and written.
///
/// # Errors
/// If the archive cannot be read or verified, a requirement cannot be met, or `mode` forbids a necessary change.
pub fn pin(session: &Session, recipe: Recipe, mode: Mode) -> Result<LockedRecipe> {
    let wish = Wish {
        mode,
        renewed: &[],
        older: false,
    };
    pin_as(session, recipe, wish)
}

/// Whether a recipe's lock is there and fits it.
///
/// # Errors
/// If it cannot be read.
pub fn is_current(recipe: &Recipe) -> Result<bool> {
    let wanted = Digests::of(&recipe.lock_request())?;
    let known = file::read(&recipe.lock_path())?;
    // The tools of another version of Slipway are chosen for a build alone.
    Ok(known.is_some_and(|known| known.recipe_digest == wanted.recipe))
}

/// How a lock is made.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Its treatment.
    pub mode: Mode,
    /// Under [`Mode::Renew`] the only packages that are chosen anew, `kubelet` for the programs of its release; all of them if it is
    /// empty.
    pub renewed: &'a [String],
    /// Whether a mirror may be behind that of the last lock.
    pub older: bool,
}

/// [`pin`], as wished.
///
/// # Errors
/// As [`pin`], and if the lock does not have a package that is to be renewed.
pub fn pin_as(session: &Session, recipe: Recipe, wish: Wish<'_>) -> Result<LockedRecipe> {
    pin_signed(session, recipe, wish, &Keyring::debian()?)
}

/// For each of these recipes the packages of `renewed` that its lock has. A recipe without a lock has none: all of its pins are new.
///
/// # Errors
/// Names those that none of the locks has, and a lock that cannot be read.
pub fn renewals(recipes: &[Recipe], renewed: &[String]) -> Result<Vec<Vec<String>>> {
    if renewed.is_empty() {
        return Ok(vec![Vec::new(); recipes.len()]);
    }
    let paths: Vec<PathBuf> = recipes.iter().map(Recipe::lock_path).collect();
    let locks = paths.iter().map(|path| file::read(path));
    let locks: Vec<Option<Lock>> = locks.collect::<Result<_>>()?;
    let known: Vec<BTreeSet<&str>> = locks
        .iter()
        .map(|lock| lock.as_ref().map(keep::names).unwrap_or_default())
        .collect();
    if locks.iter().any(Option::is_some) {
        let all: BTreeSet<&str> = known.iter().flatten().copied().collect();
        if let Some(unknown) = keep::unknown(&all, renewed) {
            let paths: Vec<String> = paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            bail!("{}: the lock has no package {unknown}", paths.join(", "));
        }
    }
    let of_one = |known: &BTreeSet<&str>| -> Vec<String> {
        let names = renewed.iter().filter(|name| known.contains(name.as_str()));
        names.cloned().collect()
    };
    Ok(known.iter().map(of_one).collect())
}

/// [`pin_as`], with these keys for Debian's own suites.
fn pin_signed(
    session: &Session,
    recipe: Recipe,
    wish: Wish<'_>,
    keyring: &Keyring,
) -> Result<LockedRecipe> {
    let Wish { mode, renewed, .. } = wish;
    let path = recipe.lock_path();
    let request = recipe.lock_request();
    let digests = Digests::of(&request)?;
    let known = earlier_lock(&path, wish, &session.progress)?;
    let step = session.progress.step("lock");
    match (&known, mode) {
        (Some(known), Mode::Make | Mode::Locked) if Digests::from(known) == digests => {
            let lock = known.clone();
            step.hit(None);
            return Ok(LockedRecipe { recipe, lock });
        }
        (Some(known), Mode::Locked) if known.recipe_digest == digests.recipe => {
            let lock = with_own_tools(session, &recipe, &request, known, (&step, keyring))?;
            step.made(None);
            return Ok(LockedRecipe { recipe, lock });
        }
        (_, Mode::Locked) => return Err(no_lock(&recipe, known.is_some())),
        _ => {}
    }
    let wanted = request.kubelet.as_ref();
    let wanted = wanted.map(|wanted| {
        let tables = kubelet::tables(&recipe, wanted)?;
        let images = kubelet::images(&recipe, &tables, &wanted.version, &request.images)?;
        anyhow::Ok((wanted, tables, images))
    });
    let wanted = wanted.transpose()?;
    let keeps = mode == Mode::Make || !renewed.is_empty();
    let earlier = known.as_ref().filter(|_| keeps);
    let earlier = earlier.map(|lock| Earlier {
        lock,
        renewed,
        request: &request,
    });
    if let Some(earlier) = &earlier {
        earlier
            .check()
            .with_context(|| path.display().to_string())?;
    }
    let through = (&step, keyring);
    let lock = make(session, &recipe, &request, through, digests, earlier)?;
    if let Some(behind) = known.as_ref().and_then(|known| behind(known, &lock)) {
        let path = recipe.path.display();
        ensure!(
            wish.older,
            "{behind}: it would take packages back, or is a replay; use another mirror, or `slipway lock {path} --older`"
        );
        session.progress.warn(&behind);
    }
    let mut locked = LockedRecipe { recipe, lock };
    locked.lock.vendor = known.as_ref().and_then(|known| known.vendor.clone());
    if let Some((wanted, tables, images)) = wanted {
        let kept = earlier.filter(|earlier| !earlier.renews_kubelet());
        let kept = kept.and_then(|earlier| kubelet::kept(earlier.lock, &locked, wanted, &tables));
        // Compiling takes the toolchain from the packages chosen above.
        let (pinned, images) = match kept {
            Some(kept) => {
                let version = kept.kubelet.version.trim_start_matches('v');
                let images = kubelet::images(&locked.recipe, &tables, version, &request.images)?;
                (kept, images)
            }
            None => (kubelet::pin(session, &locked, wanted, &tables)?, images),
        };
        locked.lock.images = images;
        locked.lock.kubelet = Some(pinned.kubelet);
        locked.lock.components = pinned.components;
    }
    if let Some(known) = &known {
        say_changes(known, &locked.lock, &session.progress);
    }
    let size = file::write(&path, known.as_ref(), &mut locked.lock)?;
    step.made(Some(size));
    Ok(locked)
}

/// The lock in the file, if there is one. Where all is chosen anew, one that no program of this version can use is as none; a file that
/// cannot be read now may be a good one.
fn earlier_lock(path: &Path, wish: Wish<'_>, progress: &Progress) -> Result<Option<Lock>> {
    let is_unreadable = |error: &anyhow::Error| {
        let cause = error.root_cause().downcast_ref::<io::Error>();
        // Bytes that are no text are no lock either.
        cause.is_some_and(|cause| cause.kind() != io::ErrorKind::InvalidData)
    };
    if wish.mode != Mode::Renew || !wish.renewed.is_empty() {
        return file::read(path);
    }
    // What its error would tell the user to do is being done.
    match file::read_or(path, "") {
        Err(error) if !is_unreadable(&error) => {
            // The state of the mirror that it was made of is not known then, so that an older one is not refused.
            let why = format!("{error:#}");
            progress.warn(&format!(
                "the lock is replaced, `vendor` in it too: {}",
                why.trim_end()
            ));
            Ok(None)
        }
        read => read,
    }
}

/// Why a build that may not make a lock has none to use.
fn no_lock(recipe: &Recipe, is_there: bool) -> anyhow::Error {
    let (lock, recipe) = (recipe.lock_path(), recipe.path.display());
    let lock = lock.display();
    match is_there {
        true => anyhow!(
            "{lock} is out of date: {recipe} changed since it was locked; `slipway lock {recipe}` makes a new one"
        ),
        false => anyhow!("{lock} is missing; `slipway lock {recipe}` makes it"),
    }
}

/// Says what a new lock has otherwise than the one before: what is changed is what will be built.
fn say_changes(known: &Lock, new: &Lock, progress: &Progress) {
    let all = changes(known, new);
    if all.is_empty() {
        progress.say("lock: no pin changed");
        return;
    }
    let kept = new.sets.values().flatten().count();
    progress.say(&format!("lock: {} of {kept} pins changed", all.len()));
    for change in all.iter().take(SAID) {
        progress.say(&format!("  {change}"));
    }
    if all.len() > SAID {
        progress.say(&format!(
            "  and {} more: `slipway lock --diff OLD` shows all",
            all.len() - SAID
        ));
    }
}

/// A lock of this recipe, and of the tools of another version of Slipway: with this one's tools, for this run. What the image is made
/// of stays, and so does the file.
fn with_own_tools(
    session: &Session,
    recipe: &Recipe,
    request: &LockRequest,
    known: &Lock,
    through: (&Step, &Keyring),
) -> Result<Lock> {
    let mut request = request.clone();
    request.sets.retain(SetRequest::is_tools);
    // Tools come from Debian alone, in any version.
    request.archives.clear();
    request.versions.clear();
    request.debs.clear();
    let mut pinned = known.clone();
    let is_own = |name: &str| request.sets.iter().any(|set| set.name == name);
    pinned.sets.retain(|name, _| is_own(name));
    let earlier = Earlier {
        lock: &pinned,
        renewed: &[],
        request: &request,
    };
    let digests = Digests::from(known);
    let tools = make(session, recipe, &request, through, digests, Some(earlier))?;
    session.progress.warn(
        "the lock's tools are those of another version of Slipway: this one's are chosen for this run; `slipway lock` pins them",
    );
    let mut lock = known.clone();
    lock.sets.extend(tools.sets);
    Ok(lock)
}

/// Hashes of everything that a lock depends on: in the recipe, and in Slipway's lists of its own tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Digests {
    recipe: String,
    tools: String,
}

impl Digests {
    fn of(request: &LockRequest) -> Result<Self> {
        let mut of_recipe = request.clone();
        of_recipe.sets.retain(|set| !set.is_tools());
        let tools: Vec<&SetRequest> = request.sets.iter().filter(|set| set.is_tools()).collect();
        let recipe = Key::of_data("lock", VERSION).value("request", &of_recipe)?;
        let tools = Key::of_data("tools of a lock", VERSION).value("sets", &tools)?;
        Ok(Self {
            recipe: recipe.finish().to_string(),
            tools: tools.finish().to_string(),
        })
    }
}

impl From<&Lock> for Digests {
    fn from(lock: &Lock) -> Self {
        Self {
            recipe: lock.recipe_digest.clone(),
            tools: lock.tools_digest.clone(),
        }
    }
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
    let digests = Digests::default();
    let through = (&step, &Keyring::debian()?);
    let lock = make(session, recipe, &request, through, digests, None)?;
    step.made(None);
    Ok(LockedRecipe {
        recipe: recipe.clone(),
        lock,
    })
}

/// Chooses the packages. Of the recipe only the mirrors and the places of its words are used: they do not affect the choice.
fn make(
    session: &Session,
    recipe: &Recipe,
    request: &LockRequest,
    (step, keyring): (&Step, &Keyring),
    digests: Digests,
    earlier: Option<Earlier<'_>>,
) -> Result<Lock> {
    let debian = &recipe.debian;
    let mirrors = Mirrors::find(
        debian.mirror.as_deref(),
        debian.security_mirror.as_deref(),
        &Host::here(),
    )?
    .with(&request.archives);
    let sets = &request.sets;
    let with_backports = sets.iter().any(|set| !set.backports.is_empty());
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .context("this machine's clock is before 1970")?;
    let source = Request {
        mirrors: &mirrors,
        suites: &suites(&request.suite, with_backports),
        components: &request.components,
        architecture: request.architecture.debian(),
        keyring,
        third_parties: &request.archives,
        versions: &request.versions,
        now: now.as_secs(),
        max_age: debian.max_age,
        options: session.fetch_options(),
    };
    step.note("reading the archive's indexes");
    let mut archive = Archive::read(&source, &session.cache, step)
        .map_err(|error| refused::archive(recipe, error))?;
    let names = debs::add(session, request, &mut archive, step)?;
    let sets = &with_names(sets, names);
    step.note("choosing packages");
    let mut pools = Pools::of(&archive)?;
    if let Some(earlier) = &earlier {
        let gone = earlier.gone(&pools.all);
        if !gone.packages.is_empty() {
            drop(pools);
            let vendor = fetching::vendor(recipe, earlier.lock);
            let places = (&mirrors, (debian.snapshots.as_slice(), vendor.as_deref()));
            keep::add_gone(session, earlier, &gone, places, &mut archive, step)?;
            pools = Pools::of(&archive)?;
        }
        pools.each().for_each(|pool| pool.keep(&earlier.pins()));
    }
    archive.check_names()?;
    let mut lock = Lock {
        version: VERSION,
        recipe_digest: digests.recipe,
        tools_digest: digests.tools,
        sets: choose(recipe, &archive, &mut pools, sets, earlier)?,
        ..Lock::default()
    };
    for SuiteRead { suite, release, .. } in &archive.suites {
        // Snapshots of this time have Debian's packages: those of another archive have their own times.
        if suite.archive == DEBS {
            continue;
        }
        if is_debians(&suite.archive) {
            lock.epoch = lock.epoch.max(release.date);
        }
        lock.sources.push(LockedSource {
            archive: suite.archive.to_owned(),
            suite: suite.name.clone(),
            date: release.date,
        });
    }
    if let Some(Earlier { lock: known, .. }) = earlier {
        if known.sets == lock.sets {
            // Nothing of the newer state was taken, so that all times in the image stay.
            lock.epoch = known.epoch;
            lock.earlier.clone_from(&known.earlier);
            for source in &mut lock.sources {
                source.date = date_in(known, source).unwrap_or(source.date);
            }
        } else if lock.sets.values().flatten().any(|pin| archive.is_gone(pin)) {
            lock.earlier = [known.epoch]
                .into_iter()
                .chain(known.earlier.iter().copied())
                .collect();
            lock.earlier.dedup();
        }
    }
    Ok(lock)
}

/// The sets, with these packages in the root, but for the kernel, its headers, and what DKMS compiles.
fn with_names(sets: &[SetRequest], mut names: BTreeSet<String>) -> Vec<SetRequest> {
    let mut sets = sets.to_vec();
    for set in &sets {
        if [SET_KERNEL, SET_DKMS].contains(&&*set.name) {
            for name in &set.packages {
                names.remove(name);
                if let Some(headers) = choose::headers_of(name) {
                    names.remove(&headers);
                }
            }
        }
    }
    if let Some(root) = sets.iter_mut().find(|set| set.name == SET_ROOT) {
        root.packages.extend(names);
    }
    sets
}

/// The date that a suite had for a lock.
fn date_in(lock: &Lock, source: &LockedSource) -> Option<u64> {
    let mut sources = lock.sources.iter();
    let known =
        sources.find(|known| known.archive == source.archive && known.suite == source.suite)?;
    Some(known.date)
}

/// The first suite that is older than it was for the last lock, in words.
fn behind(known: &Lock, new: &Lock) -> Option<String> {
    new.sources.iter().find_map(|source| {
        let older = date_in(known, source).filter(|date| *date > source.date)?;
        let whose = match is_debians(&source.archive) {
            true => "this mirror".to_owned(),
            false => format!("archive {}", source.archive),
        };
        Some(format!(
            "{whose}'s {} is of {}, the last lock's was of {}",
            source.suite,
            rfc3339(source.date),
            rfc3339(older)
        ))
    })
}

#[cfg(test)]
mod tests;
