//! Runs maintainer scripts in a sandbox whose root is the tree: `preinst install` before a package is unpacked, and
//! the tree's dpkg for everything after it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::database::{self, FOLDER, UNPACKING};
use super::package::Unpacked;
use super::surroundings::Machine;
use super::target::real_name;
use super::{certificates, shortcuts};
use crate::host::cache;
use crate::host::sandbox::Sandbox;

/// Random files that scripts create and the clean-up removes; a script that finds its file creates none.
const SPARED: &[(&str, &str)] = &[
    ("openssh-server", "etc/ssh/ssh_host_rsa_key"),
    ("openssh-server", "etc/ssh/ssh_host_ecdsa_key"),
    ("openssh-server", "etc/ssh/ssh_host_ed25519_key"),
];

/// The surroundings of maintainer scripts.
#[derive(Debug)]
pub(super) struct Scripts<'a> {
    root: &'a Path,
    machine: &'a Machine,
    sandbox: Sandbox,
}

impl<'a> Scripts<'a> {
    /// Prepares a tree that has its skeleton, and no package yet.
    pub(super) fn prepare(root: &'a Path, epoch: u64, machine: &'a Machine) -> Result<Self> {
        machine.furnish(root)?;
        let sandbox = Sandbox::new(root)
            .hostname(machine.host)
            // What one script leaves there the next one finds, as on the disk of an installation.
            .bind(&root.join("run"), "/run")
            .without_syncs()
            .epoch(epoch)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("DEBCONF_NONINTERACTIVE_SEEN", "true")
            .env("DEBCONF_NOWARNINGS", "yes")
            // systemd's programs check this before they touch a running system.
            .env("SYSTEMD_OFFLINE", "1")
            .env("SYSTEMD_IN_CHROOT", "1");
        Ok(Self {
            root,
            machine,
            sandbox,
        })
    }

    /// Runs the `preinst` scripts of packages.
    pub(super) fn before<'b>(&self, packages: impl Iterator<Item = &'b Unpacked>) -> Result<()> {
        for package in packages.filter(|package| package.has("preinst")) {
            let name = package.field("Package");
            database::unpacking(self.root, package)?;
            self.sandbox
                .clone()
                .env("DPKG_MAINTSCRIPT_NAME", "preinst")
                .env("DPKG_MAINTSCRIPT_PACKAGE", name)
                .env("DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT", "1")
                .env("DPKG_MAINTSCRIPT_ARCH", package.field("Architecture"))
                .env("DPKG_ADMINDIR", format!("/{FOLDER}"))
                .env("DPKG_ROOT", "")
                .command(format!("/{UNPACKING}/preinst"))
                .arg("install")
                .run()
                .with_context(|| format!("running the preinst script of {name}"))?;
        }
        cache::remove(&self.root.join(UNPACKING))
    }

    /// Lets dpkg configure unpacked packages.
    pub(super) fn configure<'b>(&self, packages: impl Iterator<Item = &'b Unpacked>) -> Result<()> {
        let names: Vec<&str> = packages.map(|package| package.field("Package")).collect();
        // Without names dpkg fails.
        if names.is_empty() {
            return Ok(());
        }
        self.dpkg(&names)
    }

    /// Lets dpkg configure all unpacked packages, and removes what was only for the scripts.
    pub(super) fn finish(self) -> Result<()> {
        self.dpkg(&["--pending"])?;
        self.machine.clear(self.root)
    }

    fn dpkg(&self, what: &[&str]) -> Result<()> {
        for (package, path) in SPARED {
            let info = format!("{FOLDER}/info/{package}.list");
            if !self.root.join(info).exists() {
                continue;
            }
            // A script may have made a link that leads to the host's files.
            if let Some(path) = real_name(self.root, path.as_ref())?
                && fs::symlink_metadata(&path).is_err()
            {
                fs::write(path, "")?;
            }
        }
        let configure = || {
            let said = self
                .sandbox
                .command("dpkg")
                .args(["--force-unsafe-io", "--force-confold", "--configure"])
                .args(what)
                .run()
                .context("configuring the packages")?;
            tracing::debug!("dpkg: {}", String::from_utf8_lossy(&said));
            Ok(())
        };
        certificates::aside(self.root, &self.sandbox, || {
            shortcuts::during(self.root, configure)
        })
    }
}
