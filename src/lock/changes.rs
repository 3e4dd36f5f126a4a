//! What differs between two locks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::file::Lock;

/// A package or a program that two locks have otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// The sets that it is in, in one lock or the other; none for a program.
    pub sets: BTreeSet<String>,
    /// The version of the earlier lock, if it is there.
    pub from: Option<String>,
    /// The version of the later lock, if it is there.
    pub to: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (&self.from, &self.to) {
            (None, Some(to)) => write!(f, "+ {name} {to}")?,
            (Some(from), None) => write!(f, "- {name} {from}")?,
            (Some(from), Some(to)) if from == to => write!(f, "~ {name} {to}, other bytes")?,
            (from, to) => {
                let text = |version: &Option<String>| version.clone().unwrap_or_default();
                write!(f, "~ {name} {} → {}", text(from), text(to))?;
            }
        }
        if !self.sets.is_empty() {
            let sets: Vec<&str> = self.sets.iter().map(String::as_str).collect();
            write!(f, " ({})", sets.join(", "))?;
        }
        Ok(())
    }
}

/// The changes from one lock to another: packages by name, then programs.
#[must_use]
pub fn changes(from: &Lock, to: &Lock) -> Vec<Change> {
    let mut sets: BTreeMap<Difference, BTreeSet<String>> = BTreeMap::new();
    let names: BTreeSet<&String> = from.sets.keys().chain(to.sets.keys()).collect();
    for set in names {
        let (old, new) = (packages(from, set), packages(to, set));
        for (name, found) in difference(&old, &new) {
            sets.entry((name, found)).or_default().insert(set.clone());
        }
    }
    let mut all: Vec<Change> = sets
        .into_iter()
        .map(|((name, (from, to)), sets)| Change {
            name,
            sets,
            from,
            to,
        })
        .collect();
    for (name, (from, to)) in difference(&programs(from), &programs(to)) {
        all.push(Change {
            name,
            sets: BTreeSet::new(),
            from,
            to,
        });
    }
    all
}

/// A name with its versions before and after.
type Difference = (String, (Option<String>, Option<String>));

/// Version and digest by name.
type Pins = BTreeMap<String, (String, String)>;

fn packages(lock: &Lock, set: &str) -> Pins {
    let packages = lock.sets.get(set).into_iter().flatten();
    packages
        .map(|package| {
            let pin = (package.version.clone(), package.sha256.clone());
            (package.name.clone(), pin)
        })
        .collect()
}

fn programs(lock: &Lock) -> Pins {
    let kubelet = lock.kubelet.iter().map(|program| ("kubelet", program));
    let components = lock
        .components
        .iter()
        .map(|(name, program)| (name.as_str(), program));
    let programs = kubelet.chain(components).map(|(name, program)| {
        let pin = (program.version.clone(), program.sha256.clone());
        (name.to_owned(), pin)
    });
    let images = lock.images.iter().map(|(name, reference)| {
        let (image, digest) = reference.split_once('@').unwrap_or((reference, ""));
        let pin = (image.to_owned(), digest.to_owned());
        (format!("the image {name}"), pin)
    });
    programs.chain(images).collect()
}

fn difference(old: &Pins, new: &Pins) -> Vec<Difference> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name));
    differing
        .map(|name| {
            let version = |pins: &Pins| pins.get(name).map(|(version, _)| version.clone());
            (name.clone(), (version(old), version(new)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debian::pinned::LockedPackage;

    fn lock(sets: &[(&str, &[&str])]) -> Lock {
        let package = |pin: &&str| {
            let (name, version) = pin.split_once(' ').unwrap();
            LockedPackage {
                name: name.to_owned(),
                version: version.to_owned(),
                architecture: "amd64".to_owned(),
                archive: "debian".to_owned(),
                path: "a".to_owned(),
                size: 1,
                sha256: version.to_owned(),
                source: None,
            }
        };
        Lock {
            sets: sets
                .iter()
                .map(|(set, pins)| ((*set).to_owned(), pins.iter().map(package).collect()))
                .collect(),
            ..Lock::default()
        }
    }

    #[test]
    fn each_change_is_a_line_with_its_sets() {
        let old = lock(&[("root", &["a 1", "b 1", "c 1"]), ("tools", &["b 1"])]);
        let new = lock(&[("root", &["a 1", "b 2", "d 1"]), ("tools", &["b 2"])]);
        let lines: Vec<String> = changes(&old, &new)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            ["~ b 1 → 2 (root, tools)", "- c 1 (root)", "+ d 1 (root)"]
        );
        assert!(changes(&new, &new).is_empty());
    }
}
