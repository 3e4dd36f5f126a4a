//! The userland: one tree of Debian packages, as a layer of the test images and as the root of the sandbox of the tests.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::host::cache::Key;
use slipway::host::sandbox::Sandbox;
use slipway::host::session::Session;
use slipway::install::{self, Options, Purpose, Rootfs};
use slipway::lock::{self, Mode};
use slipway::recipe::{self, SET_ROOT};

/// The recipe, beside this package's manifest.
const RECIPE: &str = "images.toml";
/// Its static multi-call program.
pub const BUSYBOX: &str = "/usr/bin/busybox";
/// The names of the sandbox's host.
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";
/// Folders of programs; with a merged `/usr` the others are links to them.
const PROGRAMS: [&str; 2] = ["/usr/bin/", "/usr/sbin/"];

/// The installed userland.
#[derive(Debug)]
pub struct Userland {
    /// The packages as a tar stream with its index.
    pub rootfs: Rootfs,
    /// Time of every file that is made beside them, seconds since 1970.
    pub epoch: u64,
    /// The names by which busybox acts.
    pub applets: Vec<String>,
    tree: PathBuf,
}

impl Userland {
    /// Locks and installs the packages, unless the cache has them. The lock is written to `folder`.
    ///
    /// # Errors
    /// If a package cannot be fetched or configured.
    pub fn obtain(session: &Session, folder: &Path) -> Result<Self> {
        let path = folder.join(RECIPE);
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(RECIPE), &path)
            .with_context(|| format!("copying {RECIPE}"))?;
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
        let tree = made.path.join("tree");
        let applets = applets(&Sandbox::read_only(&tree))?;
        Ok(Self {
            rootfs,
            epoch,
            applets,
            tree,
        })
    }

    /// A sandbox whose root is the userland, read-only.
    #[must_use]
    pub fn sandbox(&self) -> Sandbox {
        Sandbox::read_only(&self.tree).epoch(self.epoch)
    }

    /// The applets of busybox that no package of the userland has as a program.
    pub fn missing(&self) -> impl Iterator<Item = &String> {
        let there: BTreeSet<&str> = (self.rootfs.entries().iter())
            .filter_map(|entry| {
                PROGRAMS
                    .iter()
                    .find_map(|folder| entry.path.strip_prefix(folder))
            })
            .collect();
        let applets = self.applets.iter();
        applets.filter(move |applet| !there.contains(applet.as_str()))
    }
}

fn applets(sandbox: &Sandbox) -> Result<Vec<String>> {
    let list = sandbox.command(BUSYBOX).arg("--list").run()?;
    let list = String::from_utf8(list).context("reading busybox's list")?;
    Ok(list.lines().map(str::to_owned).collect())
}
