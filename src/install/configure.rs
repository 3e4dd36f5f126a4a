//! Runs the maintainer scripts in a sandbox whose root is the tree: each `preinst install` in the order of the
//! dependencies, then the tree's dpkg configures all packages in one run.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::database::{self, FOLDER};
use super::unpack::Unpacked;
use crate::debian::relation;
use crate::host::progress::Step;
use crate::host::sandbox::Sandbox;

/// Prevents the start of services during the build (the policy layer of Debian policy 9.11.1).
const POLICY: &str = "usr/sbin/policy-rc.d";
/// Random files that scripts create and the clean-up removes; a script that finds its file creates none.
const SPARED: &[(&str, &str)] = &[
    ("openssh-server", "etc/ssh/ssh_host_rsa_key"),
    ("openssh-server", "etc/ssh/ssh_host_ecdsa_key"),
    ("openssh-server", "etc/ssh/ssh_host_ed25519_key"),
];

/// Configures an unpacked tree.
pub(super) fn configure(root: &Path, packages: &[Unpacked], epoch: u64, step: &Step) -> Result<()> {
    let policy = root.join(POLICY);
    fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
    fs::set_permissions(&policy, Permissions::from_mode(0o755))?;
    for (package, path) in SPARED {
        if packages
            .iter()
            .any(|found| found.field("Package") == *package)
        {
            fs::write(root.join(path), "")?;
        }
    }
    let sandbox = Sandbox::new(root)
        .epoch(epoch)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("DEBCONF_NONINTERACTIVE_SEEN", "true")
        .env("DEBCONF_NOWARNINGS", "yes")
        // systemd's programs check this before they touch a running system.
        .env("SYSTEMD_OFFLINE", "1")
        .env("SYSTEMD_IN_CHROOT", "1");
    step.note("running the scripts before installation");
    for package in in_order(packages) {
        if package.text("preinst").is_empty() {
            continue;
        }
        let name = package.field("Package");
        sandbox
            .clone()
            .env("DPKG_MAINTSCRIPT_NAME", "preinst")
            .env("DPKG_MAINTSCRIPT_PACKAGE", name)
            .env("DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT", "1")
            .env("DPKG_MAINTSCRIPT_ARCH", package.field("Architecture"))
            .env("DPKG_ADMINDIR", "/var/lib/dpkg")
            .env("DPKG_ROOT", "")
            .command(format!(
                "/{FOLDER}/info/{}.preinst",
                database::stem(package)
            ))
            .arg("install")
            .run()
            .with_context(|| format!("running the preinst script of {name}"))?;
    }
    step.note("configuring the packages");
    let said = sandbox
        .command("dpkg")
        .args([
            "--force-unsafe-io",
            "--force-confold",
            "--configure",
            "--pending",
        ])
        .run()
        .context("configuring the packages")?;
    tracing::debug!("dpkg: {}", String::from_utf8_lossy(&said));
    fs::remove_file(&policy)?;
    Ok(())
}

/// Packages after their dependencies; in a circle, the order of the list decides.
fn in_order(packages: &[Unpacked]) -> Vec<&Unpacked> {
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (at, package) in packages.iter().enumerate() {
        for provided in relation::groups(package.field("Provides")).flatten() {
            by_name.entry(provided.name).or_insert(at);
        }
    }
    for (at, package) in packages.iter().enumerate() {
        by_name.insert(package.field("Package"), at);
    }
    let mut seen = vec![false; packages.len()];
    let mut order = Vec::new();
    for at in 0..packages.len() {
        visit(at, packages, &by_name, &mut seen, &mut order);
    }
    order.into_iter().map(|at| &packages[at]).collect()
}

fn visit(
    at: usize,
    packages: &[Unpacked],
    by_name: &HashMap<&str, usize>,
    seen: &mut [bool],
    order: &mut Vec<usize>,
) {
    if std::mem::replace(&mut seen[at], true) {
        return;
    }
    for field in ["Pre-Depends", "Depends"] {
        for group in relation::groups(packages[at].field(field)) {
            if let Some(next) = group.iter().find_map(|other| by_name.get(other.name)) {
                visit(*next, packages, by_name, seen, order);
            }
        }
    }
    order.push(at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::deb::ControlFile;

    fn package(control: &str) -> Unpacked {
        Unpacked {
            control: vec![ControlFile {
                name: "control".into(),
                mode: 0o644,
                content: control.into(),
            }],
            paths: Vec::new(),
        }
    }

    #[test]
    fn dependencies_come_first_and_circles_end() {
        let packages = [
            package("Package: app\nDepends: lib (>= 1) | other, shell,\n virtual\n"),
            package("Package: shell\nPre-Depends: lib:any\n"),
            package("Package: lib\nDepends: base\n"),
            package("Package: base\nDepends: lib\n"),
            package("Package: real\nProvides: virtual (= 1)\n"),
        ];
        let names: Vec<&str> = in_order(&packages)
            .iter()
            .map(|p| p.field("Package"))
            .collect();
        assert_eq!(names, ["base", "lib", "shell", "real", "app"]);
    }
}
