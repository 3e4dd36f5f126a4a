//! The pins of an earlier lock: kept where they still fit, as far as their packages can still be had.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::fetching::try_to_fetch;
use super::file::Lock;
use crate::debian::Mirrors;
use crate::debian::archive::Archive;
use crate::debian::mirror::{ARCHIVE, is_debians};
use crate::debian::packages::{self, Pin, Pool, Standing};
use crate::debian::pinned::{Deb, LockedPackage};
use crate::debian::relation;
use crate::debian::third_party::matches;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::install::deb;
use crate::recipe::LockRequest;

/// The word for the kubelet and the programs of its release.
const KUBELET: &str = "kubelet";

/// Packages to keep that their archives do not have any more.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) packages: Vec<LockedPackage>,
    /// The SHA-256 of those that came from Debian's backports.
    backports: BTreeSet<String>,
}

/// An earlier lock, and what of it is not to be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Earlier<'a> {
    /// The lock.
    pub(super) lock: &'a Lock,
    /// Packages that are chosen anew.
    pub(super) renewed: &'a [String],
    /// What the new lock is for: the archives that packages may come from now, and their versions.
    pub(super) request: &'a LockRequest,
}

impl Earlier<'_> {
    /// The packages to keep, each once.
    fn packages(&self) -> BTreeMap<Pin<'_>, &LockedPackage> {
        let all = self.lock.sets.values().flatten();
        all.filter(|package| !self.renewed.contains(&package.name))
            .map(|package| {
                let LockedPackage {
                    name,
                    version,
                    sha256,
                    ..
                } = package;
                ((name.as_str(), version.as_str(), sha256.as_str()), package)
            })
            .collect()
    }

    /// Which files they are.
    pub(super) fn pins(&self) -> BTreeSet<Pin<'_>> {
        self.packages().into_keys().collect()
    }

    /// Those that a pool does not have, although the recipe would take them from their archive.
    pub(super) fn gone(&self, pool: &Pool<'_>) -> Gone {
        let mut packages = self.packages();
        for package in &pool.packages {
            packages.remove(&package.pin());
        }
        let packages: Vec<LockedPackage> = packages
            .into_values()
            .filter(|package| self.may_come(package))
            .cloned()
            .collect();
        let backports = packages.iter();
        let backports = backports.filter(|package| self.is_backport(package, pool));
        Gone {
            backports: backports.map(|package| package.sha256.clone()).collect(),
            packages,
        }
    }

    /// Whether a package that is gone was taken from Debian's backports. The lock does not say so, but the recipe names it, and those of
    /// backports are newer than every other one of Debian's.
    fn is_backport(&self, package: &LockedPackage, pool: &Pool<'_>) -> bool {
        let LockedPackage { name, version, .. } = package;
        let mut sets = self.request.sets.iter();
        let mut others = pool.packages.iter();
        package.archive == ARCHIVE
            && sets.any(|set| set.backports.contains(name))
            && others.all(|other| {
                other.name != name
                    || other.standing != Standing::DEBIAN
                    || relation::compare(version, other.version) == Some(Ordering::Greater)
            })
    }

    /// Whether the recipe takes a package in its version, and from the archive that it is pinned of.
    fn may_come(&self, package: &LockedPackage) -> bool {
        let mut archives = self.request.archives.iter();
        let pattern = self.request.versions.get(&package.name);
        if pattern.is_some_and(|pattern| !matches(pattern, &package.version)) {
            return false;
        }
        is_debians(&package.archive)
            || archives.any(|archive| {
                archive.name == package.archive
                    && archive.allows(&package.name)
                    && archive.priority.is_none_or(|priority| priority > 0)
            })
    }

    /// Whether the kubelet is chosen anew.
    pub(super) fn renews_kubelet(&self) -> bool {
        self.renewed.iter().any(|name| name == KUBELET)
    }

    /// The names of a set's packages.
    pub(super) fn names(&self, set: &str) -> Vec<String> {
        let packages = self.lock.sets.get(set).into_iter().flatten();
        packages.map(|package| package.name.clone()).collect()
    }

    /// Refuses to renew what the lock does not have.
    ///
    /// # Errors
    /// Names the unknown ones, with the nearest name of each.
    pub(super) fn check(&self) -> Result<()> {
        match unknown(&names(self.lock), self.renewed) {
            Some(unknown) => bail!("the lock has no package {unknown}"),
            None => Ok(()),
        }
    }
}

/// The names that can be renewed: those of a lock's packages, and the kubelet.
pub(super) fn names(lock: &Lock) -> BTreeSet<&str> {
    let packages = lock.sets.values().flatten();
    let kubelet = lock.kubelet.as_ref().map(|_| KUBELET);
    packages
        .map(|package| package.name.as_str())
        .chain(kubelet)
        .collect()
}

/// Those of these names that are not known, with the nearest one of each, in words.
pub(super) fn unknown(known: &BTreeSet<&str>, renewed: &[String]) -> Option<String> {
    let unknown: Vec<String> = renewed
        .iter()
        .filter(|name| !known.contains(name.as_str()))
        .map(|name| {
            let near = known
                .iter()
                .map(|known| (strsim::damerau_levenshtein(known, name), *known))
                .min();
            match near {
                Some((distance, near)) if distance <= 2.max(name.len() / 4) => {
                    format!("{name}; the nearest name is {near}")
                }
                _ => name.clone(),
            }
        })
        .collect();
    (!unknown.is_empty()).then(|| unknown.join(", none "))
}

/// Adds packages of the earlier lock to the archive that it does not have any more, from the packages themselves. What can be had
/// nowhere is named: the present version is taken.
///
/// # Errors
/// If a package's file cannot be read.
pub(super) fn add_gone(
    session: &Session,
    earlier: &Earlier<'_>,
    gone: &Gone,
    (mirrors, from): (&Mirrors, (&[String], Option<&str>)),
    archive: &mut Archive,
    step: &Step,
) -> Result<()> {
    let packages = gone.packages.as_slice();
    let (debs, failures) = try_to_fetch(session, mirrors, from, earlier.lock, packages, step)?;
    for failure in failures {
        session
            .progress
            .warn(&format!("a pin cannot be kept: {failure}"));
    }
    let mut texts = BTreeMap::new();
    for Deb { package, path } in &debs {
        let of = (
            package.archive.as_str(),
            gone.backports.contains(&package.sha256),
        );
        let text: &mut String = texts.entry(of).or_default();
        text.push_str(&paragraph(package, path)?);
    }
    for (of, text) in texts {
        archive.add(of, text)?;
    }
    Ok(())
}

/// The control file of a package.
///
/// # Errors
/// If the file is not a package.
pub(super) fn control(path: &Path) -> Result<String> {
    let mut files = deb::control(path)?.into_iter();
    let control = files.find(|file| file.name == "control");
    let control = control.context("it has no control file")?;
    Ok(String::from_utf8(control.content)?)
}

/// A package's paragraph of an index, from its own control file.
fn paragraph(package: &LockedPackage, path: &Path) -> Result<String> {
    let about = || format!("reading {}", path.display());
    let text = control(path).with_context(about)?;
    let text = format!(
        "{}\nFilename: {}\nSize: {}\nSHA256: {}\n\n",
        text.trim_end(),
        package.path,
        package.size,
        package.sha256
    );
    let read = packages::read(&text, 0, Standing::DEBIAN).with_context(about)?;
    match read.as_slice() {
        [found] if found.name == package.name && found.version == package.version => Ok(text),
        _ => bail!(
            "{} is not {} {}, which the lock says that it is",
            path.display(),
            package.name,
            package.version
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::deb::tests::write;

    fn package(version: &str) -> LockedPackage {
        LockedPackage {
            name: "tool".to_owned(),
            version: version.to_owned(),
            architecture: "amd64".to_owned(),
            archive: "debian".to_owned(),
            path: "pool/tool.deb".to_owned(),
            size: 7,
            sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(),
            source: None,
        }
    }

    /// What is gone from the indexes comes back from the file, with its relations; a file that is something else is refused.
    #[test]
    fn a_package_speaks_for_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool.deb");
        let control = "Package: tool\nVersion: 1\nArchitecture: amd64\nDepends: lib (>= 2)\nDescription: a tool\n with two lines\n";
        write(&path, &[("control", 0o644, control)], b"", ".xz");
        let text = paragraph(&package("1"), &path).unwrap();
        let read = packages::read(&text, 0, Standing::DEBIAN).unwrap();
        assert_eq!(read[0].depends, "lib (>= 2)");
        assert_eq!((read[0].path, read[0].size), ("pool/tool.deb", 7));
        let error = paragraph(&package("2"), &path).unwrap_err().to_string();
        assert!(error.contains("is not tool 2"), "{error}");
    }

    #[test]
    fn what_the_lock_does_not_have_cannot_be_renewed() {
        let lock = Lock {
            sets: [("root".to_owned(), vec![package("1")])].into(),
            ..Lock::default()
        };
        let request = LockRequest {
            suite: String::new(),
            components: Vec::new(),
            archives: Vec::new(),
            debs: Vec::new(),
            versions: BTreeMap::new(),
            architecture: image::layout::Architecture::X86_64,
            sets: Vec::new(),
            kubelet: None,
            images: Vec::new(),
        };
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (renewed, expected) in [
            (names(&["tool"]), None),
            (names(&["tol"]), Some("the nearest name is tool")),
            (names(&["kubelet"]), Some("no package kubelet")),
        ] {
            let earlier = Earlier {
                lock: &lock,
                renewed: &renewed,
                request: &request,
            };
            let error = earlier.check().err().map(|error| error.to_string());
            assert_eq!(error.is_some(), expected.is_some(), "{error:?}");
            assert!(
                error
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default())
            );
        }
    }
}
