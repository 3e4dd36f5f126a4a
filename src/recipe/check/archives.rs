//! `[[debian.archives]]`: archives beside Debian's, such as a vendor's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::Check;
use super::names::Rule;
use crate::debian::files::SCHEME;
use crate::debian::mirror::{DEBS, is_debians};
use crate::debian::signature::Keyring;
use crate::debian::third_party::{Certificates, ThirdParty, is_flat};
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::tree::Node;

/// Of several versions of a package that of the highest priority is taken, among these the newest.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawArchive {
    /// Its name in the lock: lower-case letters, digits, hyphens. Required.
    pub name: Option<String>,
    /// Its base URL, http, https or file:///, without user and password: the folder that holds `dists`, or the one that flat
    /// suites are relative to. Required.
    pub url: Option<String>,
    /// Its suites, as trixie; one that ends in a slash, as ./, is a folder with Release and Packages (a flat archive). Required.
    pub suites: Vec<String>,
    /// Its components; flat suites have none. Default: main.
    pub components: Vec<String>,
    /// Files of OpenPGP certificates, armoured or binary, one of which has to sign each suite; paths relative to this recipe.
    /// Required.
    pub keys: Vec<String>,
    /// The priority of its packages, as in `apt_preferences(5)`; Debian's is 500. Higher: its packages are taken whatever their
    /// version. Lower: only if Debian has no package of the name. Negative: never. Default: 500, or 1 or 100 if the archive calls
    /// itself `NotAutomatic`.
    pub priority: Option<i64>,
    /// The packages that may be taken from it, names or patterns with `*` and `?`. Default: all.
    pub packages: Vec<String>,
}

impl Check<'_> {
    pub(super) fn archives(&mut self, raw: Vec<RawArchive>) -> Vec<ThirdParty> {
        let items = self.find("debian.archives");
        let items = items.map_or(&[][..], Node::items);
        let mut found = Vec::new();
        let mut named: BTreeMap<String, Place> = BTreeMap::new();
        for (raw, item) in raw.into_iter().zip(items) {
            let archive = self.archive(raw, item);
            let place = item.at(&["name"]).map_or(&item.place, |node| &node.place);
            if let Some(before) = named.insert(archive.name.clone(), place.clone())
                && !archive.name.is_empty()
            {
                let mistake = Mistake::at(
                    place,
                    format!("two archives are called `{}`", archive.name),
                    "expected each name once",
                );
                self.add(mistake.also(&before, "first given here"));
            }
            found.push(archive);
        }
        found
    }

    fn archive(&mut self, raw: RawArchive, item: &Node) -> ThirdParty {
        let RawArchive {
            name,
            url,
            suites,
            mut components,
            keys,
            priority,
            packages,
        } = raw;
        for (key, is_empty, expected) in [
            (
                "name",
                name.is_none(),
                "expected a name for the lock, as name = \"vendor\"",
            ),
            (
                "url",
                url.is_none(),
                "expected its base URL, as in apt's sources",
            ),
            (
                "suites",
                suites.is_empty(),
                "expected its suites, as in apt's sources; [\"./\"] for a flat archive",
            ),
            (
                "keys",
                keys.is_empty(),
                "expected the files of the certificates that sign it, beside this recipe",
            ),
        ] {
            self.required(item, key, is_empty, expected);
        }
        self.each(item, "name", Rule::ArchiveName);
        if let Some(node) = item.at(&["name"])
            && name.as_deref().is_some_and(is_debians)
        {
            self.add(Mistake::at(
                &node.place,
                format!("`{}` is Debian's own archive", name.as_deref().unwrap_or_default()),
                "expected another name; Debian's mirrors are `mirror` and `security-mirror` in [debian]",
            ));
        }
        if let Some(node) = item.at(&["name"])
            && name.as_deref() == Some(DEBS)
        {
            self.add(Mistake::at(
                &node.place,
                "this name stands for the packages of `debs` in a lock",
                "expected another name",
            ));
        }
        self.each(item, "suites", Rule::Suite);
        self.each(item, "components", Rule::VendorComponent);
        self.each(item, "packages", Rule::PackagePattern);
        let all_flat = !suites.is_empty() && suites.iter().all(|suite| is_flat(suite));
        if let Some(node) = item.at(&["components"]).filter(|_| all_flat) {
            self.add(Mistake::at(
                &node.place,
                "flat suites have no components",
                "expected a suite without a slash at its end, or no components",
            ));
        } else if components.is_empty() && !all_flat {
            components.push("main".to_owned());
        }
        ThirdParty {
            url: url.map_or_else(String::new, |url| self.archive_url(&url, item)),
            name: name.unwrap_or_default(),
            suites,
            components,
            keys: self.certificates(item),
            priority: priority.and_then(|priority| self.priority(priority, item)),
            packages,
        }
    }

    /// Adds that a required value is missing, unless an invalid value was given.
    fn required(&mut self, item: &Node, key: &str, is_missing: bool, expected: &str) {
        let path = format!("debian.archives[].{key}");
        let is_lost = self.gone.iter().any(|gone| gone.starts_with(&path));
        if is_missing && !is_lost {
            let node = item.at(&[key]).unwrap_or(item);
            self.add(Mistake::at(
                &node.place,
                format!("an archive without `{key}`"),
                expected.to_owned(),
            ));
        }
    }

    /// Checks a text, or each text of a list, against a rule.
    fn each(&mut self, item: &Node, key: &str, rule: Rule) {
        let Some(node) = item.at(&[key]) else {
            return;
        };
        for node in std::iter::once(node).chain(node.items()) {
            if let Some(text) = node.text()
                && let Err(why) = rule.check(text)
            {
                self.add(why.mistake(&node.place));
            }
        }
    }

    /// The base URL without a slash at its end.
    fn archive_url(&mut self, url: &str, item: &Node) -> String {
        let place = |key: &str| item.at(&[key]).unwrap_or(item).place.clone();
        // apt's form of a folder is `file:/srv/archive`.
        let url = match url.strip_prefix("file:/") {
            Some(path) if !path.starts_with('/') => format!("{SCHEME}/{path}"),
            _ => url.to_owned(),
        };
        let rest = ["http://", "https://", SCHEME]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme));
        let authority = rest.and_then(|rest| rest.split('/').next());
        if let Err(why) = Rule::Url.check(&url)
            && fetch::has_login(&url)
        {
            self.add(why.mistake(&place("url")));
            return String::new();
        }
        if url.contains(['?', '#']) {
            // Not at the URL: a report shows the line that it points at, a query may be a secret, and a report in the log of a CI.
            self.add(Mistake::at(
                &place("name"),
                "the URL of this archive has a query",
                "expected a URL without: recipe and lock are no place for secrets",
            ));
            return String::new();
        }
        let good = match url.strip_prefix(SCHEME) {
            Some(path) => path.starts_with('/') && path.len() > 1,
            None => authority.is_some_and(|host| !host.is_empty()),
        };
        let is_plain = url.chars().all(|c| c.is_ascii_graphic());
        if !good || !is_plain || url.split('/').any(|part| part == "..") {
            self.add(Mistake::at(
                &place("url"),
                format!("{url:?} is not the URL of an archive"),
                "expected a URL that begins with http:// or https://, or file:/// and an absolute path",
            ));
        }
        url.trim_end_matches('/').to_owned()
    }

    /// The files of certificates, each read.
    fn certificates(&mut self, item: &Node) -> Vec<Certificates> {
        let files = item.at(&["keys"]).map_or(&[][..], Node::items);
        let mut all = Vec::new();
        for node in files {
            let Some(text) = node.text() else {
                continue;
            };
            let path = self.host_path(&node.place, text);
            let read = std::fs::read(&path).map_err(anyhow::Error::from);
            let read = read.and_then(|content| {
                Keyring::of_files("", [(path.display().to_string(), content.as_slice())])?;
                Ok(content)
            });
            match read {
                Ok(content) => all.push(Certificates { path, content }),
                Err(error) => self.add(Mistake::at(
                    &node.place,
                    format!("{} is not usable as a key: {}", path.display(), error.root_cause()),
                    "expected a file of OpenPGP certificates, armoured or binary, relative to this recipe",
                )),
            }
        }
        all
    }

    /// apt's priorities are numbers of 16 bits, and 0 has no meaning.
    fn priority(&mut self, priority: i64, item: &Node) -> Option<i32> {
        match i16::try_from(priority) {
            Ok(priority) if priority != 0 => Some(i32::from(priority)),
            _ => {
                let node = item.at(&["priority"]).unwrap_or(item);
                self.add(Mistake::at(
                    &node.place,
                    format!("no priority is {priority}"),
                    "expected 1 to 32767, as in apt_preferences(5): Debian's is 500; or below 0 for never",
                ));
                None
            }
        }
    }
}
