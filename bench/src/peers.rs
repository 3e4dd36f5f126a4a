//! The peers' tree: mkosi, dracut and what they call, locked, fetched and configured by our own machinery and unpacked
//! once into the cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::debian::pinned::Deb;
use slipway::host::cache::{Cache, Key};
use slipway::host::progress::Progress;
use slipway::host::sandbox::Sandbox;
use slipway::install::{self, Purpose};
use slipway::lock::{self, Mode};
use slipway::recipe::{self, Recipe, SET_ROOT};

/// The recipe, beside this package's manifest.
const RECIPE: &str = "peers.toml";
/// Where the peers find the benchmark's folder.
pub(crate) const WORK: &str = "/work";

/// Packages of a recipe beside this package's manifest.
#[derive(Debug)]
pub(crate) struct Locked {
    /// The recipe.
    pub(crate) recipe: Recipe,
    /// The newest date in the lock's sources, seconds since 1970.
    pub(crate) epoch: u64,
    /// The packages of its root, as files.
    pub(crate) debs: Vec<Deb>,
}

/// Locks the recipe, as far as it is not, in `folder`, and fetches the packages of its root.
///
/// # Errors
/// If a package cannot be had.
pub(crate) fn fetch(
    recipe: &str,
    cache: &Cache,
    folder: &Path,
    progress: &Progress,
) -> Result<Locked> {
    let path = folder.join(recipe);
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe), &path)
        .with_context(|| format!("copying {recipe}"))?;
    let recipe = recipe::load(&path)?;
    let lock = lock::pin(&recipe, cache, progress, Mode::Make)?;
    let debs = lock::fetch_set(&recipe, cache, &lock, SET_ROOT, progress)?;
    Ok(Locked {
        recipe,
        epoch: lock.epoch,
        debs,
    })
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Peers {
    root: PathBuf,
    epoch: u64,
}

impl Peers {
    /// Installs the tree, or takes the one that the cache has. The lock is made in `folder`.
    ///
    /// # Errors
    /// If a package cannot be had or configured.
    pub(crate) fn open(cache: &Cache, folder: &Path, progress: &Progress) -> Result<Self> {
        let locked = fetch(RECIPE, cache, folder, progress)?;
        let options = install::Options {
            purpose: Purpose::Container,
            epoch: locked.epoch,
            package_manager: locked.recipe.debian.package_manager,
            ..install::Options::default()
        };
        let rootfs = install::install(cache, &locked.debs, &options, progress)?;
        let key = Key::of("peers", 1).key("rootfs", &rootfs.key).finish();
        let step = progress.step("unpack peers");
        let made = cache.step("peers", &key, |folder| {
            let mut archive = tar::Archive::new(File::open(&rootfs.tar)?);
            archive.set_preserve_permissions(true);
            archive.set_preserve_ownerships(true);
            let tree = folder.join("tree");
            archive.unpack(&tree).context("unpacking the peers' tree")?;
            // Mount points of what a sandbox binds into a tree that it cannot write to.
            fs::write(tree.join("etc/resolv.conf"), "")?;
            Ok(fs::create_dir_all(tree.join("var/tmp"))?)
        })?;
        step.made(None);
        Ok(Self {
            root: made.path.join("tree"),
            epoch: locked.epoch,
        })
    }

    /// A sandbox whose root is the tree, read-only, with a folder of the host as [`WORK`] and as `/var/tmp`, which it
    /// may write to.
    ///
    /// # Errors
    /// If the folder for `/var/tmp` cannot be made.
    pub(crate) fn sandbox(&self, work: &Path) -> Result<Sandbox> {
        let temporary = work.join("tmp");
        fs::create_dir_all(&temporary)?;
        Ok(Sandbox::read_only(&self.root)
            .epoch(self.epoch)
            .env("HOME", WORK)
            .bind(work, WORK)
            .bind(&temporary, "/var/tmp"))
    }
}
