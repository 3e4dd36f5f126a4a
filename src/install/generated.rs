//! Generated files: what packages' scripts made in a tree, without what follows from the packages alone. The rest is suspect: a
//! secret or an identity is made of entropy, of the clock, or of the machine's name.
//!
//! A file is a script's if it was written after the packages were unpacked. What makes the known ones is listed here, so that a
//! file that nobody has thought of is suspect.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::certificates::CA_LIST;
use super::package::Unpacked;
use super::report::Made;
use crate::host::tree;

/// Files and folders that are a function of the packages, by what makes them; a `*` at the end matches any rest.
const PURE: &[&str] = &[
    // ldconfig.
    "/etc/ld.so.cache",
    // The tools of users and groups. A password in it is looked for.
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/subuid",
    "/etc/subgid",
    "/etc/shells",
    // pam-auth-update.
    "/etc/pam.d/common-*",
    // systemd-hwdb and journalctl.
    "/usr/lib/udev/hwdb.bin",
    "/var/lib/systemd/catalog/database",
    "/var/lib/systemd/deb-systemd-*",
    // update-ca-certificates.
    CA_LIST,
    "/etc/ssl/certs/ca-certificates.crt",
    // Texts in the scripts of kmod, netbase, libwrap0, mdadm, locales, postfix and postgresql-common.
    "/etc/modules",
    "/etc/networks",
    "/etc/hosts.allow",
    "/etc/hosts.deny",
    "/etc/default/mdadm",
    "/etc/locale.conf",
    "/etc/locale.gen",
    "/etc/aliases",
    "/etc/postgresql-common/root.crt",
    "/etc/postgresql-common/createcluster.conf",
    // dh_apparmor.
    "/etc/apparmor.d/local/*",
    "/etc/apparmor.d/tunables/home.d/ubuntu",
    "/etc/apparmor.d/tunables/xdg-user-dirs.d/site.local",
    // The databases of packages, where they stay. debconf's passwords are not in it.
    "/var/lib/dpkg",
    "/var/lib/ucf",
    "/var/lib/pam",
    "/var/lib/shells.state",
    "/var/cache/debconf/config.dat*",
    "/var/cache/debconf/templates.dat*",
    // Slipway.
    "/usr/lib/slipway",
    "/usr/lib/systemd/system/slipway-*",
    "/etc/machine-id",
];

/// The moment after which a file is a script's: the time of a file written now, since a file system's clock may be behind.
pub(super) fn now(folder: &Path) -> Result<(i64, i64)> {
    let file =
        tempfile::NamedTempFile::new_in(folder).context("reading the file system's clock")?;
    let meta = file.as_file().metadata()?;
    Ok((meta.mtime(), meta.mtime_nsec()))
}

/// The suspect files of a configured and cleaned tree.
pub(super) fn suspects(root: &Path, packages: &[Unpacked], since: (i64, i64)) -> Result<Vec<Made>> {
    let items = tree::walk(root)?;
    let files = || items.iter().filter(|item| item.meta.is_file());
    let is_made = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec()) >= since;
    let mut found = Vec::new();
    for item in files().filter(|item| is_made(&item.meta) && item.meta.len() > 0) {
        let is_pure = PURE.iter().any(|pattern| fits(pattern, &item.inside));
        if !is_pure || has_password(&item.inside, &item.path)? {
            found.push(item);
        }
    }
    // Most of the rest is a copy of a package's file.
    let sizes: HashSet<u64> = found.iter().map(|item| item.meta.len()).collect();
    let mut packaged: HashMap<u64, Vec<&PathBuf>> = HashMap::new();
    for item in files().filter(|item| !is_made(&item.meta) && sizes.contains(&item.meta.len())) {
        packaged
            .entry(item.meta.len())
            .or_default()
            .push(&item.path);
    }
    let mut suspects = Vec::new();
    for item in found {
        let content = fs::read(&item.path)?;
        let alike = packaged.get(&item.meta.len()).into_iter().flatten();
        let mut alike = alike.filter(|path| fs::read(path).is_ok_and(|other| other == content));
        if alike.next().is_none() {
            suspects.push(Made {
                path: item.inside.clone(),
                package: maker(packages, &item.inside).map(str::to_owned),
            });
        }
    }
    Ok(suspects)
}

fn fits(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => Path::new(path).starts_with(pattern),
    }
}

/// Whether a file of passwords has a hash of one: `*`, `!` and an empty field are none.
fn has_password(inside: &str, path: &Path) -> Result<bool> {
    if !["/etc/shadow", "/etc/gshadow"].contains(&inside) {
        return Ok(false);
    }
    let text = fs::read_to_string(path).with_context(|| format!("reading {inside}"))?;
    let mut fields = text.lines().filter_map(|line| line.split(':').nth(1));
    Ok(fields.any(|field| !field.trim_start_matches(['!', '*']).is_empty()))
}

/// The package whose script made a file, as far as it can be told: the only one whose scripts name it, else the only one that
/// has the folder that it is in.
pub(super) fn maker<'a>(packages: &'a [Unpacked], path: &str) -> Option<&'a str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    for word in [path, name] {
        let naming = packages.iter().filter(|package| {
            let scripts = ["preinst", "postinst", "config"].map(|script| package.text(script));
            word.len() > 4 && scripts.iter().any(|script| script.contains(word))
        });
        if let Some(only) = only(naming) {
            return Some(only);
        }
    }
    let folders = Path::new(path).ancestors().skip(1);
    folders
        .take_while(|folder| folder.components().count() > 2)
        .find_map(|folder| {
            let folder = folder.to_str()?;
            only(packages.iter().filter(|package| {
                let mut paths = package.paths.iter();
                paths.any(|path| path.trim_end_matches('/') == folder)
            }))
        })
}

fn only<'a>(packages: impl Iterator<Item = &'a Unpacked>) -> Option<&'a str> {
    let names: BTreeSet<&str> = packages.map(|package| package.field("Package")).collect();
    match names.len() {
        1 => names.first().copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::deb::ControlFile;

    fn package(name: &str, postinst: &str, paths: &[&str]) -> Unpacked {
        let file = |name: &str, content: String| ControlFile {
            name: name.into(),
            mode: 0o644,
            content: content.into_bytes(),
        };
        Unpacked {
            control: vec![
                file("control", format!("Package: {name}\n")),
                file("postinst", postinst.to_owned()),
            ],
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
        }
    }

    #[test]
    fn what_no_mechanism_explains_is_suspect() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("usr/share/app/default.conf", "packaged");
        write("etc/app/own.conf", "of the package");
        std::thread::sleep(std::time::Duration::from_millis(20));
        let since = now(root).unwrap();
        let empty = suspects(root, &[], since).unwrap();
        assert!(empty.is_empty(), "{empty:?}");
        write("etc/app/copy.conf", "packaged");
        write("etc/app/key", "secret");
        write("etc/app/empty", "");
        write("etc/ld.so.cache", "cache");
        write("etc/pam.d/common-auth", "auth");
        write("etc/shadow", "root:*:1::::::\ndaemon:!*:1::::::\n");
        let packages = [
            package("app", "make-key > /etc/app/key\n", &["/etc", "/etc/app"]),
            package("base", "", &["/etc"]),
        ];
        let found = suspects(root, &packages, since).unwrap();
        let expected = Made {
            path: "/etc/app/key".into(),
            package: Some("app".into()),
        };
        assert_eq!(found, [expected]);
        write("etc/shadow", "root:$y$j9T$salt$hash:1::::::\n");
        let found = suspects(root, &packages, since).unwrap();
        assert_eq!(found[1].path, "/etc/shadow");
    }

    #[test]
    fn the_maker_is_who_names_the_file_or_has_its_folder() {
        let packages = [
            package("one", "touch /etc/x/secret.key", &["/etc"]),
            package("two", "", &["/etc", "/var/lib/two"]),
        ];
        assert_eq!(maker(&packages, "/etc/x/secret.key"), Some("one"));
        assert_eq!(maker(&packages, "/var/lib/two/deep/state"), Some("two"));
        assert_eq!(maker(&packages, "/etc/unknown"), None);
    }
}
