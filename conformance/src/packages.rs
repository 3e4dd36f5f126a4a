//! Debian packages that are installed by Slipway itself, as the root of a sandbox.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::host::cache::Key;
use slipway::host::sandbox::Sandbox;
use slipway::host::session::Session;
use slipway::install::{self, Options, Purpose, Rootfs};
use slipway::lock::{self, Mode};
use slipway::recipe::{self, SET_ROOT};

/// The names of the sandbox's host.
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";

/// An installed tree of packages.
#[derive(Debug)]
pub struct Packages {
    /// The packages as a tar stream with its index.
    pub rootfs: Rootfs,
    /// The time of their lock, seconds since 1970.
    pub epoch: u64,
    tree: PathBuf,
}

impl Packages {
    /// Locks and installs the packages of a recipe that is beside this package's manifest, unless the cache has them. Its lock is
    /// written to `folder`.
    ///
    /// # Errors
    /// If a package cannot be fetched or configured.
    pub fn obtain(session: &Session, folder: &Path, recipe: &str) -> Result<Self> {
        let path = folder.join(recipe);
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe), &path)
            .with_context(|| format!("copying {recipe}"))?;
        let locked = lock::pin(session, recipe::load(&path)?, Mode::Make)?;
        let debs = locked.fetch(session, SET_ROOT)?;
        let epoch = locked.lock.epoch;
        let options = Options {
            purpose: Purpose::Container,
            epoch,
            ..Options::default()
        };
        let rootfs = install::install(session, "userland", &debs, &options)?;
        let key = Key::of_data("userland", 2)
            .key("rootfs", &rootfs.key)
            .finish();
        let made = session.cache.step("userland", &key, |folder| {
            let mut archive = tar::Archive::new(File::open(&rootfs.tar)?);
            archive.set_preserve_permissions(true);
            archive.set_preserve_ownerships(true);
            let tree = folder.join("tree");
            archive.unpack(&tree).context("unpacking the userland")?;
            // Specs ask servers of their own by this name.
            fs::write(tree.join("etc/hosts"), HOSTS)?;
            // The mount point of the sandbox's resolver: a read-only tree must have it.
            Ok(fs::write(tree.join("etc/resolv.conf"), "")?)
        })?;
        Ok(Self {
            rootfs,
            epoch,
            tree: made.path.join("tree"),
        })
    }

    /// A sandbox whose root is the packages, read-only.
    #[must_use]
    pub fn sandbox(&self) -> Sandbox {
        Sandbox::read_only(&self.tree).epoch(self.epoch)
    }
}
