//! Removes from a tree the files that differ from build to build, that identify a machine, that only the packaging
//! needs, and that the recipe does not request. The list of differing files comes from measurements.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::database::FOLDER;
use super::dropped;
use super::options::{COPYRIGHT, DOCS, Options, Purpose};
use super::package::Unpacked;
use super::report::Dropped;
use super::target::{real_folder, real_name};
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
/// Backups and locks in dpkg's database.
const REMAINS: &[&str] = &[
    "status-old",
    "available-old",
    "diversions-old",
    "statoverride-old",
    "lock",
    "lock-frontend",
    "triggers/Lock",
];
/// Files of `/var/log` that the base system makes, empty.
const LOGINS: &[&str] = &["btmp", "lastlog", "wtmp"];
/// Folders with links that enable units.
const ENABLED: &[&str] = &["etc/systemd/system", "etc/systemd/user"];
/// The list of packages in an image without package manager: dpkg's status, for scanners and people.
pub(super) const PACKAGES: &str = "usr/lib/slipway/packages";

/// The folders that are left out without documentation, but for [`COPYRIGHT`].
const DOCUMENTATION: &[&str] = &[
    DOCS,
    "usr/share/man",
    "usr/share/info",
    "usr/share/groff",
    "usr/share/gtk-doc",
];

/// Whether a path of a package is unpacked.
pub(super) fn is_kept(options: &Options, path: &str) -> bool {
    let below = |folders: &[&str]| {
        folders.iter().any(|folder| {
            path.strip_prefix(folder)
                .is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
        })
    };
    if !options.docs && below(DOCUMENTATION) {
        return is_copyright(path);
    }
    if let Some(rest) = path.strip_prefix("usr/share/locale/") {
        let language = rest.split('/').next().unwrap_or_default();
        return language == "locale.alias" || asked(options, language);
    }
    true
}

/// Whether a path is a package's licences, or the folder or link through which they are found.
fn is_copyright(path: &str) -> bool {
    in_docs(path).is_some_and(|inside| match inside.split_once('/') {
        Some((_, name)) => name == COPYRIGHT,
        None => true,
    })
}

/// The part of a path below [`DOCS`].
pub(super) fn in_docs(path: &str) -> Option<&str> {
    path.strip_prefix(DOCS)?.strip_prefix('/')
}

/// Removes from the folders of documentation all but [`COPYRIGHT`], the folders without it, and links to removed ones.
///
/// It reads the folders instead of the packages' lists of paths: a path of a list may lead through a link out of the tree.
pub(super) fn only_copyright(root: &Path) -> Result<()> {
    let Some(docs) = real_folder(root, DOCS.as_ref())? else {
        return Ok(());
    };
    let mut links = Vec::new();
    for entry in fs::read_dir(&docs)? {
        let path = entry?.path();
        let kind = fs::symlink_metadata(&path)?.file_type();
        if kind.is_symlink() {
            links.push(path);
        } else if !kind.is_dir() || !has_copyright(&path)? {
            remove(&path)?;
        }
    }
    for link in links {
        let target = fs::read_link(&link)?;
        let inside = target.strip_prefix(Path::new("/").join(DOCS));
        if fs::symlink_metadata(docs.join(inside.unwrap_or(&target))).is_err() {
            remove(&link)?;
        }
    }
    Ok(())
}

/// Removes all but [`COPYRIGHT`] from a package's folder of documentation; whether the folder has it.
fn has_copyright(folder: &Path) -> Result<bool> {
    let mut found = false;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == COPYRIGHT && !entry.file_type()?.is_dir() {
            found = true;
        } else {
            remove(&entry.path())?;
        }
    }
    Ok(found)
}

/// Whether a folder of messages (`de`, `pt_BR`, `sr@latin`) belongs to a requested locale (`de_DE.UTF-8`).
fn asked(options: &Options, language: &str) -> bool {
    let bare = |text: &str| text.split(['.', '@']).next().unwrap_or_default().to_owned();
    options.locales.iter().any(|locale| {
        let locale = bare(locale);
        bare(language) == locale || Some(bare(language).as_str()) == locale.split('_').next()
    })
}

/// Cleans a configured tree; gives the packages that were removed. Links above what is removed are followed in the tree: a script may
/// have made one that leads to the host's files.
pub(super) fn clean(root: &Path, packages: &[Unpacked], options: &Options) -> Result<Vec<Dropped>> {
    for pattern in GONE {
        take(root, pattern)?;
    }
    for folder in EMPTIED {
        if let Some(folder) = real_name(root, folder.as_ref())? {
            empty(&folder)?;
        }
    }
    if let Some(folder) = real_folder(root, "var/log".as_ref())? {
        logs(&folder)?;
    }
    keep_list(root)?;
    let mut dropped = Vec::new();
    if !options.package_manager {
        dropped = dropped::drop_packages(root, packages, options)?;
        for folder in ENABLED {
            without_dangling(root, folder.as_ref())?;
        }
    }
    for name in REMAINS {
        take(root, &format!("{FOLDER}/{name}"))?;
    }
    let machine_id = root.join("etc/machine-id");
    remove(&machine_id)?;
    if options.purpose == Purpose::Node {
        fs::write(&machine_id, "")?;
        fs::set_permissions(&machine_id, Permissions::from_mode(0o444))?;
    }
    Ok(dropped)
}

fn take(root: &Path, pattern: &str) -> Result<()> {
    let Some(pattern) = pattern.strip_suffix('*') else {
        return match real_name(root, pattern.as_ref())? {
            Some(path) => remove(&path),
            None => Ok(()),
        };
    };
    let (folder, prefix) = pattern
        .rsplit_once('/')
        .context("a pattern without a folder")?;
    if let Some(folder) = real_folder(root, folder.as_ref())? {
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

/// Removes from a folder of the tree the links that enable units of removed packages, and folders that become empty.
fn without_dangling(root: &Path, inside: &Path) -> Result<()> {
    let Some(folder) = real_folder(root, inside)? else {
        return Ok(());
    };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            without_dangling(root, &inside.join(entry.file_name()))?;
            if fs::read_dir(&path)?.next().is_none() {
                fs::remove_dir(&path)?;
            }
        } else if meta.is_symlink() {
            let target = fs::read_link(&path)?;
            // The target of a mask, or a file that a node creates at run time.
            if target.starts_with("/dev") || target.starts_with("/run") {
                continue;
            }
            let target = real_name(root, &inside.join(target))?;
            if target.is_none_or(|target| fs::symlink_metadata(target).is_err()) {
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
        without_dangling(root, Path::new("etc/systemd/system")).unwrap();
        assert!(!wants.exists());
        for kept in ["kept-alias.timer", "masked.service"] {
            assert!(fs::symlink_metadata(root.join("etc/systemd/system").join(kept)).is_ok());
        }
    }

    /// A tree whose folders are links to a folder of the host, and the files there that have to stay.
    fn linked(root: &Path, host: &Path) -> Vec<std::path::PathBuf> {
        let mut files = Vec::new();
        for (folder, names) in [
            ("var/log", ["syslog", "wtmp"]),
            ("var/tmp", ["file", "other"]),
            ("var/lib/apt", ["lists/file", "lists/other"]),
            ("var/lib/systemd", ["random-seed", "credential.secret"]),
            ("etc/ssh", ["ssh_host_rsa_key", "ssh_host_ecdsa_key"]),
            ("etc/systemd", ["system/gone.service", "user/gone.service"]),
            ("usr/share/doc", ["bash/README", "README"]),
        ] {
            let target = host.join(folder);
            for file in names.map(|name| target.join(name)) {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                match folder == "etc/systemd" {
                    true => std::os::unix::fs::symlink("/gone", &file).unwrap(),
                    false => fs::write(&file, "host").unwrap(),
                }
                files.push(file);
            }
            let link = root.join(folder);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, link).unwrap();
        }
        files
    }

    #[test]
    fn links_to_the_host_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let [root, host] = ["root", "host"].map(|name| place.path().join(name));
        let files = linked(&root, &host);
        fs::create_dir_all(root.join(FOLDER)).unwrap();
        fs::write(root.join(FOLDER).join("status"), "").unwrap();
        let options = Options {
            package_manager: true,
            ..Options::default()
        };
        clean(&root, &[], &options).unwrap();
        for folder in ENABLED {
            without_dangling(&root, folder.as_ref()).unwrap();
        }
        only_copyright(&root).unwrap();
        for file in files {
            let meta = fs::symlink_metadata(&file);
            let meta = meta.unwrap_or_else(|_| panic!("{} is gone", file.display()));
            assert!(meta.len() > 0, "{}", file.display());
        }
    }

    #[test]
    fn links_in_the_tree_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in ["data/log", "data/ssh", "var", "etc", FOLDER] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in ["data/log/syslog", "data/ssh/ssh_host_rsa_key"] {
            fs::write(root.join(path), "x").unwrap();
        }
        fs::write(root.join(FOLDER).join("status"), "").unwrap();
        std::os::unix::fs::symlink("/data/log", root.join("var/log")).unwrap();
        std::os::unix::fs::symlink("../data/ssh", root.join("etc/ssh")).unwrap();
        let options = Options {
            package_manager: true,
            ..Options::default()
        };
        clean(root, &[], &options).unwrap();
        for path in ["data/log", "data/ssh"] {
            assert_eq!(fs::read_dir(root.join(path)).unwrap().count(), 0, "{path}");
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
    fn of_documentation_only_copyright_stays_and_what_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let docs = root.join(DOCS);
        for path in [
            "gcc-14-base/copyright",
            "gcc-14-base/examples/copyright",
            "x/README",
        ] {
            fs::create_dir_all(docs.join(path).parent().unwrap()).unwrap();
            fs::write(docs.join(path), path).unwrap();
        }
        fs::write(docs.join("README"), "").unwrap();
        fs::create_dir(docs.join("empty")).unwrap();
        let link = |name: &str, to: &str| {
            std::os::unix::fs::symlink(to, docs.join(name)).unwrap();
        };
        link("libgcc-s1", "gcc-14-base");
        link("libgomp1", "/usr/share/doc/gcc-14-base");
        link("gcc-14-base/link", "/tmp");
        link("x-html", "x/html");
        // Of a script: the host's folder has to stay.
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("README"), "").unwrap();
        link("outside", outside.to_str().unwrap());
        only_copyright(root).unwrap();
        let mut left: Vec<_> = crate::host::tree::walk(&docs)
            .unwrap()
            .into_iter()
            .map(|item| item.inside)
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "/gcc-14-base",
                "/gcc-14-base/copyright",
                "/libgcc-s1",
                "/libgomp1",
                "/outside"
            ]
        );
        assert!(outside.join("README").exists());
        only_copyright(&root.join("absent")).unwrap();
    }

    #[test]
    fn docs_and_locales_are_left_out_unless_asked_for() {
        let plain = options(false, &[]);
        for (path, expected) in [
            ("usr/share/doc", true),
            ("usr/share/doc/bash", true),
            ("usr/share/doc/bash/copyright", true),
            ("usr/share/doc/bash/README.gz", false),
            ("usr/share/doc/bash/examples/copyright", false),
            ("usr/share/info/copyright", false),
            ("usr/share/man/man1/copyright", false),
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
