//! The choice of packages, as `apt-get install` makes it on an empty system, without recommended packages unless asked.
//!
//! apt's classic solver is a depth-first marking: the requested packages first, then `Pre-Depends` and `Depends` in the
//! order of the file; an alternative that is already marked satisfies, else the first available one is marked; for a
//! virtual name the provider with the best priority is taken. A solver for any consistent set finds other sets.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use super::packages::{Package, Pool};
use super::relation::{Relation, groups};

mod recommends;

/// The requirements for the solver.
#[derive(Clone, Debug)]
pub struct Requirements<'w> {
    /// The requested packages.
    pub packages: &'w [String],
    /// Packages that are taken from backports if they come into the set.
    pub backports: &'w [String],
    /// Whether Debian's essential packages are requested as well.
    pub essential: bool,
    /// Whether their dependencies are chosen too.
    pub dependencies: bool,
    /// Whether what they recommend is chosen too, as far as it fits.
    pub recommends: bool,
    /// Packages that a metapackage led to before: another version of their names is led to now (`linux-image-6.12.1-amd64` and
    /// `linux-image-6.12.2-amd64`), and theirs is taken.
    pub before: &'w [String],
}

/// One requirement that the pool does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No package has a requested name.
    Unknown(String),
    /// A requested name is that of several packages that provide it.
    Virtual {
        /// The name.
        name: String,
        /// Their names.
        providers: Vec<String>,
    },
    /// A dependency that the archive cannot satisfy, or a conflict inside the set.
    Broken {
        /// The requested or essential packages that lead to it.
        asked: Vec<String>,
        /// The problem with its chains of dependencies, for people.
        text: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "no package {name} in the archive"),
            Self::Virtual { name, providers } => write!(
                f,
                "{name} is a virtual package, which {} provide",
                providers.join(", ")
            ),
            Self::Broken { text, .. } => f.write_str(text),
        }
    }
}

/// Requirements that the pool does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsolved {
    /// The problems.
    pub problems: Vec<Problem>,
    /// The packages that they are about.
    pub names: BTreeSet<String>,
}

impl fmt::Display for Unsolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Unsolved {}

/// The chosen packages as indexes into the pool, sorted by name.
///
/// # Errors
/// Names all problems at once: unknown packages, dependencies that the archive cannot satisfy with the chain that leads to
/// them, and conflicts inside the set.
pub fn solve(
    pool: &Pool<'_>,
    architecture: &str,
    requirements: &Requirements<'_>,
) -> Result<Vec<usize>, Unsolved> {
    let mut marking = Marking {
        pool,
        architecture,
        backports: requirements.backports.iter().map(String::as_str).collect(),
        chosen: HashMap::new(),
        order: Vec::new(),
        expanded: HashSet::new(),
        asked_by: HashMap::new(),
        problems: Vec::new(),
        about: BTreeSet::new(),
    };
    let essential = if requirements.essential {
        pool.essential()
    } else {
        Vec::new()
    };
    let names = essential
        .into_iter()
        .chain(requirements.packages.iter().map(String::as_str));
    let mut asked = Vec::new();
    for name in names {
        match marking.named(name) {
            Some(id) if requirements.dependencies => asked.push(id),
            Some(id) => {
                let behind = marking.behind_metapackage(id);
                marking.parts(marking.before(behind, requirements.before), &mut asked);
            }
            None => marking.problems.push(marking.unknown(name)),
        }
    }
    for &id in &asked {
        marking.choose(id, None);
    }
    if requirements.dependencies {
        for &id in &asked {
            marking.expand(id);
        }
        if requirements.recommends {
            marking.recommended();
        }
        marking.conflicts();
    }
    if !marking.problems.is_empty() {
        return Err(Unsolved {
            problems: marking.problems,
            names: marking.about.into_iter().map(str::to_owned).collect(),
        });
    }
    let mut chosen: Vec<usize> = marking.chosen.into_values().collect();
    chosen.sort_by_key(|&id| pool.packages[id].name);
    Ok(chosen)
}

#[derive(Clone)]
struct Marking<'p, 'a> {
    pool: &'p Pool<'a>,
    architecture: &'p str,
    backports: HashSet<&'p str>,
    chosen: HashMap<&'a str, usize>,
    /// The same in the order of the choice.
    order: Vec<usize>,
    expanded: HashSet<usize>,
    /// The package whose dependency brought a package into the set.
    asked_by: HashMap<usize, usize>,
    problems: Vec<Problem>,
    /// Names of packages that the problems are about.
    about: BTreeSet<&'a str>,
}

impl<'a> Marking<'_, 'a> {
    fn package(&self, id: usize) -> &Package<'a> {
        &self.pool.packages[id]
    }

    /// The version of a name under these requirements.
    fn candidate(&self, name: &str) -> Option<usize> {
        let backport = self.pool.backport(name);
        if self.backports.contains(name) && backport.is_some() {
            return backport;
        }
        self.pool.normal(name)
    }

    fn is_candidate(&self, id: usize) -> bool {
        self.candidate(self.package(id).name) == Some(id)
    }

    /// A requested package: the one with this name, or the only provider of a virtual name.
    fn named(&self, name: &str) -> Option<usize> {
        self.candidate(name).or_else(|| {
            let mut providers = self
                .pool
                .providers(name)
                .iter()
                .map(|&(id, _)| id)
                .filter(|&id| self.is_candidate(id));
            let only = providers.next()?;
            providers.next().is_none().then_some(only)
        })
    }

    /// Follows a metapackage: it depends on exactly one package, of the same source in the same version.
    fn behind_metapackage(&self, id: usize) -> usize {
        let package = self.package(id);
        let mut depends = groups(package.depends);
        let (Some(only), None) = (depends.next(), depends.next()) else {
            return id;
        };
        let [relation] = only.as_slice() else {
            return id;
        };
        let exact = matches!(relation.version, Some((super::relation::Operator::Equal, version)) if version == package.version);
        match self.fitting(relation, false) {
            Some(behind) if exact && self.package(behind).source == package.source => behind,
            _ => id,
        }
    }

    /// A package with those that it depends on in exactly its own version, if their names begin alike: Debian's later kernels are
    /// several packages of two sources, as `linux-image-…`, `linux-binary-…` and `linux-modules-…`.
    fn parts(&self, id: usize, found: &mut Vec<usize>) {
        if found.contains(&id) {
            return;
        }
        found.push(id);
        let package = self.package(id);
        for group in groups(package.depends) {
            let [relation] = group.as_slice() else {
                continue;
            };
            let exact = matches!(relation.version, Some((super::relation::Operator::Equal, version)) if version == package.version);
            let first = |name: &str| name.split('-').next().map(str::to_owned);
            if exact
                && first(relation.name) == first(package.name)
                && let Some(part) = self.fitting(relation, true)
            {
                self.parts(part, found);
            }
        }
    }

    /// The package of before whose name differs from this one's in its versions alone, if it is there.
    fn before(&self, id: usize, before: &[String]) -> usize {
        let words = |name: &str| -> Vec<String> {
            let words = name.split('-');
            let names =
                words.filter(|word| !word.starts_with(|first: char| first.is_ascii_digit()));
            names.map(str::to_owned).collect()
        };
        let own = words(self.package(id).name);
        let found = before
            .iter()
            .filter(|name| words(name) == own && self.pool.is_kept(name))
            .find_map(|name| self.candidate(name));
        found.unwrap_or(id)
    }

    fn choose(&mut self, id: usize, asked_by: Option<usize>) {
        if self.chosen.insert(self.package(id).name, id).is_none() {
            self.order.push(id);
            if let Some(asked_by) = asked_by {
                self.asked_by.insert(id, asked_by);
            }
        }
    }

    fn expand(&mut self, id: usize) {
        if !self.expanded.insert(id) {
            return;
        }
        let (pre_depends, depends) = (self.package(id).pre_depends, self.package(id).depends);
        for group in groups(pre_depends).chain(groups(depends)) {
            if group.iter().any(|relation| self.satisfied(relation)) {
                continue;
            }
            let pick = group
                .iter()
                .find_map(|relation| self.fitting(relation, false))
                // An earlier choice that does not fit is given up before backports are looked at.
                .or_else(|| {
                    let kept = group.iter().any(|relation| self.is_kept(relation.name));
                    if kept {
                        return None;
                    }
                    group
                        .iter()
                        .find_map(|relation| self.fitting(relation, true))
                });
            match pick {
                Some(next) => {
                    self.choose(next, Some(id));
                    self.expand(next);
                }
                None => {
                    self.problems.push(self.unsatisfied(id, &group));
                    self.about.insert(self.package(id).name);
                    for relation in &group {
                        self.about_relation(relation.name);
                    }
                }
            }
        }
    }

    fn is_kept(&self, name: &str) -> bool {
        let providers = self.pool.providers(name).iter();
        let mut names = providers.map(|&(id, _)| self.package(id).name);
        self.pool.is_kept(name) || names.any(|name| self.pool.is_kept(name))
    }

    /// A problem is about the packages of this name, and those that provide it.
    fn about_relation(&mut self, name: &str) {
        let pool = self.pool;
        let own = pool.normal(name).into_iter().chain(pool.backport(name));
        let providers = pool.providers(name).iter().map(|&(id, _)| id);
        for id in own.chain(providers) {
            self.about.insert(pool.packages[id].name);
        }
    }

    fn right_architecture(&self, relation: &Relation<'_>) -> bool {
        relation.architecture.is_none_or(|wanted| {
            matches!(wanted, "any" | "all" | "native") || wanted == self.architecture
        })
    }

    /// Whether a chosen package satisfies the relation.
    fn satisfied(&self, relation: &Relation<'_>) -> bool {
        self.right_architecture(relation)
            && (self
                .chosen
                .get(relation.name)
                .is_some_and(|&id| relation.accepts(self.package(id).version))
                || self
                    .pool
                    .providers(relation.name)
                    .iter()
                    .any(|&(id, version)| self.is_chosen(id) && provides(relation, version)))
    }

    fn is_chosen(&self, id: usize) -> bool {
        self.chosen.get(self.package(id).name) == Some(&id)
    }

    /// The package to choose for a relation: the one with that name, else the provider with the best priority.
    /// With `from_backports`, backports that the recipe does not name are candidates too.
    fn fitting(&self, relation: &Relation<'_>, from_backports: bool) -> Option<usize> {
        if !self.right_architecture(relation) {
            return None;
        }
        let own = self
            .candidate(relation.name)
            .into_iter()
            .chain(self.pool.backport(relation.name).filter(|_| from_backports))
            .find(|&id| relation.accepts(self.package(id).version));
        own.filter(|&id| self.free(id)).or_else(|| {
            self.pool
                .providers(relation.name)
                .iter()
                .filter(|&&(id, version)| {
                    (from_backports || self.is_candidate(id))
                        && self.free(id)
                        && provides(relation, version)
                })
                .map(|&(id, _)| id)
                // The first of the best priority: `min_by_key` keeps the earliest.
                .min_by_key(|&id| self.package(id).priority)
        })
    }

    /// Whether no other version of the package is already chosen.
    fn free(&self, id: usize) -> bool {
        self.chosen
            .get(self.package(id).name)
            .is_none_or(|&chosen| chosen == id)
    }

    /// Finds chosen packages that exclude each other. A package never excludes itself by a name that it provides.
    fn conflicts(&mut self) {
        let mut ids: Vec<usize> = self.chosen.values().copied().collect();
        ids.sort_by_key(|&id| self.package(id).name);
        let mut found = Vec::new();
        for &id in &ids {
            let package = self.package(id);
            let excluded = groups(package.conflicts)
                .map(|group| ("conflicts with", group))
                .chain(groups(package.breaks).map(|group| ("breaks", group)));
            for (word, group) in excluded {
                for relation in &group {
                    for &other in &ids {
                        if other != id
                            && self.right_architecture(relation)
                            && self.is(other, relation)
                        {
                            let text = format!(
                                "{} {word} {relation}, which is {} {} here ({}; {})",
                                self.label(id),
                                self.package(other).name,
                                self.package(other).version,
                                self.chain(id),
                                self.chain(other),
                            );
                            let asked = vec![self.root_of(id), self.root_of(other)];
                            let problem = Problem::Broken { asked, text };
                            found.push((problem, [package.name, self.package(other).name]));
                        }
                    }
                }
            }
        }
        for (problem, names) in found {
            self.problems.push(problem);
            self.about.extend(names);
        }
    }

    fn is(&self, id: usize, relation: &Relation<'_>) -> bool {
        let package = self.package(id);
        (package.name == relation.name && relation.accepts(package.version))
            || self
                .pool
                .providers(relation.name)
                .iter()
                .any(|&(provider, version)| provider == id && provides(relation, version))
    }

    fn label(&self, id: usize) -> String {
        format!("{} {}", self.package(id).name, self.package(id).version)
    }

    /// The packages by whose dependencies one came into the set, the requested one first.
    fn led_by(&self, id: usize) -> Vec<&'a str> {
        let mut names = vec![self.package(id).name];
        let mut at = id;
        while let Some(&by) = self.asked_by.get(&at) {
            names.push(self.package(by).name);
            at = by;
        }
        names.reverse();
        names
    }

    fn root_of(&self, id: usize) -> String {
        self.led_by(id)
            .first()
            .copied()
            .unwrap_or_default()
            .to_owned()
    }

    /// The chain of dependencies that brought a package into the set.
    fn chain(&self, id: usize) -> String {
        match self.led_by(id).as_slice() {
            [only] => format!("{only} is asked for"),
            names => names.join(" → "),
        }
    }

    fn unsatisfied(&self, id: usize, group: &[Relation<'_>]) -> Problem {
        let wanted: Vec<String> = group.iter().map(ToString::to_string).collect();
        let found: Vec<String> = group
            .iter()
            .filter_map(|relation| {
                let id = self.candidate(relation.name)?;
                Some(self.label(id))
            })
            .collect();
        let found = match found.as_slice() {
            [] => "which the archive does not have".to_owned(),
            _ => format!("but the archive has {}", found.join(", ")),
        };
        let text = format!(
            "{} depends on {}, {found} ({})",
            self.label(id),
            wanted.join(" | "),
            self.chain(id)
        );
        let asked = vec![self.root_of(id)];
        Problem::Broken { asked, text }
    }

    fn unknown(&self, name: &str) -> Problem {
        let providers = self.pool.providers(name).iter();
        let mut providers: Vec<String> = providers
            .map(|&(id, _)| self.package(id).name.to_owned())
            .collect();
        // Several versions of a package provide the same.
        providers.sort_unstable();
        providers.dedup();
        let name = name.to_owned();
        match providers.is_empty() {
            true => Problem::Unknown(name),
            false => Problem::Virtual { name, providers },
        }
    }
}

/// Whether a provided name, with its version, satisfies the relation. Without a version
/// it satisfies only relations without one (Debian Policy 7.5).
fn provides(relation: &Relation<'_>, version: Option<&str>) -> bool {
    match version {
        Some(version) => relation.accepts(version),
        None => relation.version.is_none(),
    }
}

#[cfg(test)]
mod tests;
