//! `[debian]`: the packages and their archives.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::archives::RawArchive;
use super::debs::{DebFile, RawDeb};
use super::names::Rule;
use crate::debian::third_party::ThirdParty;
use crate::recipe::tree::Value;

/// Which packages, and from where.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawDebian {
    /// Code name of the release. Its updates and security updates are always included. Default: trixie.
    pub suite: Option<RawSuite>,
    /// Components of the archive. Default: main.
    pub components: Vec<String>,
    /// Packages of the root, beside the essential ones and whatever these depend on.
    pub packages: Vec<String>,
    /// Take what the root's packages recommend too, as far as it fits. Default: false.
    pub recommends: Option<bool>,
    /// Packages that are taken from the suite's backports.
    pub backports: Vec<String>,
    /// Packages of no archive, by their files.
    pub debs: Vec<RawDeb>,
    /// The versions of packages that alone may be taken, by name: a version, or a pattern with `*` and `?` as in apt's pins. Slipway's
    /// own tools are not concerned.
    pub versions: BTreeMap<String, String>,
    /// Archives beside Debian's, such as a vendor's, each with the keys that sign it.
    pub archives: Vec<RawArchive>,
    /// Base URL of the archive. Default: SLIPWAY_DEBIAN_MIRROR, else this host's apt configuration.
    pub mirror: Option<String>,
    /// Base URL of the security archive. Default: SLIPWAY_DEBIAN_SECURITY_MIRROR, else this host's apt configuration.
    pub security_mirror: Option<String>,
    /// Snapshot archives, tried for locked files that are gone from the mirror: `debian`, or base URLs, in which {archive} and {time}
    /// (as 20261120T021110Z) are replaced. `debian` is SLIPWAY_DEBIAN_SNAPSHOT, else /archive/{archive}/{time} on the mirror's server.
    pub snapshots: Vec<String>,
    /// How many days old a suite without `Valid-Until` may be when it is locked. Default: 400 for Debian's, no limit for other archives.
    pub max_age: Option<u32>,
    /// Keep documentation and manual pages; without, only the copyright file of each package is kept. Default: false.
    pub docs: Option<bool>,
    /// Locales whose translated messages are kept. `[locale] generate` makes a locale itself.
    pub locales: Vec<String>,
    /// Keep dpkg with its database, and apt where `packages` names it. Default: false.
    pub package_manager: Option<bool>,
}

/// Debian releases that images can be built from.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawSuite {
    /// Debian 13.
    Trixie,
}

/// The packages and their archives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a word of the recipe"
)]
pub struct Debian {
    /// Code name of the release, as `trixie`.
    pub suite: String,
    /// Components of the archive, as `main`.
    pub components: Vec<String>,
    /// Packages of the root, beside the essential packages and the dependencies of both.
    pub packages: Vec<String>,
    /// Take what the root's packages recommend too.
    pub recommends: bool,
    /// Packages that are taken from the suite's backports in every set.
    pub backports: Vec<String>,
    /// Packages of no archive, which are in the root and taken in place of others of their names in every set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub debs: Vec<DebFile>,
    /// Patterns of the versions that alone may be taken in every set but those of tools, by the package's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Archives beside Debian's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub archives: Vec<ThirdParty>,
    /// Base URL of the archive.
    #[serde(skip)]
    pub mirror: Option<String>,
    /// Base URL of the security archive.
    #[serde(skip)]
    pub security_mirror: Option<String>,
    /// Base URLs of snapshot archives, tried for files that the mirror does not have any more.
    #[serde(skip)]
    pub snapshots: Vec<String>,
    /// How many days old a suite without `Valid-Until` may be.
    #[serde(skip)]
    pub max_age: Option<u32>,
    /// Keep documentation and manual pages, of which each package's copyright file is kept in any case.
    pub docs: bool,
    /// Locales whose translated messages are kept.
    pub locales: Vec<String>,
    /// Keep dpkg with its database, and apt where `packages` names it.
    pub package_manager: bool,
}

impl Check<'_> {
    /// Names and patterns in `[debian.versions]`.
    fn versions(&mut self) {
        let Some(Value::Table(table)) = self.find("debian.versions").map(|node| &node.value) else {
            return;
        };
        for (name, entry) in table {
            if let Err(why) = Rule::Package.check(name) {
                self.add(why.mistake(&entry.key));
            }
            let version = entry.node.text().map(|text| Rule::Version.check(text));
            if let Some(Err(why)) = version {
                self.add(why.mistake(&entry.node.place));
            }
        }
    }

    pub(super) fn debian(&mut self, raw: RawDebian) -> Debian {
        let RawDebian {
            suite,
            mut components,
            packages,
            recommends,
            backports,
            debs,
            versions,
            archives,
            mirror,
            security_mirror,
            snapshots,
            max_age,
            docs,
            locales,
            package_manager,
        } = raw;
        self.list("debian.components", Rule::Component);
        self.list("debian.packages", Rule::Package);
        self.list("debian.backports", Rule::Package);
        self.versions();
        self.list("debian.snapshots", Rule::Snapshot);
        self.list("debian.locales", Rule::Locale);
        self.text("debian.mirror", Rule::Url);
        self.text("debian.security-mirror", Rule::Url);
        if components.is_empty() {
            components.push("main".to_owned());
        }
        Debian {
            suite: match suite {
                None | Some(RawSuite::Trixie) => "trixie".to_owned(),
            },
            components,
            packages,
            recommends: recommends.unwrap_or(false),
            backports,
            debs: self.debs(&debs),
            versions,
            archives: self.archives(archives),
            mirror,
            security_mirror,
            snapshots,
            max_age,
            docs: docs.unwrap_or(false),
            locales,
            package_manager: package_manager.unwrap_or(false),
        }
    }
}
