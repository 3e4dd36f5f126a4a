//! The userland: one tree of Debian packages, as a layer of the test images and as the root of the sandbox of the tests.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use slipway::host::sandbox::Sandbox;
use slipway::host::session::Session;
use slipway::install::Rootfs;

use crate::packages::Packages;

/// The recipe, beside this package's manifest.
const RECIPE: &str = "images.toml";
/// Its static multi-call program.
pub const BUSYBOX: &str = "/usr/bin/busybox";
/// Folders of programs; with a merged `/usr` the others are links to them.
const PROGRAMS: [&str; 2] = ["/usr/bin/", "/usr/sbin/"];

/// The installed userland.
#[derive(Debug)]
pub struct Userland {
    /// The names by which busybox acts.
    pub applets: Vec<String>,
    packages: Packages,
}

impl Userland {
    /// Locks and installs the packages, unless the cache has them. The lock is written to `folder`.
    ///
    /// # Errors
    /// If a package cannot be fetched or configured.
    pub fn obtain(session: &Session, folder: &Path) -> Result<Self> {
        let packages = Packages::obtain(session, folder, RECIPE)?;
        let applets = applets(&packages.sandbox())?;
        Ok(Self { packages, applets })
    }

    /// A sandbox whose root is the userland, read-only.
    #[must_use]
    pub fn sandbox(&self) -> Sandbox {
        self.packages.sandbox()
    }

    /// The packages as a tar stream with its index.
    #[must_use]
    pub fn rootfs(&self) -> &Rootfs {
        &self.packages.rootfs
    }

    /// Time of every file that is made beside them, seconds since 1970.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.packages.epoch
    }

    /// The applets of busybox that no package of the userland has as a program.
    pub fn missing(&self) -> impl Iterator<Item = &String> {
        let there: BTreeSet<&str> = (self.rootfs().entries().iter())
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
