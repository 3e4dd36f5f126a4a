//! The peers' tree: mkosi, dracut and the programs they call, locked, fetched and configured by Slipway and unpacked once
//! into the cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::debian::pinned::Deb;
use slipway::host::cache::Key;
use slipway::host::sandbox::Sandbox;
use slipway::host::session::Session;
use slipway::install::{self, Purpose};
use slipway::lock::{self, LockedRecipe, Mode};
use slipway::recipe::{self, SET_ROOT};

/// The recipe, beside this package's manifest.
const RECIPE: &str = "peers.toml";
/// Path of the benchmark's folder in the peers' sandbox.
pub(crate) const WORK: &str = "/work";

/// Locks the recipe in `folder`, unless it is locked there, and fetches the packages of its root.
pub(crate) fn fetch(
    session: &Session,
    recipe: &str,
    folder: &Path,
) -> Result<(LockedRecipe, Vec<Deb>)> {
    let path = folder.join(recipe);
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe), &path)
        .with_context(|| format!("copying {recipe}"))?;
    let recipe = recipe::load(&path)?;
    let locked = lock::pin(session, recipe, Mode::Make)?;
    let debs = locked.fetch(session, SET_ROOT)?;
    Ok((locked, debs))
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Peers {
    root: PathBuf,
    epoch: u64,
}

impl Peers {
    /// Installs the tree, unless it is in the cache. The lock is written to `folder`.
    pub(crate) fn open(session: &Session, folder: &Path) -> Result<Self> {
        let (locked, debs) = fetch(session, RECIPE, folder)?;
        let options = install::Options {
            purpose: Purpose::Container,
            epoch: locked.lock.epoch,
            package_manager: locked.recipe.debian.package_manager,
            ..install::Options::default()
        };
        let rootfs = install::install(session, "rootfs", &debs, &options)?;
        let key = Key::of_data("peers", 1).key("rootfs", &rootfs.key).finish();
        let step = session.progress.step("unpack peers");
        let made = session.cache.step("peers", &key, |folder| {
            let mut archive = tar::Archive::new(File::open(&rootfs.tar)?);
            archive.set_preserve_permissions(true);
            archive.set_preserve_ownerships(true);
            let tree = folder.join("tree");
            archive.unpack(&tree).context("unpacking the peers' tree")?;
            // Mount points of the sandbox's binds: a read-only tree must have them.
            fs::write(tree.join("etc/resolv.conf"), "")?;
            Ok(fs::create_dir_all(tree.join("var/tmp"))?)
        })?;
        step.made(None);
        Ok(Self {
            root: made.path.join("tree"),
            epoch: locked.lock.epoch,
        })
    }

    /// A sandbox whose root is the tree, read-only, with a folder of the host as [`WORK`] and as `/var/tmp`, both
    /// writable.
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
