//! An archive beside Debian's: where it is, whose signatures count, which of its packages may be taken.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use super::signature::Keyring;

/// An archive beside Debian's, as the recipe has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThirdParty {
    /// Its name in the lock.
    pub name: String,
    /// Base URL: http, https or `file:`, without user and password.
    pub url: String,
    /// Suites; one that ends in a slash is a folder below the base (a flat archive).
    pub suites: Vec<String>,
    /// Components, such as `main`; of no meaning for flat suites.
    pub components: Vec<String>,
    /// The certificates whose signatures count.
    pub keys: Vec<Certificates>,
    /// The priority of its packages, as `apt_preferences(5)` defines it; none for that of the archive itself.
    pub priority: Option<i32>,
    /// Names and patterns (`*`, `?`) of the packages that may be taken from it; all if there are none.
    pub packages: Vec<String>,
}

/// A file of OpenPGP certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificates {
    /// Its path, for messages.
    #[serde(skip)]
    pub path: PathBuf,
    /// Its content, armoured or binary.
    pub content: Vec<u8>,
}

impl ThirdParty {
    /// Whether a package of this name may be taken from it.
    #[must_use]
    pub fn allows(&self, package: &str) -> bool {
        let mut patterns = self.packages.iter();
        self.packages.is_empty() || patterns.any(|pattern| matches(pattern, package))
    }

    /// The keys whose signatures count.
    ///
    /// # Errors
    /// If a file has no certificate; the recipe's check has read them all once.
    pub fn keyring(&self) -> Result<Keyring> {
        let files = self.keys.iter();
        let files = files.map(|key| (key.path.display().to_string(), key.content.as_slice()));
        let paths = self.keys.iter().map(|key| key.path.display().to_string());
        let paths: Vec<String> = paths.collect();
        let all = format!("the keys of archive {} ({})", self.name, paths.join(", "));
        Keyring::of_files(&all, files)
    }
}

/// Whether a suite is a folder below the base: `sources.list(5)`, "exact path".
#[must_use]
pub fn is_flat(suite: &str) -> bool {
    suite.ends_with('/')
}

/// Whether a name matches a pattern, in which `*` stands for any characters and `?` for one.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut chars = pattern.chars();
    match chars.next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = chars.as_str();
            let mut ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.any(|at| matches(rest, &name[at..]))
        }
        Some(wanted) => {
            let mut left = name.chars();
            left.next()
                .is_some_and(|found| wanted == '?' || wanted == found)
                && matches(chars.as_str(), left.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_the_shell() {
        for (pattern, name, expected) in [
            ("containerd.io", "containerd.io", true),
            ("containerd.io", "containerd-io", false),
            ("docker-*", "docker-ce", true),
            ("docker-*", "docker", false),
            ("*", "anything", true),
            ("*-dkms", "zfs-dkms", true),
            ("*-dkms", "zfs-dkms-src", false),
            ("lib?", "libc", true),
            ("lib?", "lib", false),
            ("lib*6*", "libssl3t64-6", true),
            ("1.7.*", "1.7.24~ds1-6", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
