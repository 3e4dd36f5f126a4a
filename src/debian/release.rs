//! The signed list of an archive's indexes (`InRelease`, or `Release` and its signature): identity, times, digests.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};

use super::deb822::Reader;
use super::packages::USUAL;
use crate::format::time::rfc3339;

/// The content of an `InRelease` file with a valid signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// When it was made, seconds since 1970.
    pub date: u64,
    /// The end of its validity, seconds since 1970.
    pub valid_until: Option<u64>,
    /// Its names: `Codename` and `Suite`; archives beside Debian's may have none.
    pub names: Vec<String>,
    /// The priority that the archive wants for itself: none of it is to be taken in place of another one's packages
    /// (`NotAutomatic`), which is 1, or 100 with `ButAutomaticUpgrades`; else 500 (`apt_preferences(5)`).
    pub priority: i32,
    /// Whether packages for all architectures have an index of their own.
    pub index_of_all: bool,
    /// Whether files can be fetched by their digest.
    pub by_hash: bool,
    files: Vec<File>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    path: String,
    size: u64,
    sha256: String,
}

/// An index file that the release lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFile {
    /// Path below the suite's folder.
    pub path: String,
    /// Path to fetch it from, below the suite's folder: by hash if the archive offers it.
    pub fetch_path: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// SHA-256 of the unpacked text, hexadecimal, if the release lists it too.
    pub text_sha256: Option<String>,
}

/// The name of an index that is not packed.
const TEXT: &str = "Packages";
/// An archive's clock may be ahead of ours by this, in seconds.
const CLOCK_TOLERANCE: u64 = 24 * 3600;

impl Release {
    /// Reads the signed text.
    ///
    /// # Errors
    /// If it has no date, no name or no SHA-256 list.
    pub fn parse(text: &str) -> Result<Self> {
        let mut release = Self {
            date: 0,
            valid_until: None,
            names: Vec::new(),
            priority: USUAL,
            index_of_all: false,
            by_hash: false,
            files: Vec::new(),
        };
        let mut date = None;
        let mut valid_until = None;
        let mut list = None;
        let (mut not_automatic, mut but_upgrades) = (false, false);
        let (mut has_all, mut not_apart) = (false, false);
        let words = |value: &str, wanted| value.split_ascii_whitespace().any(|word| word == wanted);
        Reader::new(text).paragraph(|name, value| match name {
            "Date" => date = Some(value),
            "Valid-Until" => valid_until = Some(value),
            "Codename" | "Suite" => release.names.push(value.to_owned()),
            "Acquire-By-Hash" => release.by_hash = value == "yes",
            "SHA256" => list = Some(value),
            "NotAutomatic" => not_automatic = value == "yes",
            "ButAutomaticUpgrades" => but_upgrades = value == "yes",
            "Architectures" => has_all = words(value, "all"),
            "No-Support-for-Architecture-all" => not_apart = words(value, "Packages"),
            _ => {}
        })?;
        release.date = time(date.context("it has no Date")?)?;
        release.valid_until = valid_until.map(time).transpose()?;
        release.priority = match (not_automatic, but_upgrades) {
            (true, false) => 1,
            (true, true) => 100,
            (false, _) => USUAL,
        };
        release.index_of_all = has_all && !not_apart;
        for line in list.context("it has no SHA256 list")?.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(sha256), Some(size), Some(path), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                bail!("its SHA256 list has the line {line:?}");
            };
            release.files.push(File {
                path: path.strip_prefix("./").unwrap_or(path).to_owned(),
                size: size
                    .parse()
                    .with_context(|| format!("its SHA256 list has the line {line:?}"))?,
                sha256: sha256.to_owned(),
            });
        }
        Ok(release)
    }

    /// Checks that this is the requested suite, so that a mirror cannot serve another one that the same key signed. A suite
    /// with a path (`trixie/updates`) may have its first words as name.
    ///
    /// # Errors
    /// With the expected and the found names.
    pub fn is_suite(&self, suite: &str) -> Result<()> {
        ensure!(!self.names.is_empty(), "it has neither Codename nor Suite");
        ensure!(
            self.names.iter().any(|name| {
                let rest = suite.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }),
            "the suite is {}, expected {suite}",
            self.names.join(" or ")
        );
        Ok(())
    }

    /// Checks that it is current: neither from the future nor past its `Valid-Until`, or older than `max_age` days if it has none, so
    /// that an attacker cannot serve a signed but outdated archive.
    ///
    /// # Errors
    /// With the expected and the found value, and the remedy.
    pub fn is_current(&self, now: u64, max_age: Option<u32>) -> Result<()> {
        ensure!(
            self.date <= now + CLOCK_TOLERANCE,
            "it was made at {}, in the future of this machine, whose clock says {}; set the clock",
            rfc3339(self.date),
            rfc3339(now)
        );
        if let Some(end) = self.valid_until {
            ensure!(
                now <= end,
                "it was valid until {}, and now it is {}; the mirror is out of date: use another one, or set this \
                 machine's clock if that is wrong",
                rfc3339(end),
                rfc3339(now)
            );
        } else if let Some(days) = max_age {
            ensure!(
                now <= self.date.saturating_add(u64::from(days) * 24 * 3600),
                "it has no Valid-Until and was made at {}, more than {days} days ago; the mirror is out of date: use another one, or \
                 allow more by `max-age` in the recipe's [debian]",
                rfc3339(self.date)
            );
        }
        Ok(())
    }

    /// The index of a component's packages, in the most compact format of the archive.
    ///
    /// # Errors
    /// If the release has none.
    pub fn packages(&self, component: &str, architecture: &str) -> Result<IndexFile> {
        let index = self.index(&format!("{component}/binary-{architecture}/"));
        index.with_context(|| {
            let known = self.components();
            let known = match known.as_slice() {
                [] => String::new(),
                _ => format!("; it has {}", known.join(", ")),
            };
            format!("it lists no packages of component {component} for {architecture}{known}")
        })
    }

    /// The index of the packages in a folder, which ends in a slash or is empty: in the most compact format of the archive.
    #[must_use]
    pub fn index(&self, folder: &str) -> Option<IndexFile> {
        let names = ["Packages.xz", "Packages.gz", TEXT].iter();
        let text = format!("{folder}{TEXT}");
        let text = self.files.iter().find(|file| file.path == text);
        // The list of the security archive names its components `updates/main`, but its paths lack `updates/`.
        names.into_iter().find_map(|name| {
            let path = format!("{folder}{name}");
            let file = self.files.iter().find(|file| file.path == path)?;
            let fetch_path = match self.by_hash {
                true => format!("{folder}by-hash/SHA256/{}", file.sha256),
                false => path.clone(),
            };
            Some(IndexFile {
                path,
                fetch_path,
                size: file.size,
                sha256: file.sha256.clone(),
                text_sha256: text.map(|text| text.sha256.clone()),
            })
        })
    }

    /// Each component and architecture that it lists packages of, as `main for amd64`.
    fn components(&self) -> Vec<String> {
        let found: BTreeSet<String> = self
            .files
            .iter()
            .filter_map(|file| {
                let (folder, _) = file.path.rsplit_once("/Packages")?;
                let (component, architecture) = folder.rsplit_once("/binary-")?;
                Some(format!("{component} for {architecture}"))
            })
            .collect();
        found.into_iter().collect()
    }
}

/// Parses a date of an archive, RFC 2822 with the zone `UTC`, to seconds since 1970.
///
/// # Errors
/// If it is none.
pub fn time(text: &str) -> Result<u64> {
    let numeric = text
        .strip_suffix(" UTC")
        .or_else(|| text.strip_suffix(" Z"))
        .map_or_else(|| text.to_owned(), |start| format!("{start} +0000"));
    let time = jiff::fmt::rfc2822::parse(&numeric)
        .with_context(|| format!("reading the date {text:?}"))?;
    u64::try_from(time.timestamp().as_second())
        .with_context(|| format!("reading the date {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "f61f27bd17de546264aa58f40f3aafaac7021e0ef69c17f6b1b4cd7664a037ec";

    fn text(change: impl Fn(&str) -> String) -> String {
        change(&format!(
            "Origin: Debian\nSuite: stable-updates\nCodename: trixie-updates\nDate: Fri, 20 Nov 2026 02:11:10 UTC\n\
             Valid-Until: Fri, 27 Nov 2026 02:11:10 UTC\nAcquire-By-Hash: yes\nSHA256:\n {HASH}  1108 main/binary-amd64/Packages.xz\n \
             {HASH}  2351 main/binary-amd64/Packages\n {HASH} 20 contrib/binary-amd64/Packages.gz\n"
        ))
    }

    /// 20 November 2026, 02:11:10.
    const MADE: u64 = 1_795_140_670;
    const DAY: u64 = 24 * 3600;

    #[test]
    fn a_release_is_read() {
        let release = Release::parse(&text(str::to_owned)).unwrap();
        assert_eq!(release.date, MADE);
        assert_eq!(release.valid_until, Some(MADE + 7 * DAY));
        let index = release.packages("main", "amd64").unwrap();
        assert_eq!(index.size, 1108);
        assert_eq!(
            index.fetch_path,
            format!("main/binary-amd64/by-hash/SHA256/{HASH}")
        );
        assert_eq!(
            release.packages("contrib", "amd64").unwrap().path,
            "contrib/binary-amd64/Packages.gz"
        );
        assert!(release.packages("main", "arm64").is_err());
    }

    #[test]
    fn without_by_hash_the_plain_path_is_fetched() {
        let release = Release::parse(&text(|t| t.replace("Acquire-By-Hash: yes\n", ""))).unwrap();
        let index = release.packages("main", "amd64").unwrap();
        assert_eq!(index.fetch_path, index.path);
    }

    #[test]
    fn suite_and_times_are_enforced() {
        let release = Release::parse(&text(str::to_owned)).unwrap();
        let table = [
            ("trixie-updates", MADE, None),
            ("stable-updates", MADE + 7 * DAY, None),
            (
                "trixie-updates",
                MADE + 7 * DAY + 1,
                Some("was valid until 2026-11-27T02:11:10Z"),
            ),
            ("trixie-updates", MADE - DAY, None),
            ("trixie-updates", MADE - DAY - 1, Some("set the clock")),
            ("trixie", MADE, Some("expected trixie")),
            (
                "bookworm-updates",
                MADE,
                Some("the suite is stable-updates or trixie-updates"),
            ),
        ];
        for (suite, now, expected) in table {
            let checked = release
                .is_suite(suite)
                .and_then(|()| release.is_current(now, Some(1)));
            let found = checked.err().map(|e| e.to_string());
            match expected {
                None => assert_eq!(found, None, "{suite} at {now}"),
                Some(words) => assert!(found.clone().unwrap().contains(words), "{found:?}"),
            }
        }
    }

    #[test]
    fn without_valid_until_the_age_is_limited() {
        let release = Release::parse(&text(|t| {
            t.replace("Valid-Until: Fri, 27 Nov 2026 02:11:10 UTC\n", "")
        }))
        .unwrap();
        release.is_current(MADE + 900 * DAY, None).unwrap();
        release.is_current(MADE + 30 * DAY, Some(30)).unwrap();
        let error = release.is_current(MADE + 30 * DAY + 1, Some(30));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("more than 30 days ago"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        for (from, to, words) in [
            ("Date: Fri, 20 Nov 2026 02:11:10 UTC\n", "", "no Date"),
            ("02:11:10 UTC\nValid", "noon\nValid", "reading the date"),
            ("SHA256:", "SHA512:", "no SHA256 list"),
            ("  1108 ", "  many ", "many main/"),
            ("  1108 ", " 1 2 3 ", "SHA256 list has the line"),
        ] {
            let changed = text(|t| t.replacen(from, to, 1));
            assert_ne!(changed, text(str::to_owned));
            let error = format!("{:#}", Release::parse(&changed).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
