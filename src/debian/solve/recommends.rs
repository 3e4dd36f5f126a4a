//! Recommended packages: chosen after all dependencies, as far as they fit.

use super::Marking;
use crate::debian::relation::groups;

impl Marking<'_, '_> {
    /// Chooses what the chosen packages recommend, and what these recommend, in the order of the choice. What the archive does not
    /// have, what lacks a dependency, and what a chosen package excludes is left out: it is no requirement.
    pub(super) fn recommended(&mut self) {
        let mut next = 0;
        while let Some(&id) = self.order.get(next) {
            next += 1;
            for group in groups(self.package(id).recommends) {
                if group.iter().any(|relation| self.satisfied(relation)) {
                    continue;
                }
                for relation in &group {
                    let wanted = self.fitting(relation, false);
                    if let Some(with) = wanted.and_then(|wanted| self.with(wanted, id)) {
                        *self = with;
                        break;
                    }
                }
            }
        }
    }

    /// The choice with one package more, and what it depends on, if all of that fits.
    fn with(&self, wanted: usize, by: usize) -> Option<Self> {
        let mut with = self.clone();
        with.choose(wanted, Some(by));
        with.expand(wanted);
        let new = with.order.get(self.order.len()..).unwrap_or_default();
        let fits = with.problems.len() == self.problems.len()
            && new.iter().all(|&id| !with.is_excluded(id));
        fits.then_some(with)
    }

    /// Whether a package and another chosen one exclude each other.
    fn is_excluded(&self, id: usize) -> bool {
        let excludes = |one: usize, other: usize| {
            let package = self.package(one);
            let excluded = groups(package.conflicts).chain(groups(package.breaks));
            excluded
                .flatten()
                .any(|relation| self.right_architecture(&relation) && self.is(other, &relation))
        };
        let mut others = self.order.iter().filter(|&&other| other != id);
        others.any(|&other| excludes(id, other) || excludes(other, id))
    }
}
