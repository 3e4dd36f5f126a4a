//! First boot: secrets and identities that packages' scripts make when they are configured, which is when the image is built.
//! They are taken out of the tree, and a unit makes them on each node, once, as the package's own script would.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::options::Purpose;
use super::report::FirstBoot;
use super::target::{real_folder, real_name};
use crate::host::cache::remove;

/// Folder of the units in a tree.
const UNITS: &str = "usr/lib/systemd/system";
/// Folder of their programs in a tree.
const PROGRAMS: &str = "usr/lib/slipway/first-boot";
/// What makes some files on a node.
struct Maker {
    /// The unit is called `slipway-NAME.service`.
    name: &'static str,
    /// What is taken out of the tree; `*` is any name.
    paths: &'static [&'static str],
    /// The texts of the unit and of its program; none if the package's own programs make the files.
    texts: Option<(&'static str, &'static str)>,
}

const MAKERS: &[Maker] = &[
    Maker {
        name: "snakeoil",
        paths: &[
            "etc/ssl/certs/ssl-cert-snakeoil.pem",
            "etc/ssl/private/ssl-cert-snakeoil.key",
        ],
        texts: Some((
            include_str!("first_boot/slipway-snakeoil.service"),
            include_str!("first_boot/snakeoil"),
        )),
    },
    Maker {
        name: "nvme-host",
        paths: &["etc/nvme/hostnqn", "etc/nvme/hostid"],
        texts: Some((
            include_str!("first_boot/slipway-nvme-host.service"),
            include_str!("first_boot/nvme-host"),
        )),
    },
    Maker {
        name: "munge-key",
        paths: &["etc/munge/munge.key"],
        texts: Some((
            include_str!("first_boot/slipway-munge-key.service"),
            include_str!("first_boot/munge-key"),
        )),
    },
    Maker {
        name: "rndc-key",
        paths: &["etc/bind/rndc.key"],
        texts: Some((
            include_str!("first_boot/slipway-rndc-key.service"),
            include_str!("first_boot/rndc-key"),
        )),
    },
    Maker {
        name: "postgresql",
        paths: &["var/lib/postgresql/*/main", "etc/postgresql/*"],
        texts: Some((
            include_str!("first_boot/slipway-postgresql.service"),
            include_str!("first_boot/postgresql"),
        )),
    },
    Maker {
        name: "mariadb",
        paths: &["var/lib/mysql/*"],
        texts: Some((
            include_str!("first_boot/slipway-mariadb.service"),
            include_str!("first_boot/mariadb"),
        )),
    },
    // No secret, but another one in each installation.
    Maker {
        name: "aliases",
        paths: &["etc/aliases.db"],
        texts: Some((
            include_str!("first_boot/slipway-aliases.service"),
            include_str!("first_boot/aliases"),
        )),
    },
    // dkms makes it when it signs its first module.
    Maker {
        name: "dkms",
        paths: &["var/lib/dkms/mok.key", "var/lib/dkms/mok.pub"],
        texts: None,
    },
];

/// What every tree is cleaned of, and a node makes by a unit of the package or of the image.
const CLEANED: &[&str] = &[
    "etc/ssh/ssh_host_rsa_key",
    "etc/ssh/ssh_host_ecdsa_key",
    "etc/ssh/ssh_host_ed25519_key",
    "etc/iscsi/initiatorname.iscsi",
];

/// The texts of all units and programs, for the key of the step that writes them.
pub(super) fn text() -> String {
    let texts = MAKERS.iter().map(|maker| {
        let (unit, program) = maker.texts.unwrap_or_default();
        format!("{}\n{unit}{program}", maker.paths.join(" "))
    });
    texts.collect()
}

/// What a container is going to lack of a tree that is not cleaned yet: nothing in it makes that anew.
pub(super) fn cleaned(root: &Path, purpose: Purpose) -> Result<Vec<FirstBoot>> {
    let mut lacking = Vec::new();
    for path in CLEANED.iter().filter(|_| purpose == Purpose::Container) {
        if there(root, path.as_ref())?.is_some() {
            lacking.push(FirstBoot {
                path: format!("/{path}"),
                unit: None,
            });
        }
    }
    Ok(lacking)
}

/// Takes the files out of a tree. A node gets the units that make them; nothing makes them in a container.
pub(super) fn take(root: &Path, purpose: Purpose) -> Result<Vec<FirstBoot>> {
    let mut taken = Vec::new();
    for maker in MAKERS {
        let mut found = Vec::new();
        for pattern in maker.paths {
            found.extend(matching(root, pattern)?);
        }
        if found.is_empty() {
            continue;
        }
        let unit = match (purpose, maker.texts) {
            (Purpose::Node, Some((unit, program))) => Some(write(root, maker.name, unit, program)?),
            _ => None,
        };
        for (inside, path) in found {
            remove_with_links(&path)?;
            taken.push(FirstBoot {
                path: format!("/{}", inside.display()),
                unit: unit.clone(),
            });
        }
    }
    Ok(taken)
}

/// The paths of a tree that fit a pattern, sorted, each with its path on the host. Links above them are followed in the tree: a script may
/// have made one that leads to the host's files.
fn matching(root: &Path, pattern: &str) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.split('/') {
        let mut next = Vec::new();
        for folder in found {
            if part != "*" {
                next.push(folder.join(part));
            } else if let Some(real) = real_folder(root, &folder)? {
                for entry in fs::read_dir(real)? {
                    next.push(folder.join(entry?.file_name()));
                }
            }
        }
        found = next;
    }
    found.sort_unstable();
    let mut all = Vec::new();
    for inside in found {
        if let Some(path) = there(root, &inside)? {
            all.push((inside, path));
        }
    }
    Ok(all)
}

/// The path on the host of what is at a path of a tree, which may be a link.
fn there(root: &Path, inside: &Path) -> Result<Option<PathBuf>> {
    Ok(real_name(root, inside)?.filter(|path| path.symlink_metadata().is_ok()))
}

/// Removes a path and the links beside it that lead to it, such as OpenSSL's by the hash of a certificate's name.
fn remove_with_links(path: &Path) -> Result<()> {
    if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
        for entry in fs::read_dir(folder)? {
            let beside = entry?.path();
            if fs::read_link(&beside).is_ok_and(|target| target == Path::new(name)) {
                remove(&beside)?;
            }
        }
    }
    remove(path)
}

/// Writes a unit and its program, and enables the unit; gives its name.
fn write(root: &Path, name: &str, text: &str, script: &str) -> Result<String> {
    let unit = format!("slipway-{name}.service");
    let target = match text.contains("Before=sysinit.target") {
        true => "sysinit.target.wants",
        false => "multi-user.target.wants",
    };
    let (programs, units) = (root.join(PROGRAMS), root.join(UNITS));
    let wants = units.join(target);
    let about = || format!("writing {unit}");
    for folder in [&programs, &wants] {
        fs::create_dir_all(folder).with_context(about)?;
    }
    let program = programs.join(name);
    fs::write(&program, script).with_context(about)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755)).with_context(about)?;
    fs::write(units.join(&unit), text).with_context(about)?;
    let link = wants.join(&unit);
    remove(&link)?;
    symlink(format!("../{unit}"), link).with_context(about)?;
    Ok(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_goes_with_its_links_and_a_unit_comes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let certs = root.join("etc/ssl/certs");
        fs::create_dir_all(&certs).unwrap();
        fs::write(certs.join("ssl-cert-snakeoil.pem"), "secret").unwrap();
        fs::write(certs.join("other.pem"), "").unwrap();
        symlink("ssl-cert-snakeoil.pem", certs.join("1a2b.0")).unwrap();
        symlink("other.pem", certs.join("3c4d.0")).unwrap();
        let taken = take(root, Purpose::Node).unwrap();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].path, "/etc/ssl/certs/ssl-cert-snakeoil.pem");
        let mut left: Vec<_> = fs::read_dir(&certs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["3c4d.0", "other.pem"]);
        let unit = taken[0].unit.as_deref().unwrap();
        let text = fs::read_to_string(root.join(UNITS).join(unit)).unwrap();
        assert!(
            text.contains("ConditionPathExists=!/etc/ssl/certs/ssl-cert-snakeoil.pem\n"),
            "{text}"
        );
        let link = root.join(UNITS).join("sysinit.target.wants").join(unit);
        assert!(fs::metadata(link).unwrap().is_file());
        assert!(take(root, Purpose::Node).unwrap().is_empty());
    }

    #[test]
    fn a_container_lacks_the_keys_that_every_tree_is_cleaned_of() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("etc/ssh")).unwrap();
        for name in ["ssh_host_rsa_key", "ssh_host_rsa_key.pub", "sshd_config"] {
            fs::write(root.join("etc/ssh").join(name), "").unwrap();
        }
        let lacking = cleaned(root, Purpose::Container).unwrap();
        let paths: Vec<&str> = lacking.iter().map(|made| made.path.as_str()).collect();
        assert_eq!(paths, ["/etc/ssh/ssh_host_rsa_key"]);
        assert!(cleaned(root, Purpose::Node).unwrap().is_empty());
    }

    #[test]
    fn units_start_their_own_programs_unless_the_files_are_there() {
        for maker in MAKERS {
            let Some((unit, program)) = maker.texts else {
                continue;
            };
            let start = format!("ExecStart=/{PROGRAMS}/{}\n", maker.name);
            assert!(unit.contains(&start), "{unit}");
            // Or what they are made from is there.
            let absent = ["=!/etc/", "=|!/etc/", "=|!/var/", "=/etc/aliases\n"];
            assert!(absent.iter().any(|absent| unit.contains(absent)), "{unit}");
            assert!(program.starts_with("#!/bin/sh\n"), "{program}");
        }
    }

    #[test]
    fn folders_of_any_version_are_found_and_containers_have_no_units() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in [
            "var/lib/postgresql/17/main/base",
            "var/lib/postgresql/17/other",
            "etc/postgresql/17/main",
        ] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        let taken = take(root, Purpose::Container).unwrap();
        let paths: Vec<&str> = taken.iter().map(|taken| taken.path.as_str()).collect();
        assert_eq!(paths, ["/var/lib/postgresql/17/main", "/etc/postgresql/17"]);
        assert!(taken.iter().all(|taken| taken.unit.is_none()));
        assert!(root.join("var/lib/postgresql/17/other").is_dir() && !root.join("usr").exists());
    }

    #[test]
    fn links_are_followed_in_the_tree_and_not_to_the_host() {
        let place = tempfile::tempdir().unwrap();
        let [root, host] = ["root", "host"].map(|name| place.path().join(name));
        for folder in ["var/lib", "srv/pg/17/main", "etc/munge"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::create_dir_all(host.join("data")).unwrap();
        fs::write(host.join("data/ibdata1"), "the host's").unwrap();
        symlink(host.join("data"), root.join("var/lib/mysql")).unwrap();
        symlink("/srv/pg", root.join("var/lib/postgresql")).unwrap();
        let taken = take(&root, Purpose::Container).unwrap();
        let paths: Vec<&str> = taken.iter().map(|taken| taken.path.as_str()).collect();
        assert_eq!(paths, ["/var/lib/postgresql/17/main"]);
        assert!(host.join("data/ibdata1").exists() && !root.join("srv/pg/17/main").exists());
    }
}
