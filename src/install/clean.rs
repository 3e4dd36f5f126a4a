//! Removes from a tree the files that differ from build to build, that identify a machine, that only the packaging
//! needs, and that the recipe does not request. The list of differing files comes from measurements.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::database::FOLDER;
use super::options::{Options, Purpose};
use super::package::Unpacked;
use crate::debian::relation;
use crate::host::cache::remove;

/// Removed files and folders, by path; a `*` at the end matches any rest of the last part.
const GONE: &[&str] = &[
    // Identity and secrets of a machine.
    "var/lib/dbus/machine-id",
    "etc/ssh/ssh_host_*",
    "etc/iscsi/initiatorname.iscsi",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
    // Data of the building machine, or files that we write anew.
    "etc/fstab",
    "etc/hostname",
    "etc/hosts",
    "etc/resolv.conf*",
    "etc/.resolv.conf*",
    // Contains times and inode numbers.
    "var/cache/ldconfig/aux-cache",
    "var/cache/man",
    "var/cache/fontconfig",
    // Backups that the user tools make of changed files, and their lock.
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/subuid-",
    "etc/subgid-",
    "etc/.pwd.lock",
    // Remains of the scripts.
    "root/.bash_history",
    "root/.lesshst",
    "etc/apt/apt.conf.d/01autoremove-kernels",
];
/// Folders whose content is removed.
const EMPTIED: &[&str] = &[
    "tmp",
    "run",
    "var/tmp",
    "var/cache/apt",
    "var/lib/apt/lists",
    "boot",
];
/// The package manager's folders.
const MANAGED: &[&str] = &[
    "var/lib/dpkg",
    "var/lib/apt",
    "var/cache/apt",
    "var/cache/debconf",
    "var/lib/ucf",
    "etc/apt",
    "etc/dpkg",
    "var/backups",
    "usr/share/keyrings",
    "var/lib/pam",
    "var/lib/shells.state",
    "var/log/runit",
    "usr/share/debconf",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/doc-base",
    "var/lib/systemd/deb-systemd-helper-enabled",
    "var/lib/systemd/deb-systemd-helper-masked",
    "var/lib/systemd/deb-systemd-user-helper-enabled",
    "var/lib/systemd/deb-systemd-user-helper-masked",
    "etc/cron.daily/apt-compat",
    "etc/cron.daily/dpkg",
];
/// Packages for packaging only: their files are removed with the package manager even if a kept package depends on
/// them, because it does so for its maintainer scripts.
const PACKAGING: &[&str] = &[
    "apt",
    "dpkg",
    "debconf",
    "debconf-i18n",
    "init-system-helpers",
    "ucf",
    "adduser",
    "debian-archive-keyring",
    "sqv",
    "sensible-utils",
    "runit-helper",
    "lsb-base",
];
/// Packages that are removed with it unless a kept package depends on them.
const PERHAPS: &[&str] = &[
    "libapt-pkg7.0",
    "libdebconfclient0",
    "libtext-charwidth-perl",
    "libtext-wrapi18n-perl",
    "libtext-iconv-perl",
    "liblocale-gettext-perl",
    "libxxhash0",
    "libhogweed6t64",
    "libnettle8t64",
    "libgmp10",
    "perl-base",
    "libdb5.3t64",
];
/// Files of `/var/log` that the base system makes, empty.
const LOGINS: &[&str] = &["btmp", "lastlog", "wtmp"];
/// Folders with links that enable units.
const ENABLED: &[&str] = &["etc/systemd/system", "etc/systemd/user"];
/// Files of removed packages that other programs use.
const KEPT: &[&str] = &[
    "etc/alternatives",
    "etc/default",
    "etc/logrotate.d",
    "etc/kernel",
    "etc/init.d",
];

/// The list of packages in an image without package manager: dpkg's status, for scanners and people.
pub(super) const PACKAGES: &str = "usr/lib/slipway/packages";

/// Whether a path of a package is unpacked.
pub(super) fn is_kept(options: &Options, path: &str) -> bool {
    let below = |folders: &[&str]| {
        folders.iter().any(|folder| {
            path.strip_prefix(folder)
                .is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
        })
    };
    if !options.docs
        && below(&[
            "usr/share/doc",
            "usr/share/man",
            "usr/share/info",
            "usr/share/groff",
            "usr/share/gtk-doc",
        ])
    {
        return false;
    }
    if let Some(rest) = path.strip_prefix("usr/share/locale/") {
        let language = rest.split('/').next().unwrap_or_default();
        return language == "locale.alias" || asked(options, language);
    }
    true
}

/// Whether a folder of messages (`de`, `pt_BR`, `sr@latin`) belongs to a requested locale (`de_DE.UTF-8`).
fn asked(options: &Options, language: &str) -> bool {
    let bare = |text: &str| text.split(['.', '@']).next().unwrap_or_default().to_owned();
    options.locales.iter().any(|locale| {
        let locale = bare(locale);
        bare(language) == locale || Some(bare(language).as_str()) == locale.split('_').next()
    })
}

/// Cleans a configured tree.
pub(super) fn clean(root: &Path, packages: &[Unpacked], options: &Options) -> Result<()> {
    for pattern in GONE {
        take(root, pattern)?;
    }
    for folder in EMPTIED {
        empty(&root.join(folder))?;
    }
    logs(&root.join("var/log"))?;
    keep_list(root)?;
    if options.package_manager {
        for name in [
            "status-old",
            "available-old",
            "diversions-old",
            "statoverride-old",
            "lock",
            "lock-frontend",
        ] {
            remove(&root.join(FOLDER).join(name))?;
        }
        remove(&root.join(FOLDER).join("triggers/Lock"))?;
    } else {
        let gone = packaging(packages);
        without_packages(root, packages, &gone)?;
        for folder in MANAGED {
            remove(&root.join(folder))?;
        }
        for folder in ENABLED {
            without_dangling(root, &root.join(folder))?;
        }
    }
    let machine_id = root.join("etc/machine-id");
    remove(&machine_id)?;
    if options.purpose == Purpose::Node {
        fs::write(&machine_id, "")?;
        fs::set_permissions(&machine_id, Permissions::from_mode(0o444))?;
    }
    Ok(())
}

fn take(root: &Path, pattern: &str) -> Result<()> {
    let Some(pattern) = pattern.strip_suffix('*') else {
        return remove(&root.join(pattern));
    };
    let (folder, prefix) = pattern
        .rsplit_once('/')
        .context("a pattern without a folder")?;
    let folder = root.join(folder);
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(prefix.as_bytes())
            {
                remove(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn empty(folder: &Path) -> Result<()> {
    if fs::symlink_metadata(folder).is_ok_and(|meta| meta.is_dir()) {
        for entry in fs::read_dir(folder)? {
            remove(&entry?.path())?;
        }
    }
    Ok(())
}

/// Removes logs and keeps their folders: services expect these with the owner from their package. The records of logins
/// stay too, since login and sshd write them only if they exist; without a content that a script has left.
fn logs(folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            logs(&entry.path())?;
        } else if LOGINS.iter().any(|name| *name == entry.file_name())
            && entry.file_type()?.is_file()
        {
            File::options().write(true).open(entry.path())?.set_len(0)?;
        } else {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Keeps dpkg's status, which dpkg has sorted by name.
fn keep_list(root: &Path) -> Result<()> {
    let path = root.join(PACKAGES);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(root.join(FOLDER).join("status"), &path).context("keeping the list of packages")?;
    Ok(fs::set_permissions(&path, Permissions::from_mode(0o644))?)
}

/// The packages that are removed with the package manager.
fn packaging(packages: &[Unpacked]) -> BTreeSet<&str> {
    let mut gone: BTreeSet<&str> = PACKAGING.iter().copied().collect();
    let mut perhaps: BTreeSet<&str> = PERHAPS.iter().copied().collect();
    let needed: BTreeMap<&str, Vec<&str>> = packages
        .iter()
        .map(|package| (package.field("Package"), needs(package)))
        .collect();
    loop {
        let kept: BTreeSet<&str> = needed
            .iter()
            .filter(|(name, _)| !gone.contains(*name) && !perhaps.contains(*name))
            .flat_map(|(_, needs)| needs.iter().copied())
            .collect();
        let before = perhaps.len();
        perhaps.retain(|name| !kept.contains(name));
        if perhaps.len() == before {
            gone.extend(perhaps);
            return gone;
        }
    }
}

fn needs(package: &Unpacked) -> Vec<&str> {
    ["Pre-Depends", "Depends"]
        .iter()
        .flat_map(|field| relation::groups(package.field(field)).flatten())
        .map(|other| other.name)
        .collect()
}

/// Removes the files that only the given packages have, and the folders that become empty.
fn without_packages(root: &Path, packages: &[Unpacked], gone: &BTreeSet<&str>) -> Result<()> {
    let is_gone = |package: &&Unpacked| gone.contains(package.field("Package"));
    let kept: BTreeSet<&str> = packages
        .iter()
        .filter(|package| !is_gone(package))
        .flat_map(|package| package.paths.iter().map(String::as_str))
        .collect();
    let mut paths: Vec<&str> = packages
        .iter()
        .filter(is_gone)
        .flat_map(|package| package.paths.iter())
        .map(|path| path.trim_start_matches('/'))
        .filter(|path| *path != "." && !kept.contains(format!("/{path}").as_str()))
        .filter(|path| !KEPT.iter().any(|keep| Path::new(path).starts_with(keep)))
        .collect();
    paths.sort_unstable();
    // In reverse: a folder's content sorts after the folder.
    for path in paths.into_iter().rev() {
        let path = root.join(path);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                if fs::read_dir(&path)?.next().is_none() {
                    fs::remove_dir(&path)?;
                }
            }
            Ok(_) => remove(&path)?,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Removes links that enable units of removed packages, and folders that become empty.
fn without_dangling(root: &Path, folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            without_dangling(root, &path)?;
            if fs::read_dir(&path)?.next().is_none() {
                fs::remove_dir(&path)?;
            }
        } else if meta.is_symlink() {
            let target = fs::read_link(&path)?;
            let found = match target.strip_prefix("/") {
                // The target of a mask, or a file that a node creates at run time.
                Ok(absolute) if absolute.starts_with("dev") || absolute.starts_with("run") => true,
                Ok(absolute) => fs::symlink_metadata(root.join(absolute)).is_ok(),
                Err(_) => fs::symlink_metadata(folder.join(&target)).is_ok(),
            };
            if !found {
                remove(&path)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(docs: bool, locales: &[&str]) -> Options {
        Options {
            docs,
            locales: locales.iter().map(|&locale| locale.to_owned()).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn links_to_units_that_are_gone_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let wants = root.join("etc/systemd/system/timers.target.wants");
        fs::create_dir_all(&wants).unwrap();
        fs::create_dir_all(root.join("usr/lib/systemd/system")).unwrap();
        fs::write(root.join("usr/lib/systemd/system/kept.timer"), "").unwrap();
        let link = |to: &str, at: &str| {
            std::os::unix::fs::symlink(to, root.join("etc/systemd/system").join(at)).unwrap();
        };
        link(
            "/usr/lib/systemd/system/gone.timer",
            "timers.target.wants/gone.timer",
        );
        link("/usr/lib/systemd/system/kept.timer", "kept-alias.timer");
        link("/dev/null", "masked.service");
        without_dangling(root, &root.join("etc/systemd/system")).unwrap();
        assert!(!wants.exists());
        for kept in ["kept-alias.timer", "masked.service"] {
            assert!(fs::symlink_metadata(root.join("etc/systemd/system").join(kept)).is_ok());
        }
    }

    #[test]
    fn logs_go_and_the_records_of_logins_stay_empty() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path();
        fs::create_dir(log.join("apt")).unwrap();
        for name in ["dpkg.log", "apt/term.log", "wtmp", "btmp"] {
            fs::write(log.join(name), "x").unwrap();
        }
        logs(log).unwrap();
        for (name, size) in [
            ("wtmp", Some(0)),
            ("btmp", Some(0)),
            ("dpkg.log", None),
            ("apt/term.log", None),
        ] {
            let found = fs::metadata(log.join(name)).ok().map(|meta| meta.len());
            assert_eq!(found, size, "{name}");
        }
        assert!(log.join("apt").is_dir());
    }

    #[test]
    fn docs_and_locales_are_left_out_unless_asked_for() {
        let plain = options(false, &[]);
        for (path, expected) in [
            ("usr/share/doc", true),
            ("usr/share/doc/bash", false),
            ("usr/share/man/man1/x.1.gz", false),
            ("usr/share/documents/x", true),
            ("usr/share/locale/locale.alias", true),
            ("usr/share/locale/de/LC_MESSAGES/x.mo", false),
            ("usr/lib/locale/C.utf8/LC_CTYPE", true),
        ] {
            assert_eq!(is_kept(&plain, path), expected, "{path}");
        }
        let more = options(true, &["de_DE.UTF-8", "pt_BR.UTF-8"]);
        for (path, expected) in [
            ("usr/share/doc/bash/x", true),
            ("usr/share/locale/de/LC_MESSAGES/x.mo", true),
            ("usr/share/locale/pt_BR/x", true),
            ("usr/share/locale/pt/x", true),
            ("usr/share/locale/fr/x", false),
        ] {
            assert_eq!(is_kept(&more, path), expected, "{path}");
        }
    }
}
