//! Holds the names and versions that a recipe gives against what the archives have.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::Archive;
use crate::debian::packages::Package;
use crate::debian::relation;
use crate::debian::third_party;

/// How many versions of a package are named.
const NAMED: usize = 8;

impl Archive {
    /// Checks that each archive beside Debian's has the packages that may be taken from it, and that each package whose
    /// version is given has such a version.
    ///
    /// # Errors
    /// Names all that are not there, with the nearest names and the versions that are.
    pub fn check_names(&self) -> Result<()> {
        let wants_names = |at: usize| self.suites[at].third_party.is_some();
        let mut packages: Vec<(usize, Package<'_>)> = Vec::new();
        for (at, text) in &self.texts {
            if wants_names(*at) || !self.versions.is_empty() {
                let read = self.packages(*at, text)?;
                packages.extend(read.into_iter().map(|package| (*at, package)));
            }
        }
        let mut mistakes = self.missing_packages(&packages);
        packages.retain(|(at, package)| self.suites[*at].allows(package));
        mistakes.extend(self.missing_versions(&packages));
        let mistakes: Vec<String> = mistakes.into_iter().collect();
        ensure!(mistakes.is_empty(), "{}", mistakes.join("\n"));
        Ok(())
    }

    /// Which versions alone the recipe allows of these packages, in words: what does not fit may fit without.
    #[must_use]
    pub fn held(&self, names: &BTreeSet<String>) -> Option<String> {
        let held = self
            .versions
            .iter()
            .filter(|(name, _)| names.contains(*name));
        let held: Vec<String> = held
            .map(|(name, wanted)| format!("{name} {wanted}"))
            .collect();
        (!held.is_empty()).then(|| {
            let held = held.join(", ");
            format!("[debian.versions] of the recipe allows no others than {held}")
        })
    }

    fn missing_packages(&self, packages: &[(usize, Package<'_>)]) -> BTreeSet<String> {
        let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (at, package) in packages {
            let archive = self.suites[*at].suite.archive.as_str();
            names.entry(archive).or_default().insert(package.name);
        }
        let mut mistakes = BTreeSet::new();
        let suites = self.suites.iter();
        for archive in suites.filter_map(|read| read.third_party.as_ref()) {
            let has = names.remove(archive.name.as_str()).unwrap_or_default();
            for pattern in &archive.packages {
                if !has.iter().any(|name| third_party::matches(pattern, name)) {
                    mistakes.insert(format!(
                        "archive {} has no package {pattern} for {}, which its `packages` in the recipe names{}",
                        archive.name,
                        self.architecture,
                        nearest(pattern, &has)
                    ));
                }
            }
            names.insert(&archive.name, has);
        }
        mistakes
    }

    fn missing_versions(&self, packages: &[(usize, Package<'_>)]) -> BTreeSet<String> {
        let mut mistakes = BTreeSet::new();
        for (name, pattern) in &self.versions {
            let of_name = packages.iter().filter(|(_, package)| package.name == name);
            let mut has: Vec<&(usize, Package<'_>)> = of_name.collect();
            if has.is_empty() {
                let names = packages.iter().map(|(_, package)| package.name).collect();
                mistakes.insert(format!(
                    "[debian.versions] of the recipe names {name}, which no archive has{}",
                    nearest(name, &names)
                ));
                continue;
            }
            let mut versions = has.iter().map(|(_, package)| package.version);
            if versions.any(|version| third_party::matches(pattern, version)) {
                continue;
            }
            has.sort_by(|(_, a), (_, b)| {
                let order = relation::compare(b.version, a.version);
                order.unwrap_or(std::cmp::Ordering::Equal)
            });
            let mut shown: Vec<String> = has
                .iter()
                .map(|(at, package)| {
                    let suite = &self.suites[*at].suite;
                    format!("{} ({} of {})", package.version, suite.name, suite.archive)
                })
                .collect();
            shown.dedup();
            let more = shown.len().saturating_sub(NAMED);
            shown.truncate(NAMED);
            if more > 0 {
                shown.push(format!("and {more} more"));
            }
            mistakes.insert(format!(
                "[debian.versions] of the recipe wants {name} {pattern}, and the archives have {}; a version that is \
                 gone from them is kept only where a lock pins it, until that is renewed",
                shown.join(", ")
            ));
        }
        mistakes
    }
}

fn nearest(wanted: &str, names: &BTreeSet<&str>) -> String {
    let near = names
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, wanted), *known))
        .filter(|(distance, _)| *distance <= 2.max(wanted.len() / 4))
        .min();
    near.map_or_else(String::new, |(_, name)| {
        format!("; the nearest name is {name}")
    })
}
