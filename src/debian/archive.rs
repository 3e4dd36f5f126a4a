//! Reads an archive's suites from the mirror: signature, then indexes by digest, then packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::thread;

use anyhow::{Context as _, Result, ensure};

use super::mirror::{ARCHIVE, DEBS, Mirrors, SECURITY_ARCHIVE};
use super::packages::{self, Package, Pool, Standing};
use super::pinned::LockedPackage;
use super::release::Release;
use super::signature::Keyring;
use super::third_party::{self, ThirdParty};
use crate::host::cache::Cache;
use crate::host::progress::Step;

use source::sources;

mod names;
mod source;

/// A suite of an archive, such as `trixie-updates` of `debian`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// The archive's name in the lock.
    pub archive: String,
    /// The suite's name.
    pub name: String,
    /// Whether its packages are taken only on request.
    pub backports: bool,
}

/// The suites of a release: the release itself, its updates, its security updates, and its backports on request.
#[must_use]
pub fn suites(release: &str, with_backports: bool) -> Vec<Suite> {
    let suite = |archive: &str, name: String, backports| Suite {
        archive: archive.to_owned(),
        name,
        backports,
    };
    let mut all = vec![suite(ARCHIVE, release.to_owned(), false)];
    // Rolling suites contain their updates.
    if matches!(release, "sid" | "unstable") {
        return all;
    }
    all.push(suite(ARCHIVE, format!("{release}-updates"), false));
    all.push(suite(
        SECURITY_ARCHIVE,
        format!("{release}-security"),
        false,
    ));
    if with_backports {
        all.push(suite(ARCHIVE, format!("{release}-backports"), true));
    }
    all
}

/// The archives, suites and components to read.
#[derive(Clone, Debug)]
pub struct Request<'r> {
    /// Base URLs of the archives.
    pub mirrors: &'r Mirrors,
    /// Debian's suites.
    pub suites: &'r [Suite],
    /// Components of Debian's suites, such as `main`.
    pub components: &'r [String],
    /// Debian's name of the architecture.
    pub architecture: &'r str,
    /// The keys that are trusted for Debian's suites.
    pub keyring: &'r Keyring,
    /// The archives beside Debian's, each with its suites, components and keys.
    pub third_parties: &'r [ThirdParty],
    /// Patterns of the versions that alone may be taken, by the package's name.
    pub versions: &'r BTreeMap<String, String>,
    /// The time, seconds since 1970.
    pub now: u64,
    /// How many days old a suite without `Valid-Until` may be, if that is limited otherwise than by default.
    pub max_age: Option<u32>,
    /// How servers are asked. Offline, the lists and indexes that the cache has count, and no request is made.
    pub options: fetch::Options,
}

/// A suite that was read.
#[derive(Debug)]
pub struct SuiteRead {
    /// The suite.
    pub suite: Suite,
    /// The content of its signed file.
    pub release: Release,
    /// The archive that it is of, if that is not Debian's.
    third_party: Option<ThirdParty>,
}

impl SuiteRead {
    /// How its packages stand beside those of other suites.
    fn standing(&self) -> Standing {
        match &self.third_party {
            Some(archive) => Standing {
                debian: false,
                backport: false,
                priority: archive.priority.unwrap_or(self.release.priority),
            },
            None if self.suite.backports => Standing::BACKPORTS,
            None => Standing::DEBIAN,
        }
    }

    /// Whether a package may be taken from it.
    fn allows(&self, package: &Package<'_>) -> bool {
        let third_party = self.third_party.as_ref();
        package.standing.priority > 0
            && third_party.is_none_or(|archive| archive.allows(package.name))
    }
}

/// Components that a suite does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoComponents {
    /// The components.
    pub components: Vec<String>,
    /// Debian's name of the architecture that they were wanted for.
    pub architecture: String,
}

impl fmt::Display for NoComponents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it lists no packages of {} for {}",
            self.components.join(", "),
            self.architecture
        )
    }
}

impl std::error::Error for NoComponents {}

/// The suites that were read.
#[derive(Debug)]
pub struct Archive {
    /// The requested suites, Debian's first.
    pub suites: Vec<SuiteRead>,
    /// Texts of the `Packages` files, each with the index of its suite.
    texts: Vec<(usize, String)>,
    /// Digests of the packages that the suites do not have any more.
    gone: BTreeSet<String>,
    architecture: String,
    versions: BTreeMap<String, String>,
}

impl Archive {
    /// Reads all suites at once. Index files are kept in the cache by their digest.
    ///
    /// # Errors
    /// Names the suite, the mirror, the setting that names the mirror, and the fault of the answer: [`NoComponents`] if it is
    /// that.
    pub fn read(request: &Request<'_>, cache: &Cache, step: &Step) -> Result<Self> {
        let sources = sources(request)?;
        let read: Vec<Result<(Release, Vec<String>)>> = thread::scope(|scope| {
            let threads: Vec<_> = sources
                .iter()
                .map(|source| scope.spawn(|| source.read(request, cache, step)))
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        let mut archive = Self {
            suites: Vec::new(),
            texts: Vec::new(),
            gone: BTreeSet::new(),
            architecture: request.architecture.to_owned(),
            versions: request.versions.clone(),
        };
        if request.options.offline {
            let missing = read.iter().filter_map(|read| read.as_ref().err());
            let missing: Vec<String> = missing.map(|error| format!("{error:#}")).collect();
            ensure!(missing.is_empty(), "{}", missing.join("\n"));
        }
        for (at, (source, read)) in sources.into_iter().zip(read).enumerate() {
            let (release, texts) = read?;
            archive.suites.push(SuiteRead {
                suite: source.suite,
                release,
                third_party: source.third_party.cloned(),
            });
            archive
                .texts
                .extend(texts.into_iter().map(|text| (at, text)));
        }
        Ok(archive)
    }

    /// Adds packages that the archive of this name had, and its suites do not have any more; to its backports if they were of these.
    ///
    /// # Errors
    /// If the text is no index, or there is no such archive.
    pub fn add(&mut self, (archive, backports): (&str, bool), text: String) -> Result<()> {
        let packages = packages::read(&text, 0, Standing::DEBIAN)?;
        let digests = packages.iter().map(|package| package.sha256.to_owned());
        self.gone.extend(digests);
        let of = |backports| {
            let mut suites = self.suites.iter().map(|read| &read.suite);
            suites.position(|suite| suite.archive == archive && suite.backports == backports)
        };
        // A rolling suite has no backports.
        let of = of(backports).or_else(|| of(false));
        let of = of.with_context(|| format!("there is no archive {archive}"))?;
        self.texts.push((of, text));
        Ok(())
    }

    /// Adds packages of no archive: they are taken before those of every archive.
    pub fn add_debs(&mut self, text: String) {
        self.texts.push((self.suites.len(), text));
        self.suites.push(SuiteRead {
            suite: Suite {
                archive: DEBS.to_owned(),
                name: DEBS.to_owned(),
                backports: false,
            },
            release: Release::default(),
            third_party: Some(ThirdParty {
                name: DEBS.to_owned(),
                url: String::new(),
                suites: Vec::new(),
                components: Vec::new(),
                keys: Vec::new(),
                priority: Some(i32::MAX),
                packages: Vec::new(),
            }),
        });
    }

    /// Whether the suites do not have this package any more.
    #[must_use]
    pub fn is_gone(&self, package: &LockedPackage) -> bool {
        self.gone.contains(&package.sha256)
    }

    /// All packages of all suites that may be taken.
    ///
    /// # Errors
    /// If an index does not parse.
    pub fn pool(&self) -> Result<Pool<'_>> {
        let holds = |package: &Package<'_>| {
            let pattern = self.versions.get(package.name);
            pattern.is_none_or(|pattern| third_party::matches(pattern, package.version))
        };
        self.pool_of(|_| true, holds)
    }

    /// All packages of Debian's suites, of any version.
    ///
    /// # Errors
    /// If an index does not parse.
    pub fn debians_pool(&self) -> Result<Pool<'_>> {
        self.pool_of(|suite| suite.third_party.is_none(), |_| true)
    }

    /// Whether [`Archive::pool`] and [`Archive::debians_pool`] differ.
    #[must_use]
    pub fn is_debians_alone(&self) -> bool {
        let mut suites = self.suites.iter();
        self.versions.is_empty() && suites.all(|suite| suite.third_party.is_none())
    }

    fn pool_of(
        &self,
        counts: impl Fn(&SuiteRead) -> bool,
        may_be: impl Fn(&Package<'_>) -> bool,
    ) -> Result<Pool<'_>> {
        let mut all = Vec::new();
        for (at, text) in &self.texts {
            let suite = &self.suites[*at];
            if counts(suite) {
                let mut packages = self.packages(*at, text)?;
                packages.retain(|package| suite.allows(package) && may_be(package));
                all.append(&mut packages);
            }
        }
        Ok(Pool::new(all))
    }

    /// The packages of an index that are for this architecture: that of a flat archive may have those of all.
    fn packages<'a>(&self, at: usize, text: &'a str) -> Result<Vec<Package<'a>>> {
        let suite = &self.suites[at];
        let mut packages = packages::read(text, at, suite.standing()).with_context(|| {
            let Suite { archive, name, .. } = &suite.suite;
            format!("reading the packages of {name} of archive {archive}")
        })?;
        packages.retain(|package| ["all", &self.architecture].contains(&package.architecture));
        Ok(packages)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vendor_tests;
