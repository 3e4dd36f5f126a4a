//! Dropped packages: what only the packaging needs is removed with the package manager, but for what the recipe names and for
//! what something that stays runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::database::FOLDER;
use super::options::{COPYRIGHT, DOCS, Options, Purpose};
use super::package::Unpacked;
use super::reach::Files;
use super::report::{Dropped, Missed};
use super::target::{real_folder, real_name};
use crate::debian::relation;
use crate::host::cache::remove;

/// The package manager's folders, and the package with which they stay.
const MANAGED: &[(&str, &str)] = &[
    ("var/lib/apt", "apt"),
    ("var/cache/apt", "apt"),
    ("var/cache/debconf", "debconf"),
    ("var/lib/ucf", "ucf"),
    ("etc/apt", "apt"),
    ("etc/dpkg", "dpkg"),
    ("var/backups", ""),
    ("usr/share/keyrings", "debian-archive-keyring"),
    ("var/lib/pam", ""),
    ("var/lib/shells.state", ""),
    ("var/log/runit", "runit-helper"),
    ("usr/share/debconf", "debconf"),
    ("usr/share/lintian", ""),
    ("usr/share/bug", ""),
    ("usr/share/doc-base", ""),
    (
        "var/lib/systemd/deb-systemd-helper-enabled",
        "init-system-helpers",
    ),
    (
        "var/lib/systemd/deb-systemd-helper-masked",
        "init-system-helpers",
    ),
    (
        "var/lib/systemd/deb-systemd-user-helper-enabled",
        "init-system-helpers",
    ),
    (
        "var/lib/systemd/deb-systemd-user-helper-masked",
        "init-system-helpers",
    ),
    ("etc/cron.daily/apt-compat", "apt"),
    ("etc/cron.daily/dpkg", "dpkg"),
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
/// Packages that are removed with it unless a kept package depends on them, and the library for which it does.
const PERHAPS: &[(&str, &str)] = &[
    ("libapt-pkg7.0", "libapt-pkg.so.7"),
    ("libdebconfclient0", "libdebconfclient.so.0"),
    ("libtext-charwidth-perl", ""),
    ("libtext-wrapi18n-perl", ""),
    ("libtext-iconv-perl", ""),
    ("liblocale-gettext-perl", ""),
    ("libxxhash0", "libxxhash.so.0"),
    ("libhogweed6t64", "libhogweed.so.6"),
    ("libnettle8t64", "libnettle.so.8"),
    ("libgmp10", "libgmp.so.10"),
    ("perl-base", ""),
    ("libdb5.3t64", "libdb-5.3.so"),
];
/// Files of removed packages that other programs use.
const KEPT: &[&str] = &[
    "etc/alternatives",
    "etc/default",
    "etc/logrotate.d",
    "etc/kernel",
    "etc/init.d",
];
/// The program that keeps links of alternatives, and its database.
const ALTERNATIVES: (&str, &str) = ("/usr/bin/update-alternatives", "var/lib/dpkg/alternatives");

/// What stays of the packages that could be removed.
#[derive(Debug, Default)]
struct Stays<'a> {
    /// Whole packages.
    whole: BTreeSet<&'a str>,
    /// Programs of others, which need nothing but themselves and libraries.
    files: BTreeSet<String>,
}

/// Removes the packages that only the packaging needs, but for those that are named and for what is run; gives what was removed.
pub(super) fn drop_packages(
    root: &Path,
    packages: &[Unpacked],
    options: &Options,
) -> Result<Vec<Dropped>> {
    let names: BTreeSet<&str> = packages.iter().map(|p| p.field("Package")).collect();
    let named: BTreeSet<&str> = options.named.iter().map(String::as_str).collect();
    let files = Files::of(root, packages)?;
    let stays = reached(&files, packages, &named, options.purpose);
    let mut gone = packaging(packages, &files, &stays);
    gone.retain(|name| names.contains(name));
    let dropped = report(&files, &gone, &stays);
    let mut but = stays.files.clone();
    but.extend(copyrights(&files, &stays));
    without_packages(root, packages, &gone, &but)?;
    let kept = paths_of(packages, &named);
    for (folder, owner) in MANAGED {
        let Some(path) = real_name(root, folder.as_ref())? else {
            continue;
        };
        if owner.is_empty() {
            remove(&path)?;
        } else if gone.contains(owner) || !names.contains(owner) {
            remove_but(&path, folder, &kept)?;
        }
    }
    if !named.contains("dpkg") {
        without_database(root, &stays)?;
    }
    Ok(dropped)
}

/// The licences of single programs that stay: the files that say so, and their folders.
fn copyrights(files: &Files<'_>, stays: &Stays<'_>) -> Vec<String> {
    let owners = stays.files.iter().filter_map(|file| files.owner(file));
    let owners: BTreeSet<&str> = owners.collect();
    let folders = owners.iter().map(|owner| format!("/{DOCS}/{owner}"));
    folders
        .flat_map(|folder| [format!("{folder}/{COPYRIGHT}"), folder])
        .collect()
}

/// The paths of the packages of these names, without the first slash.
fn paths_of<'a>(packages: &'a [Unpacked], names: &BTreeSet<&str>) -> BTreeSet<&'a str> {
    let those = packages
        .iter()
        .filter(|package| names.contains(package.field("Package")));
    let paths = those.flat_map(|package| package.paths.iter());
    paths.map(|path| path.trim_start_matches('/')).collect()
}

/// Removes a file, or a folder with its content, which is `path` on the host and `inside` in the tree, but for files and links that are
/// `kept`. Whether something is left.
fn remove_but(path: &Path, inside: &str, kept: &BTreeSet<&str>) -> Result<bool> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    if !is_folder {
        let stays = kept.contains(inside);
        if !stays {
            remove(path)?;
        }
        return Ok(stays);
    }
    let mut is_left = false;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let below = format!("{inside}/{}", entry.file_name().display());
        is_left |= remove_but(&entry.path(), &below, kept)?;
    }
    if !is_left {
        remove(path)?;
    }
    Ok(is_left)
}

/// Removes dpkg's database, but for that of alternatives if their program stays.
fn without_database(root: &Path, stays: &Stays<'_>) -> Result<()> {
    let (program, database) = ALTERNATIVES;
    let is_kept = stays.files.contains(program) || stays.whole.contains("dpkg");
    if let Some(folder) = real_folder(root, FOLDER.as_ref())? {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if !(is_kept && Path::new(FOLDER).join(entry.file_name()) == Path::new(database)) {
                remove(&entry.path())?;
            }
        }
    }
    match real_name(root, FOLDER.as_ref())? {
        Some(path) if !is_kept => remove(&path),
        _ => Ok(()),
    }
}

/// What is named, and what is run from what stays: from units and other files that something starts, and from the scripts of
/// the packages that the recipe names.
fn reached<'a>(
    files: &Files<'a>,
    packages: &'a [Unpacked],
    named: &BTreeSet<&str>,
    purpose: Purpose,
) -> Stays<'a> {
    let candidates = candidates();
    let mut stays = Stays::default();
    let mut queue: Vec<&str> = packages.iter().map(|p| p.field("Package")).collect();
    queue.retain(|name| candidates.contains(name) && named.contains(name));
    // What a named one depends on.
    while let Some(name) = queue.pop() {
        if stays.whole.insert(name) {
            let package = packages.iter().find(|p| p.field("Package") == name);
            let needs = package.map(needs).unwrap_or_default();
            queue.extend(needs.into_iter().filter(|name| candidates.contains(name)));
        }
    }
    let is_named = |path: &str| files.owner(path).is_some_and(|owner| named.contains(owner));
    let stays_anyway = |path: &str| {
        files
            .owner(path)
            .is_none_or(|owner| !candidates.contains(owner))
    };
    // In a container nothing starts units and scripts of System V.
    let started = files.started().filter(|_| purpose == Purpose::Node);
    let started = started.filter(|path| stays_anyway(path));
    let scripts = files.scripts().filter(|path| is_named(path));
    let mut queue: Vec<String> = started.chain(scripts).map(str::to_owned).collect();
    let mut seen = BTreeSet::new();
    while let Some(path) = queue.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        for used in files.uses(&path).into_iter().filter(|used| used.is_call) {
            let owner = files.owner(&used.program);
            if let Some(owner) = owner.filter(|owner| candidates.contains(owner)) {
                match files.is_binary(&used.program) && !used.interprets {
                    true => drop(stays.files.insert(used.program.clone())),
                    // A script has modules and templates beside it, and so has an interpreter.
                    false => drop(stays.whole.insert(owner)),
                }
            }
            queue.push(used.program);
        }
    }
    stays
}

fn candidates() -> BTreeSet<&'static str> {
    let perhaps = PERHAPS.iter().map(|(name, _)| *name);
    PACKAGING.iter().copied().chain(perhaps).collect()
}

/// The packages that are removed with the package manager.
fn packaging<'a>(
    packages: &'a [Unpacked],
    files: &Files<'_>,
    stays: &Stays<'_>,
) -> BTreeSet<&'a str> {
    let mut gone: BTreeSet<&str> = PACKAGING.iter().copied().collect();
    gone.retain(|name| !stays.whole.contains(name));
    let is_linked = |library: &str| {
        !library.is_empty() && stays.files.iter().any(|file| files.names(file, library))
    };
    let perhaps = PERHAPS
        .iter()
        .filter(|(name, library)| !stays.whole.contains(name) && !is_linked(library));
    let mut perhaps: BTreeSet<&str> = perhaps.map(|(name, _)| *name).collect();
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

/// Who names a program that is not there.
fn report(files: &Files<'_>, gone: &BTreeSet<&str>, stays: &Stays<'_>) -> Vec<Dropped> {
    let mut missed: BTreeMap<&str, BTreeSet<Missed>> = BTreeMap::new();
    let is_gone = |owner: Option<&str>| owner.is_some_and(|owner| gone.contains(owner));
    // What goes with the packages misses nothing.
    let goes = |path: &str| {
        MANAGED
            .iter()
            .any(|(folder, _)| Path::new(&path[1..]).starts_with(folder))
    };
    let stays_there = |path: &&str| !is_gone(files.owner(path)) && !goes(path);
    for path in files.all().filter(stays_there) {
        for used in files.uses(path) {
            if stays.files.contains(&used.program) {
                continue;
            }
            if let Some(owner) = files
                .owner(&used.program)
                .filter(|owner| gone.contains(owner))
            {
                missed.entry(owner).or_default().insert(Missed {
                    path: path.to_owned(),
                    package: files.owner(path).unwrap_or_default().to_owned(),
                    program: used.program,
                });
            }
        }
    }
    let dropped = gone.iter().map(|&name| Dropped {
        package: name.to_owned(),
        kept: stays
            .files
            .iter()
            .filter(|file| files.owner(file) == Some(name))
            .cloned()
            .collect(),
        missed_by: missed.remove(name).into_iter().flatten().collect(),
    });
    dropped.collect()
}

/// Removes the files that only the given packages have, and the folders that become empty.
fn without_packages(
    root: &Path,
    packages: &[Unpacked],
    gone: &BTreeSet<&str>,
    but: &BTreeSet<String>,
) -> Result<()> {
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
        .filter(|path| !but.contains(&format!("/{path}")))
        .filter(|path| !KEPT.iter().any(|keep| Path::new(path).starts_with(keep)))
        .collect();
    paths.sort_unstable();
    // In reverse: a folder's content sorts after the folder.
    for path in paths.into_iter().rev() {
        // A script may have made a link that leads to the host's files.
        let Some(path) = real_name(root, path.as_ref())? else {
            continue;
        };
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn package(name: &str, paths: &[&str]) -> Unpacked {
        let mut package = Unpacked::of(&format!("Package: {name}\n"));
        package.paths = paths.iter().map(|&path| path.to_owned()).collect();
        package
    }

    #[test]
    fn links_to_the_host_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let [root, host] = ["root", "host"].map(|name| place.path().join(name));
        let mut files = Vec::new();
        for (folder, file) in [
            ("var/lib/apt", "lists/file"),
            ("var/cache", "apt/file"),
            ("usr/share/keyrings", "debian.gpg"),
            ("var/lib/dpkg", "status"),
        ] {
            let target = host.join(folder);
            fs::create_dir_all(target.join(file).parent().unwrap()).unwrap();
            fs::write(target.join(file), "host").unwrap();
            fs::create_dir_all(root.join(folder).parent().unwrap()).unwrap();
            symlink(&target, root.join(folder)).unwrap();
            files.push(target.join(file));
        }
        let keyring = package(
            "debian-archive-keyring",
            &["/usr/share/keyrings/debian.gpg"],
        );
        let packages = [package("apt", &["/var/cache/apt/file"]), keyring];
        drop_packages(&root, &packages, &Options::default()).unwrap();
        for file in files {
            assert!(file.exists(), "{} is gone", file.display());
        }
        assert!(fs::symlink_metadata(root.join("var/lib/apt")).is_err());
    }

    #[test]
    fn what_named_packages_have_in_the_package_managers_folders_stays() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in [
            "usr/share/keyrings/vendor.gpg",
            "usr/share/keyrings/other.gpg",
            "etc/apt/apt.conf.d/01other",
            "usr/share/bug/vendor",
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let named = ["/usr/share/keyrings/vendor.gpg", "/usr/share/bug/vendor"];
        let packages = [
            package("vendor-keyring", &named),
            package("other-keyring", &["/usr/share/keyrings/other.gpg"]),
        ];
        let options = Options {
            named: vec!["vendor-keyring".to_owned()],
            ..Options::default()
        };
        drop_packages(root, &packages, &options).unwrap();
        let left = |path: &str| root.join(path).exists();
        assert!(left("usr/share/keyrings/vendor.gpg"));
        for gone in ["usr/share/keyrings/other.gpg", "etc/apt", "usr/share/bug"] {
            assert!(!left(gone), "{gone}");
        }
    }
}
