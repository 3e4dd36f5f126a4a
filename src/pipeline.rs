//! The build line: one function of named steps, from a recipe to the output folder of its image.

mod space;

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Result;

use crate::artifact;
use crate::host::cache::Absent;
use crate::host::full_disk::{self, Place};
use crate::host::progress::{Outcome, bytes};
use crate::host::session::Session;
use crate::install::tools::{self, Tools};
use crate::lock::objects::Wanted;
use crate::lock::{self, LockedRecipe, Mode};
use crate::publish::image::Image;
use crate::publish::output::Output;
use crate::publish::removed;
use crate::publish::sbom;
use crate::publish::sums::Sums;
use crate::recipe::{self, Choice, SET_TOOLS_BUILD, SET_TOOLS_RUN};
use crate::steps::initramfs::Base;
use crate::steps::{bootable, disk, identity, initramfs, kernel, kubelet, layers, root, rootfs};

/// The name of the last step.
const PUBLISH: &str = "publish";
/// The steps that every build has, in their order.
const LINE: [&str; 7] = [
    "tools",
    "rootfs",
    "kernel",
    "root",
    "initramfs",
    "bootable",
    PUBLISH,
];

/// The parameters of a build.
#[derive(Clone, Debug)]
pub struct Request {
    /// The recipe's file.
    pub recipe: PathBuf,
    /// What of it is built.
    pub choice: Choice,
    /// The parent of the image's folder.
    pub output: PathBuf,
    /// The treatment of the lock.
    pub lock: Mode,
}

/// A finished build.
#[derive(Debug)]
pub struct Built {
    /// The folder `<output>/<name>-<version>`.
    pub out: PathBuf,
    /// The recipe that was built, with its lock.
    pub locked: LockedRecipe,
    /// A line about what the image lacks of its packages.
    pub removed: Option<String>,
}

/// Reads a recipe and its lock, which is made if need be. Several images of one run are all pinned before the first one is built: while it
/// is built, an archive may take away what the others would be pinned to.
///
/// # Errors
/// The recipe's mistakes (as [`recipe::Mistakes`]), or why it has no lock.
pub fn pin(session: &Session, request: &Request) -> Result<LockedRecipe> {
    session.progress.begin_image();
    let pinned = || {
        let recipe = recipe::load_as(&request.recipe, &request.choice)?;
        let locked = lock::pin(session, recipe, request.lock)?;
        locked.check_offline(session, Wanted::Build)?;
        Ok(locked)
    };
    shared(session, pinned())
}

/// Everything of an image that is in the cache.
fn make(session: &Session, locked: LockedRecipe) -> Result<Image> {
    locked.fetch_files(session)?;
    let (rootfs, (tools, kernel)) = side_by_side(
        session,
        || rootfs::install(session, &locked),
        || {
            let debs = locked.packages(session, SET_TOOLS_BUILD)?;
            let tools = tools::install(session, "tools", &debs)?;
            let kernel = kernel::install(session, &locked, &tools)?;
            // A module that the kernel does not have is reported with all other words of the recipe, and packed by none.
            initramfs::prepare(session, &kernel, &Base::of(&locked.recipe)).ok();
            Ok((tools, kernel))
        },
    )?;
    // Not beside them: both keep two processors busy, and a third chain made the build no faster.
    let kubelet = kubelet::install(session, &locked)?;
    rootfs::refuse_unused(&locked.recipe, &rootfs.report, &kubelet.reports)?;
    let identity = identity::describe(&locked, &rootfs, &kernel, &kubelet)?;
    let layers = layers::collect(session, &locked, &identity, &rootfs, &kernel, &kubelet)?;
    let root = root::seal(session, &locked, &rootfs, &layers)?;
    let contents = initramfs::contents(&locked, &identity, &rootfs, &layers);
    let initramfs = initramfs::pack(session, &kernel, &contents)?;
    let options = bootable::options(&locked.recipe, &identity, &root);
    let bootable = bootable::link(session, &tools, &kernel, &initramfs, &options)?;
    let sbom = sbom::list(&locked, &identity, &rootfs.report, &kernel, &kubelet)?;
    Ok(Image {
        locked,
        tools,
        root,
        bootable,
        identity,
        kubelet,
        sbom,
        removed: rootfs.report,
    })
}

/// Builds a recipe. A step with unchanged inputs is taken from the cache.
///
/// # Errors
/// As [`pin()`] and [`build_pinned()`].
pub fn build(session: &Session, request: &Request) -> Result<Built> {
    build_pinned(session, pin(session, request)?, &request.output)
}

/// Builds a recipe with its lock; `parent` is that of the image's folder.
///
/// # Errors
/// The step that failed.
pub fn build_pinned(session: &Session, locked: LockedRecipe, parent: &Path) -> Result<Built> {
    session.progress.begin_image();
    shared(session, line(session, locked, parent))
}

/// Completes what the cache shares with other machines, also once something failed: what was made until then is of use to the next build,
/// on whatever machine.
fn shared<T>(session: &Session, done: Result<T>) -> Result<T> {
    let shared = session.cache.shared();
    if let Some(shared) = shared.filter(|_| !session.interrupt.requested()) {
        shared.finish();
    }
    done
}

/// The line: each step takes the products before it.
fn line(session: &Session, locked: LockedRecipe, parent: &Path) -> Result<Built> {
    space::require(session, &locked, parent)?;
    let image = make(session, locked)?;
    let output = Output::take(parent, &image)?;
    if output.is_current() {
        session.progress.step(PUBLISH).hit(None);
    } else {
        write(session, &image, &output)?;
    }
    session.cache.settle()?;
    bound_cache(session)?;
    Ok(Built {
        out: output.folder,
        removed: removed::line(&image.removed, &image.kubelet.reports),
        locked: image.locked,
    })
}

/// Writes the folder of an image.
fn write(session: &Session, image: &Image, output: &Output) -> Result<()> {
    // Written straight into the folder that is published: a disk has gigabytes, and no other step reads it.
    let unfinished = output.begin(&session.interrupt)?;
    let folder = unfinished.path();
    let written = thread::scope(|scope| {
        // The steps' results go to the disk meanwhile.
        let settled = scope.spawn(|| session.cache.settle());
        let path = folder.join(artifact::DISK);
        let sums = Sums::begin(&path);
        let disk = disk::write(session, &image.parts(), &path, &|end| sums.written(end))?;
        sums.written(disk.size);
        artifact::write_all(session, image.artifacts(), &image.inputs(&disk), folder)?;
        output.publish(session, image, sums)?;
        settled.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    // As long as the unfinished folder is there: its space is free afterwards.
    written.map_err(|error| {
        let places = [Place::output(folder), Place::cache(session.cache.root())];
        full_disk::explain(error, "the image", &places)
    })
}

/// The steps of a build that has not run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Steps {
    /// Their products are in the cache, or in the output folder.
    pub cached: Vec<String>,
    /// They would run.
    pub run: Vec<String>,
    /// They follow those that would run: it depends on their products.
    pub follow: Vec<String>,
}

/// Looks which steps of a build are in the cache: the build itself, with a session that makes and fetches nothing, until a step is
/// absent. `missing` is whether files have to be fetched, which ends it too.
///
/// # Errors
/// As [`build()`], but for what is absent.
pub fn steps(
    session: &Session,
    locked: LockedRecipe,
    parent: &Path,
    missing: bool,
) -> Result<Steps> {
    session.progress.begin_image();
    let published = match make(session, locked) {
        Ok(image) => Some(Output::has(parent, &image)?),
        Err(error) if error.is::<Absent>() || missing => None,
        Err(error) => return Err(error),
    };
    let records = session.progress.of_image();
    let names = |outcome: Outcome| -> Vec<String> {
        let with = records.iter().filter(|record| record.outcome == outcome);
        with.map(|record| record.name.clone()).collect()
    };
    let (mut cached, mut run) = (names(Outcome::Hit), names(Outcome::Failed));
    // Two chains may have looked for it.
    let mut seen = BTreeSet::new();
    run.retain(|name| seen.insert(name.clone()));
    match published {
        Some(true) => cached.push(PUBLISH.to_owned()),
        Some(false) => run.push(PUBLISH.to_owned()),
        None => {}
    }
    let named = |name: &str| cached.iter().chain(&run).any(|known| known == name);
    let follow = LINE.iter().filter(|name| !named(name));
    let follow = follow.map(|name| (*name).to_owned()).collect();
    Ok(Steps {
        cached,
        run,
        follow,
    })
}

/// Keeps the cache below its limit, after all that this build used was used.
fn bound_cache(session: &Session) -> Result<()> {
    let removed = session.cache.bound()?;
    if !removed.is_empty() {
        let size = removed.iter().map(|entry| entry.size).sum();
        let limit = session.cache.limit().0.unwrap_or_default();
        session.progress.say(&format!(
            "removed the longest unused {} of the cache, {} entries: its limit is {}",
            bytes(size),
            removed.len(),
            bytes(limit)
        ));
    }
    Ok(())
}

/// Does two things that take nothing of each other, the second one in a thread. Where no step is made they are done one after the other,
/// so that a list of the steps has one order.
fn side_by_side<A, B: Send>(
    session: &Session,
    one: impl FnOnce() -> Result<A>,
    two: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    if session.cache.is_look_only() {
        // One that is absent does not hide the other.
        let (one, two) = (one(), two());
        return Ok((one?, two?));
    }
    thread::scope(|scope| {
        let two = scope.spawn(two);
        let one = one();
        let two = two.join();
        let two = two.unwrap_or_else(|panic| resume_unwind(panic));
        Ok((one?, two?))
    })
}

/// The tools tree with QEMU, for running a built image.
///
/// # Errors
/// If its packages cannot be fetched or unpacked.
pub fn tools_run(session: &Session, locked: &LockedRecipe) -> Result<Tools> {
    let debs = locked.packages(session, SET_TOOLS_RUN)?;
    tools::install(session, SET_TOOLS_RUN, &debs)
}
