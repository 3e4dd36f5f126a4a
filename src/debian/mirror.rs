//! Base URLs of the archive: from the recipe, else the environment, else the host's apt configuration, else the program's own.

mod apt;
mod mirror_list;
#[cfg(test)]
mod tests;
mod unknown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use self::apt::Kind;
use super::third_party::ThirdParty;

/// The variable for the archive's mirror.
pub const MIRROR_VARIABLE: &str = "SLIPWAY_DEBIAN_MIRROR";
/// The variable for the security archive's mirror.
pub const SECURITY_VARIABLE: &str = "SLIPWAY_DEBIAN_SECURITY_MIRROR";

/// The variable for the snapshot archive that [`SNAPSHOT`] stands for.
pub const SNAPSHOT_VARIABLE: &str = "SLIPWAY_DEBIAN_SNAPSHOT";
/// The word of a recipe for Debian's snapshot archive.
pub const SNAPSHOT: &str = "debian";
/// The mirror that a distributor of this program set when it was compiled.
const DEFAULT_MIRROR: Option<&str> = option_env!("SLIPWAY_DEFAULT_MIRROR");
/// The layout of Debian's snapshot service below its server. `{time}` need not be the time of a snapshot: the one before it answers.
const SNAPSHOT_LAYOUT: &str = "archive/{archive}/{time}";

/// The archive's name in the lock.
pub const ARCHIVE: &str = "debian";
/// The word in the lock for packages of no archive.
pub const DEBS: &str = "debs";
/// The security archive's name in the lock.
pub const SECURITY_ARCHIVE: &str = "debian-security";

/// The host's settings that decide about mirrors.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Value of [`MIRROR_VARIABLE`].
    pub mirror: Option<String>,
    /// Value of [`SECURITY_VARIABLE`].
    pub security: Option<String>,
    /// Value of [`SNAPSHOT_VARIABLE`].
    pub snapshot: Option<String>,
    /// apt's files: path and content, in apt's order.
    pub apt: Vec<(PathBuf, String)>,
    /// The lists of mirrors that entries of apt name: path and content.
    pub lists: Vec<(PathBuf, String)>,
    /// The mirror that a distributor of this program set when it was compiled.
    pub default: Option<String>,
}

impl Host {
    /// This host's settings: its environment and, if present, apt's configuration.
    #[must_use]
    pub fn here() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let apt = apt::files(Path::new("/etc/apt"));
        let lists = mirror_list::paths(&apt);
        Self {
            mirror: variable(MIRROR_VARIABLE),
            security: variable(SECURITY_VARIABLE),
            snapshot: variable(SNAPSHOT_VARIABLE),
            apt,
            lists: lists.into_iter().filter_map(apt::read).collect(),
            default: DEFAULT_MIRROR
                .filter(|url| !url.is_empty())
                .map(str::to_owned),
        }
    }
}

/// Base URLs of the archives, without a final slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    /// The archive with releases, updates and backports.
    pub main: String,
    /// The archive of security updates.
    pub security: String,
    /// The setting that [`Mirrors::main`] comes from, for messages.
    pub main_from: String,
    /// The setting that [`Mirrors::security`] comes from, for messages.
    pub security_from: String,
    /// Base URL of the snapshot archive that [`SNAPSHOT`] stands for, with `{archive}` and `{time}`.
    pub snapshot: String,
    /// Base URLs of the recipe's archives beside Debian's, by name.
    pub others: BTreeMap<String, String>,
    /// URLs of the recipe's packages of no archive, by SHA-256.
    pub debs: BTreeMap<String, String>,
}

impl Mirrors {
    /// Finds both mirrors independently: from the recipe, else the environment, else apt, else the program's own. If only the security
    /// mirror is not set, its URL is derived from that of the other one, since most mirrors have both in one folder;
    /// signatures make a wrong guess harmless.
    ///
    /// # Errors
    /// If a setting is not an http address, or none names the archive; the message names the setting to use.
    pub fn find(main: Option<&str>, security: Option<&str>, host: &Host) -> Result<Self> {
        type Found = Option<(String, String)>;
        let entries = apt::entries(&host.apt, &host.lists);
        let pick = |recipe: Option<&str>,
                    variable: &str,
                    value: &Option<String>,
                    kind: Kind|
         -> Result<Found> {
            let said = recipe
                .map(|url| (url.to_owned(), "the recipe".to_owned()))
                .or_else(|| Some((value.clone()?, format!("the variable {variable}"))));
            let Some((url, from)) = said else {
                return Ok(apt::best(&entries, kind));
            };
            Ok(Some((checked(&url, &from)?, from)))
        };
        let main = pick(main, MIRROR_VARIABLE, &host.mirror, Kind::Main)?;
        let security = pick(security, SECURITY_VARIABLE, &host.security, Kind::Security)?;
        let own = || {
            let url = host.default.as_deref()?;
            let from = "this program's own setting".to_owned();
            Some(checked(url, &from).map(|url| (url, from)))
        };
        let main = main.map(Ok).or_else(own).transpose()?;
        let Some((main, main_from)) = main else {
            bail!(unknown::error(&host.apt));
        };
        let (security, security_from) = match security {
            Some(found) => found,
            None => match main.strip_suffix("/debian") {
                Some(parent) => (
                    format!("{parent}/debian-security"),
                    format!(
                        "a guess beside {}; set {SECURITY_VARIABLE} if it is wrong",
                        fetch::shown(&main)
                    ),
                ),
                None => bail!(
                    "no mirror of Debian's security archive is known: set {SECURITY_VARIABLE} to its base URL, or \
                     `security-mirror` in the recipe's [debian]"
                ),
            },
        };
        let snapshot = match &host.snapshot {
            Some(url) => checked(url, &format!("the variable {SNAPSHOT_VARIABLE}"))?,
            None => format!("{}/{SNAPSHOT_LAYOUT}", server(&main)),
        };
        Ok(Self {
            snapshot,
            main,
            security,
            main_from,
            security_from,
            others: BTreeMap::new(),
            debs: BTreeMap::new(),
        })
    }

    /// Adds the recipe's archives beside Debian's.
    #[must_use]
    pub fn with(mut self, archives: &[ThirdParty]) -> Self {
        let each = archives.iter();
        self.others
            .extend(each.map(|archive| (archive.name.clone(), archive.url.clone())));
        self
    }

    /// Base URL of an archive by its name in the lock, and the setting that it comes from.
    #[must_use]
    pub fn archive(&self, name: &str) -> Option<(&str, &str)> {
        match name {
            ARCHIVE => Some((&self.main, &self.main_from)),
            SECURITY_ARCHIVE => Some((&self.security, &self.security_from)),
            _ => {
                let url = self.others.get(name)?;
                Some((url, "the recipe's [[debian.archives]]"))
            }
        }
    }
}

/// Whether an archive of the lock is Debian's.
#[must_use]
pub fn is_debians(archive: &str) -> bool {
    [ARCHIVE, SECURITY_ARCHIVE].contains(&archive)
}

/// Scheme, host and port of a URL.
#[must_use]
pub fn server(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    &url[..end]
}

fn checked(url: &str, from: &str) -> Result<String> {
    let url = url.trim().trim_end_matches('/');
    ensure!(
        is_http(url),
        "the mirror {:?} of {from} is not an http or https URL",
        fetch::shown(url)
    );
    Ok(url.to_owned())
}

fn is_http(url: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| {
        url.strip_prefix(scheme)
            .is_some_and(|rest| !rest.is_empty())
    })
}
