//! The index of an archive's packages, read from `Packages` files.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::deb822::{Malformed, Reader};
use super::relation;

/// A package's priority, the most important first (Debian Policy 2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A system without it is broken.
    Required,
    /// Expected on every system.
    Important,
    /// Part of a small but complete system.
    Standard,
    /// Everything else.
    #[default]
    Optional,
    /// Obsolete name, once for packages that conflict with others.
    Extra,
}

impl Priority {
    fn named(text: &str) -> Self {
        match text {
            "required" => Self::Required,
            "important" => Self::Important,
            "standard" => Self::Standard,
            "extra" => Self::Extra,
            _ => Self::Optional,
        }
    }
}

/// How the packages of an index stand beside those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether they are Debian's own.
    pub debian: bool,
    /// Whether they come from backports, which are used only on request.
    pub backport: bool,
    /// Their priority, as `apt_preferences(5)` defines it: that of a higher one is taken, whatever the versions.
    pub priority: i32,
}

/// The priority of an archive that none is set for.
pub const USUAL: i32 = 500;

impl Standing {
    /// Packages of Debian's suites.
    pub const DEBIAN: Self = Self {
        debian: true,
        backport: false,
        priority: USUAL,
    };
    /// Packages of Debian's backports.
    pub const BACKPORTS: Self = Self {
        backport: true,
        ..Self::DEBIAN
    };
}

impl Default for Standing {
    fn default() -> Self {
        Self::DEBIAN
    }
}

/// One package of an index. Text is borrowed from the index file.
#[derive(Clone, Debug, Default)]
pub struct Package<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Its architecture, or `all`.
    pub architecture: &'a str,
    /// Name of its source package.
    pub source: &'a str,
    /// Field `Source`, empty if name and version are its own: the source package, and its version in parentheses if that is another one.
    pub source_field: &'a str,
    /// Its priority.
    pub priority: Priority,
    /// Whether it is essential: installed on every system.
    pub essential: bool,
    /// Path below the archive's base.
    pub path: &'a str,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: &'a str,
    /// Field `Depends`.
    pub depends: &'a str,
    /// Field `Pre-Depends`.
    pub pre_depends: &'a str,
    /// Field `Recommends`.
    pub recommends: &'a str,
    /// Field `Provides`.
    pub provides: &'a str,
    /// Field `Conflicts`.
    pub conflicts: &'a str,
    /// Field `Breaks`.
    pub breaks: &'a str,
    /// Its source: an index into the caller's list.
    pub origin: usize,
    /// How it stands beside those of other indexes.
    pub standing: Standing,
}

/// One file of a package: name, version and SHA-256. Two archives may have other files of the same version.
pub type Pin<'a> = (&'a str, &'a str, &'a str);

impl<'a> Package<'a> {
    /// Which file it is.
    #[must_use]
    pub const fn pin(&self) -> Pin<'a> {
        (self.name, self.version, self.sha256)
    }

    /// Whether it is taken in place of another one of its name: apt's policy, the priority before the version.
    fn is_before(&self, other: &Self) -> bool {
        let priority = self.standing.priority.cmp(&other.standing.priority);
        let version = || relation::compare(self.version, other.version);
        match priority {
            Ordering::Equal => version() == Some(Ordering::Greater),
            unequal => unequal == Ordering::Greater,
        }
    }
}

/// Reads a `Packages` file.
///
/// # Errors
/// At a line that is not a field, and at a package without name, version, path, size or SHA-256.
pub fn read(text: &str, origin: usize, standing: Standing) -> anyhow::Result<Vec<Package<'_>>> {
    let mut reader = Reader::new(text);
    // Entries of trixie's main index have 820 bytes on average.
    let mut packages = Vec::with_capacity(text.len() / 700);
    loop {
        let mut package = Package {
            origin,
            standing,
            ..Package::default()
        };
        let more = reader.paragraph(|name, value| take(&mut package, name, value));
        match more {
            Ok(false) => return Ok(packages),
            Ok(true) => {}
            Err(e) => {
                let e: Malformed = e;
                return Err(e.into());
            }
        }
        if package.name.is_empty() || package.version.is_empty() || !is_plain_path(package.path) {
            anyhow::bail!("package {:?} lacks its name, version or path", package.name);
        }
        if package.size == 0 || fetch::Digest::sha256(package.sha256).is_none() {
            anyhow::bail!("package {} lacks its size or SHA-256", package.name);
        }
        if package.source.is_empty() {
            package.source = package.name;
        }
        packages.push(package);
    }
}

/// Whether a path stays below the archive's base.
fn is_plain_path(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with('/')
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn take<'a>(package: &mut Package<'a>, name: &str, value: &'a str) {
    match name {
        "Package" => package.name = value,
        "Version" => package.version = value,
        "Architecture" => package.architecture = value,
        // `Source: name (version)` if the versions differ.
        "Source" => {
            package.source = value.split(' ').next().unwrap_or(value);
            package.source_field = value;
        }
        "Priority" => package.priority = Priority::named(value),
        "Essential" => package.essential = value == "yes",
        "Filename" => package.path = value.strip_prefix("./").unwrap_or(value),
        "Size" => package.size = value.parse().unwrap_or(0),
        "SHA256" => package.sha256 = value,
        "Depends" => package.depends = value,
        "Pre-Depends" => package.pre_depends = value,
        "Recommends" => package.recommends = value,
        "Provides" => package.provides = value,
        "Conflicts" => package.conflicts = value,
        "Breaks" => package.breaks = value,
        _ => {}
    }
}

/// All available packages, with indexes by name.
#[derive(Debug, Default)]
pub struct Pool<'a> {
    /// The packages, in the order of the indexes.
    pub packages: Vec<Package<'a>>,
    normal: HashMap<&'a str, usize>,
    backports: HashMap<&'a str, usize>,
    /// Virtual name → (package, version that it provides).
    providers: HashMap<&'a str, Vec<(usize, Option<&'a str>)>>,
    /// Names whose version is an earlier choice.
    kept: HashSet<&'a str>,
}

impl<'a> Pool<'a> {
    /// Sorts the packages of several indexes. Of several versions of one name that of the highest priority is kept, among
    /// these the newest, among these the first; separately for backports and for the other suites.
    #[must_use]
    pub fn new(packages: Vec<Package<'a>>) -> Self {
        let mut pool = Self {
            normal: HashMap::with_capacity(packages.len()),
            ..Self::default()
        };
        for (id, package) in packages.iter().enumerate() {
            let best = if package.standing.backport {
                &mut pool.backports
            } else {
                &mut pool.normal
            };
            let known = best.entry(package.name).or_insert(id);
            if package.is_before(&packages[*known]) {
                *known = id;
            }
        }
        pool.packages = packages;
        for id in 0..pool.packages.len() {
            let package = &pool.packages[id];
            let best = pool.versions(package.standing.backport).get(package.name);
            if best == Some(&id) {
                pool.note_provided(id);
            }
        }
        pool
    }

    const fn versions(&self, backport: bool) -> &HashMap<&'a str, usize> {
        if backport {
            &self.backports
        } else {
            &self.normal
        }
    }

    fn note_provided(&mut self, id: usize) {
        for group in relation::groups(self.packages[id].provides) {
            for provided in group {
                let version = provided.version.map(|(_, version)| version);
                let all = self.providers.entry(provided.name).or_default();
                if !all.contains(&(id, version)) {
                    all.push((id, version));
                }
            }
        }
    }

    /// Takes these packages in place of the newest ones, where they are and no archive of a higher priority has one of
    /// the name.
    pub fn keep(&mut self, pins: &BTreeSet<Pin<'_>>) {
        for id in 0..self.packages.len() {
            let package = &self.packages[id];
            let (name, standing) = (package.name, package.standing);
            if pins.contains(&package.pin()) {
                let versions = match standing.backport {
                    true => &mut self.backports,
                    false => &mut self.normal,
                };
                let known = versions.entry(name).or_insert(id);
                let chosen = &self.packages[*known];
                if chosen.standing.priority > standing.priority {
                    continue;
                }
                // Of the same file in two suites the first counts, as without pins.
                if chosen.pin() != package.pin() {
                    *known = id;
                }
                self.note_provided(id);
                self.kept.insert(name);
            }
        }
    }

    /// Whether the version of a name is an earlier choice.
    #[must_use]
    pub fn is_kept(&self, name: &str) -> bool {
        self.kept.contains(name)
    }

    /// Takes the version of a name again that is the best without earlier choices; returns whether it was an earlier choice.
    pub fn let_go(&mut self, name: &str) -> bool {
        let Some(name) = self.kept.take(name) else {
            return false;
        };
        for (id, package) in self.packages.iter().enumerate() {
            if package.name != name {
                continue;
            }
            let versions = match package.standing.backport {
                true => &mut self.backports,
                false => &mut self.normal,
            };
            if let Some(known) = versions.get_mut(name)
                && package.is_before(&self.packages[*known])
            {
                *known = id;
            }
        }
        true
    }

    /// The version of `name` outside of backports.
    #[must_use]
    pub fn normal(&self, name: &str) -> Option<usize> {
        self.normal.get(name).copied()
    }

    /// The version of `name` in backports.
    #[must_use]
    pub fn backport(&self, name: &str) -> Option<usize> {
        self.backports.get(name).copied()
    }

    /// The providers of a name, each with the version that it provides.
    #[must_use]
    pub fn providers(&self, name: &str) -> &[(usize, Option<&'a str>)] {
        self.providers.get(name).map_or(&[], Vec::as_slice)
    }

    /// Every name outside of backports, in no order.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.normal.keys().copied()
    }

    /// Every name in backports, in no order.
    pub fn backport_names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.backports.keys().copied()
    }

    /// The names of Debian's essential packages, sorted. An archive beside Debian's adds none to every image.
    #[must_use]
    pub fn essential(&self) -> Vec<&'a str> {
        let debians = |name: &str| {
            let mut all = self.packages.iter();
            all.any(|package| {
                package.name == name && package.essential && package.standing == Standing::DEBIAN
            })
        };
        let chosen = self.normal.values().map(|&id| &self.packages[id]);
        let mut names: Vec<&str> = chosen
            .filter(|package| package.essential || !package.standing.debian)
            .filter(|package| package.standing.debian || debians(package.name))
            .map(|package| package.name)
            .collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn an_index_is_read() {
        let text = format!(
            "Package: a\nSource: src (1.0)\nVersion: 1.0+b1\nArchitecture: amd64\nEssential: yes\nPriority: required\n\
             Depends: b (>= 1)\nTag: one,\n two\nFilename: pool/main/a/a.deb\nSize: 10\nSHA256: {SUM}\n\n\
             Package: b\nVersion: 2\nArchitecture: all\nProvides: v (= 3), w\nFilename: ./b.deb\nSize: 7\nSHA256: {SUM}\n"
        );
        let packages = read(&text, 0, Standing::DEBIAN).unwrap();
        assert_eq!(packages.len(), 2);
        assert_eq!(packages[0].source, "src");
        assert_eq!(packages[0].depends, "b (>= 1)");
        assert_eq!(packages[1].source, "b");
        assert_eq!(packages[1].path, "b.deb");
        let pool = Pool::new(packages);
        assert_eq!(pool.essential(), ["a"]);
        assert_eq!(pool.providers("v"), [(1, Some("3"))]);
        assert_eq!(pool.providers("w"), [(1, None)]);
        assert_eq!(pool.normal("v"), None);
    }

    #[test]
    fn the_newest_version_counts_and_backports_count_apart() {
        let entry = |version: &str| {
            format!(
                "Package: a\nVersion: {version}\nProvides: v (= {version})\nFilename: a.deb\nSize: 1\nSHA256: {SUM}\n\n"
            )
        };
        let main = entry("1.9") + &entry("1.10") + &entry("1.2");
        let back = entry("2.0~bpo13+1");
        let mut packages = read(&main, 0, Standing::DEBIAN).unwrap();
        packages.extend(read(&back, 1, Standing::BACKPORTS).unwrap());
        let pool = Pool::new(packages);
        assert_eq!(pool.packages[pool.normal("a").unwrap()].version, "1.10");
        assert_eq!(
            pool.packages[pool.backport("a").unwrap()].version,
            "2.0~bpo13+1"
        );
        assert_eq!(
            pool.providers("v"),
            [(1, Some("1.10")), (3, Some("2.0~bpo13+1"))]
        );
    }

    #[test]
    fn a_package_without_what_a_download_needs_is_refused() {
        for (what, text) in [
            (
                "name",
                format!("Version: 1\nFilename: a.deb\nSize: 1\nSHA256: {SUM}\n"),
            ),
            (
                "version",
                format!("Package: a\nFilename: a.deb\nSize: 1\nSHA256: {SUM}\n"),
            ),
            (
                "path",
                format!("Package: a\nVersion: 1\nSize: 1\nSHA256: {SUM}\n"),
            ),
            (
                "path",
                format!("Package: a\nVersion: 1\nFilename: ../a.deb\nSize: 1\nSHA256: {SUM}\n"),
            ),
            (
                "size",
                format!("Package: a\nVersion: 1\nFilename: a.deb\nSHA256: {SUM}\n"),
            ),
            (
                "SHA-256",
                "Package: a\nVersion: 1\nFilename: a.deb\nSize: 1\nSHA256: 00\n".to_owned(),
            ),
        ] {
            let error = read(&text, 0, Standing::DEBIAN).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
