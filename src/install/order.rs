//! The order of an installation: waves of packages that are unpacked together.
//!
//! Wave 0 is the essential packages with their dependencies, which is all that a maintainer script may use without
//! asking. A package that pre-depends on others comes in a wave after them, and they are configured in between.

use std::collections::{BTreeSet, HashMap};

use super::package::Unpacked;
use crate::debian::relation;

/// The dependencies among the packages of a tree.
#[derive(Debug)]
pub(super) struct Order {
    /// The packages of each wave, each after its dependencies as far as there is no circle.
    pub(super) waves: Vec<Vec<usize>>,
    /// What each package needs before it is unpacked.
    before: Vec<Vec<usize>>,
    /// What it needs before it is configured, those above included.
    needs: Vec<Vec<usize>>,
}

impl Order {
    /// Puts the packages in order; in a circle the order of the list decides.
    pub(super) fn of(packages: &[Unpacked]) -> Self {
        let by_name = names(packages);
        let needs = |fields: &[&str]| -> Vec<Vec<usize>> {
            let of = |package| needed(package, fields, &by_name);
            packages.iter().map(of).collect()
        };
        let mut order = Self {
            waves: Vec::new(),
            before: needs(&["Pre-Depends"]),
            needs: needs(&["Pre-Depends", "Depends"]),
        };
        let essential = (0..packages.len()).filter(|at| packages[*at].field("Essential") == "yes");
        let base = order.closure(essential);
        let mut levels = vec![None; packages.len()];
        for at in base {
            levels[at] = Some(0);
        }
        for at in 0..packages.len() {
            order.level(at, &mut levels);
        }
        let mut seen = vec![false; packages.len()];
        let mut sorted = Vec::new();
        for at in 0..packages.len() {
            order.visit(at, &mut seen, &mut sorted);
        }
        for at in sorted {
            let level = levels[at].unwrap_or(1);
            if order.waves.len() <= level {
                order.waves.resize(level + 1, Vec::new());
            }
            order.waves[level].push(at);
        }
        order.waves.retain(|wave| !wave.is_empty());
        order
    }

    /// The position of each package over all waves.
    pub(super) fn ranks(&self) -> Vec<usize> {
        let mut ranks = vec![0; self.needs.len()];
        for (rank, at) in self.waves.iter().flatten().enumerate() {
            ranks[*at] = rank;
        }
        ranks
    }

    /// What has to be configured before the packages of a wave are unpacked, sorted.
    pub(super) fn configured_before(&self, wave: usize) -> Vec<usize> {
        let before = self.waves[wave].iter().flat_map(|at| &self.before[*at]);
        self.closure(before.copied()).into_iter().collect()
    }

    /// The packages, and all that they need to be configured.
    fn closure(&self, from: impl Iterator<Item = usize>) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: Vec<usize> = from.collect();
        while let Some(at) = open.pop() {
            if found.insert(at) {
                open.extend(&self.needs[at]);
            }
        }
        found
    }

    /// The wave of a package: after all that has to be configured before it.
    fn level(&self, at: usize, levels: &mut Vec<Option<usize>>) -> usize {
        if let Some(level) = levels[at] {
            return level;
        }
        // Against circles, which Debian policy 7.2 forbids here.
        levels[at] = Some(1);
        let before = self.closure(self.before[at].iter().copied());
        let last = before.into_iter().filter(|other| *other != at);
        let level = last.map(|other| self.level(other, levels) + 1).max();
        let level = level.unwrap_or(1);
        levels[at] = Some(level);
        level
    }

    fn visit(&self, at: usize, seen: &mut [bool], sorted: &mut Vec<usize>) {
        if std::mem::replace(&mut seen[at], true) {
            return;
        }
        for next in &self.needs[at] {
            self.visit(*next, seen, sorted);
        }
        sorted.push(at);
    }
}

/// The package of each name, also of names that packages provide.
fn names(packages: &[Unpacked]) -> HashMap<&str, usize> {
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (at, package) in packages.iter().enumerate() {
        for provided in relation::groups(package.field("Provides")).flatten() {
            by_name.entry(provided.name).or_insert(at);
        }
    }
    for (at, package) in packages.iter().enumerate() {
        by_name.insert(package.name(), at);
    }
    by_name
}

fn needed(package: &Unpacked, fields: &[&str], by_name: &HashMap<&str, usize>) -> Vec<usize> {
    let first = |group: Vec<relation::Relation<'_>>| {
        group
            .iter()
            .find_map(|other| by_name.get(other.name).copied())
    };
    fields
        .iter()
        .flat_map(|field| relation::groups(package.field(field)).filter_map(first))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waves(controls: &[&str]) -> Vec<Vec<String>> {
        let packages: Vec<Unpacked> = controls.iter().map(|text| Unpacked::of(text)).collect();
        let names = |wave: &Vec<usize>| {
            let name = |at: &usize| packages[*at].name().to_owned();
            wave.iter().map(name).collect()
        };
        Order::of(&packages).waves.iter().map(names).collect()
    }

    #[test]
    fn dependencies_come_first_and_circles_end() {
        let found = waves(&[
            "Package: app\nDepends: lib (>= 1) | other, shell,\n virtual\n",
            "Package: shell\nDepends: lib:any\n",
            "Package: lib\nDepends: base\n",
            "Package: base\nDepends: lib\n",
            "Package: real\nProvides: virtual (= 1)\n",
        ]);
        assert_eq!(found, [["base", "lib", "shell", "real", "app"]]);
    }

    #[test]
    fn a_wave_comes_after_what_its_packages_pre_depend_on() {
        let found = waves(&[
            "Package: app\nDepends: init\n",
            "Package: init\nPre-Depends: manager\n",
            "Package: manager\nPre-Depends: libc\nDepends: bus\n",
            "Package: bus\nDepends: manager\n",
            "Package: sh\nEssential: yes\nDepends: libc\n",
            "Package: libc\n",
        ]);
        let expected: [&[&str]; 3] = [&["libc", "sh"], &["bus", "manager", "app"], &["init"]];
        assert_eq!(found, expected);
    }
}
