//! Base URLs of the archive: from the recipe, else the environment, else the host's apt configuration, else the program's own.

mod mirror_list;
mod unknown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::deb822::Reader;
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
        let apt = apt_files(Path::new("/etc/apt"));
        let lists = mirror_list::paths(&apt);
        let read = |path: PathBuf| Some((path.clone(), std::fs::read_to_string(path).ok()?));
        Self {
            mirror: variable(MIRROR_VARIABLE),
            security: variable(SECURITY_VARIABLE),
            snapshot: variable(SNAPSHOT_VARIABLE),
            apt,
            lists: lists.into_iter().filter_map(read).collect(),
            default: DEFAULT_MIRROR
                .filter(|url| !url.is_empty())
                .map(str::to_owned),
        }
    }
}

/// `sources.list`, then the files of `sources.list.d` that apt reads, by name.
fn apt_files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut paths = vec![folder.join("sources.list")];
    if let Ok(entries) = std::fs::read_dir(folder.join("sources.list.d")) {
        let mut parts: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "list" || extension == "sources")
            })
            .collect();
        parts.sort();
        paths.extend(parts);
    }
    paths
        .into_iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(&path).ok()?;
            Some((path, text))
        })
        .collect()
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
        let entries = entries(&host.apt, &host.lists);
        let pick = |recipe: Option<&str>,
                    variable: &str,
                    value: &Option<String>,
                    kind: Kind|
         -> Result<Found> {
            let said = recipe
                .map(|url| (url.to_owned(), "the recipe".to_owned()))
                .or_else(|| Some((value.clone()?, format!("the variable {variable}"))));
            let Some((url, from)) = said else {
                return Ok(best(&entries, kind));
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Main,
    Security,
}

/// An active binary entry of apt.
#[derive(Clone, Debug, Default)]
struct Entry {
    file: PathBuf,
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
}

impl Entry {
    /// The kind of Debian archive, by its suites.
    fn kind(&self) -> Option<Kind> {
        if !self.components.iter().any(|component| component == "main") {
            return None;
        }
        let mut kind = None;
        for suite in &self.suites {
            let (name, part) = suite.split_once(['-', '/']).unwrap_or((suite, ""));
            if !SUITES.contains(&name) {
                return None;
            }
            kind = match part {
                "" => Some(Kind::Main),
                "security" | "updates" if suite.contains('/') || part == "security" => {
                    Some(Kind::Security)
                }
                _ => kind,
            };
        }
        kind
    }

    /// How doubtful it is that the entry is Debian's, 0 for certain: third parties use Debian's suite names too.
    fn doubt(&self) -> Option<u8> {
        match &self.signed_by {
            Some(keys) => {
                let debian = keys.split([' ', ',', '\n']).any(|key| {
                    Path::new(key)
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with("debian-archive-"))
                });
                debian.then_some(0)
            }
            None => {
                let last = self.uri.rsplit('/').next().unwrap_or_default();
                Some(u8::from(!matches!(last, ARCHIVE | SECURITY_ARCHIVE)) + 1)
            }
        }
    }
}

/// Suites of Debian by code name and by role.
const SUITES: &[&str] = &[
    "stable",
    "oldstable",
    "oldoldstable",
    "testing",
    "unstable",
    "sid",
    "buster",
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
];

fn best(entries: &[Entry], kind: Kind) -> Option<(String, String)> {
    entries
        .iter()
        .filter(|entry| entry.kind() == Some(kind))
        .filter_map(|entry| Some((entry.doubt()?, entry)))
        // The first of the least doubtful: `min_by_key` keeps the earliest.
        .min_by_key(|(doubt, _)| *doubt)
        .map(|(_, entry)| (entry.uri.clone(), entry.file.display().to_string()))
}

fn entries(files: &[(PathBuf, String)], lists: &[(PathBuf, String)]) -> Vec<Entry> {
    let mut all = Vec::new();
    for (file, text) in files {
        let found = if file
            .extension()
            .is_some_and(|extension| extension == "sources")
        {
            deb822_entries(text)
        } else {
            line_entries(text)
        };
        all.extend(
            found
                .into_iter()
                .filter_map(|entry| match mirror_list::path(&entry.uri) {
                    Some(path) => Some(Entry {
                        uri: mirror_list::first(lists, &path)?,
                        ..entry
                    }),
                    None => Some(entry),
                })
                .filter(|entry| is_http(&entry.uri))
                .map(|entry| Entry {
                    uri: entry.uri.trim_end_matches('/').to_owned(),
                    file: file.clone(),
                    ..entry
                }),
        );
    }
    all
}

/// One-line form: `deb [option=value …] uri suite component …` (sources.list(5)).
fn line_entries(text: &str) -> Vec<Entry> {
    let mut all = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line
            .strip_prefix("deb")
            .filter(|rest| rest.starts_with([' ', '\t', '[']))
        else {
            continue;
        };
        let rest = rest.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(inner) => match inner.split_once(']') {
                Some(parts) => parts,
                None => continue,
            },
            None => ("", rest),
        };
        let mut words = rest.split_ascii_whitespace();
        let (Some(uri), Some(suite)) = (words.next(), words.next()) else {
            continue;
        };
        let signed_by = options.split_ascii_whitespace().find_map(|option| {
            let (name, value) = option.split_once('=')?;
            name.trim_end_matches(['+', '-'])
                .eq_ignore_ascii_case("signed-by")
                .then(|| value.to_owned())
        });
        all.push(Entry {
            file: PathBuf::new(),
            uri: uri.to_owned(),
            suites: vec![suite.to_owned()],
            components: words.map(str::to_owned).collect(),
            signed_by,
        });
    }
    all
}

/// Paragraph form (sources.list(5), "DEB822-STYLE FORMAT"). At a line that does not parse the rest of the file is
/// skipped: apt itself would refuse the file.
fn deb822_entries(text: &str) -> Vec<Entry> {
    // A comment may be inside a value, which the reader gives as one string.
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut reader = Reader::new(&text);
    let mut all = Vec::new();
    loop {
        let mut entry = Entry::default();
        let mut uris = Vec::new();
        let mut binary = false;
        let mut enabled = true;
        let words = |value: &str| -> Vec<String> {
            value.split_ascii_whitespace().map(str::to_owned).collect()
        };
        let more = reader.paragraph(|name, value| match name.to_ascii_lowercase().as_str() {
            "types" => binary = words(value).iter().any(|word| word == "deb"),
            "uris" => uris = words(value),
            "suites" => entry.suites = words(value),
            "components" => entry.components = words(value),
            "signed-by" => entry.signed_by = Some(value.to_owned()),
            // apt's StringToBool.
            "enabled" => {
                enabled = !matches!(
                    value.to_ascii_lowercase().as_str(),
                    "no" | "false" | "without" | "off" | "disable" | "0"
                );
            }
            _ => {}
        });
        if !matches!(more, Ok(true)) {
            return all;
        }
        if !binary || !enabled {
            continue;
        }
        for uri in uris {
            // An entry for each suite, since a paragraph may mix the archive and its security updates.
            for suite in &entry.suites {
                all.push(Entry {
                    uri: uri.clone(),
                    suites: vec![suite.clone()],
                    ..entry.clone()
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apt(files: &[(&str, &str)]) -> Host {
        Host {
            apt: files
                .iter()
                .map(|(name, text)| (Path::new("/etc/apt").join(name), (*text).to_owned()))
                .collect(),
            ..Host::default()
        }
    }

    fn found(host: &Host) -> (String, String) {
        let mirrors = Mirrors::find(None, None, host).unwrap();
        (mirrors.main, mirrors.security)
    }

    const PARAGRAPHS: &str = "\
Types: deb deb-src
# an old place: http://old.example/debian
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

    #[test]
    fn both_forms_of_apt_are_read() {
        let lines = "\
# deb http://comment.example/debian trixie main
deb-src http://source.example/debian trixie main
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian/ trixie main contrib # the mirror
deb\thttp://security.example/debian-security trixie-security main
";
        let expected = (
            "http://mirror.example/debian".to_owned(),
            "http://security.example/debian-security".to_owned(),
        );
        assert_eq!(found(&apt(&[("sources.list", lines)])), expected);
        assert_eq!(
            found(&apt(&[("sources.list.d/debian.sources", PARAGRAPHS)])),
            expected
        );
        let one = PARAGRAPHS.replace(
            "Components: main\nSigned",
            "Components: main\nEnabled: yes\nSigned",
        );
        assert_eq!(
            found(&apt(&[("sources.list.d/debian.sources", &one)])),
            expected
        );
    }

    #[test]
    fn one_paragraph_may_hold_everything() {
        let text = "Types: deb\nURIs: http://all.example/mix\nSuites: trixie trixie-security\n  trixie-updates\nComponents: main non-free\n";
        let all = "http://all.example/mix".to_owned();
        assert_eq!(
            found(&apt(&[("sources.list.d/x.sources", text)])),
            (all.clone(), all)
        );
    }

    #[test]
    fn entries_that_are_off_or_not_debians_are_skipped() {
        let disabled = PARAGRAPHS.replace("mirror.example", "off.example") + "Enabled: no\n";
        let disabled =
            disabled.replacen("Components: main\n", "Components: main\nEnabled: no\n", 1);
        let others = "\
deb https://vendor.example/apt bookworm main
deb [signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example/stable/debian bookworm main
deb https://vendor.example/linux/debian bookworm stable
deb https://vendor.example/debian bookworm-pgdg main
deb https://vendor.example/node nodistro main
deb cdrom:[Debian]/ bookworm main
deb file:/srv/debian bookworm main
deb http://real.example/debian bookworm main
deb http://real.example/debian-security bookworm/updates main
";
        let host = apt(&[
            ("sources.list", others),
            ("sources.list.d/debian.sources", &disabled),
        ]);
        assert_eq!(
            found(&host),
            (
                "http://real.example/debian".to_owned(),
                "http://real.example/debian-security".to_owned()
            )
        );
    }

    #[test]
    fn an_entry_signed_by_debians_keyring_is_the_surest() {
        let host = apt(&[
            (
                "sources.list",
                "deb http://maybe.example/debian bookworm main\ndeb http://maybe.example/debian-security bookworm-security main",
            ),
            ("sources.list.d/debian.sources", PARAGRAPHS),
        ]);
        assert_eq!(found(&host).0, "http://mirror.example/debian");
        assert_eq!(found(&host).1, "http://security.example/debian-security");
    }

    #[test]
    fn recipe_then_environment_then_apt() {
        let mut host = apt(&[("sources.list.d/debian.sources", PARAGRAPHS)]);
        host.mirror = Some("https://env.example/d/".to_owned());
        let find = |main, security, host: &Host| {
            let mirrors = Mirrors::find(main, security, host).unwrap();
            (mirrors.main, mirrors.main_from, mirrors.security)
        };
        let (main, from, security) = find(Some("http://recipe.example/d"), None, &host);
        assert_eq!(
            (main.as_str(), from.as_str()),
            ("http://recipe.example/d", "the recipe")
        );
        assert_eq!(security, "http://security.example/debian-security");
        let (main, from, _) = find(None, None, &host);
        assert_eq!(main, "https://env.example/d");
        assert_eq!(from, "the variable SLIPWAY_DEBIAN_MIRROR");
        host.mirror = None;
        host.security = Some("http://env.example/s".to_owned());
        let (main, from, security) = find(None, None, &host);
        assert_eq!(main, "http://mirror.example/debian");
        assert_eq!(from, "/etc/apt/sources.list.d/debian.sources");
        assert_eq!(security, "http://env.example/s");
    }

    #[test]
    fn the_security_archive_is_looked_for_beside_the_other() {
        let host = Host {
            mirror: Some("http://env.example/pub/debian".to_owned()),
            ..Host::default()
        };
        assert_eq!(found(&host).1, "http://env.example/pub/debian-security");
        let host = Host {
            mirror: Some("http://env.example/other".to_owned()),
            ..Host::default()
        };
        let error = Mirrors::find(None, None, &host).unwrap_err().to_string();
        assert!(error.contains(SECURITY_VARIABLE), "{error}");
    }

    #[test]
    fn a_list_of_mirrors_that_apt_names_is_read() {
        let sources = "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie trixie-updates\n\
                       Components: main\n\nTypes: deb\nURIs: mirror+file:///etc/apt/mirrors/debian-security.list\n\
                       Suites: trixie-security\nComponents: main\n";
        let mut host = apt(&[("sources.list.d/debian.sources", sources)]);
        let paths = mirror_list::paths(&host.apt);
        assert_eq!(paths.len(), 2, "{paths:?}");
        host.lists = paths
            .into_iter()
            .zip([
                "http://a.example/debian/\n",
                "http://a.example/debian-security\n",
            ])
            .map(|(path, text)| (path, text.to_owned()))
            .collect();
        let found = Mirrors::find(None, None, &host).unwrap();
        assert_eq!(found.main, "http://a.example/debian");
        assert_eq!(found.security, "http://a.example/debian-security");
        assert_eq!(found.main_from, "/etc/apt/sources.list.d/debian.sources");
        // A list that is not there is no mirror.
        host.lists.clear();
        assert!(Mirrors::find(None, None, &host).is_err());
    }

    #[test]
    fn the_programs_own_mirror_is_the_last_that_is_asked() {
        let own = Host {
            default: Some("http://own.example/debian/".to_owned()),
            ..Host::default()
        };
        let found = Mirrors::find(None, None, &own).unwrap();
        assert_eq!(found.main, "http://own.example/debian");
        assert!(found.main_from.contains("own setting"));
        let set = Host {
            mirror: Some("http://env.example/debian".to_owned()),
            ..own
        };
        let found = Mirrors::find(None, None, &set).unwrap();
        assert_eq!(found.main, "http://env.example/debian");
        let compiled = option_env!("SLIPWAY_DEFAULT_MIRROR").filter(|url| !url.is_empty());
        assert_eq!(Host::here().default.as_deref(), compiled);
    }

    #[test]
    fn without_any_word_the_error_says_what_to_set() {
        let error = Mirrors::find(None, None, &Host::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(MIRROR_VARIABLE)
                && error.contains("no apt configuration")
                && error.contains("debian.org/mirror/list"),
            "{error}"
        );
        let ubuntu = apt(&[(
            "sources.list",
            "deb http://archive.example/ubuntu noble main",
        )]);
        let error = Mirrors::find(None, None, &ubuntu).unwrap_err().to_string();
        assert!(error.contains("/etc/apt/sources.list"), "{error}");
        let error = Mirrors::find(Some("ftp://x"), None, &Host::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("ftp://x") && error.contains("the recipe"),
            "{error}"
        );
    }

    #[test]
    fn apts_folder_is_read_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let parts = folder.path().join("sources.list.d");
        std::fs::create_dir(&parts).unwrap();
        for name in ["b.list", "a.sources", "c.list.save", "d.sources"] {
            std::fs::write(parts.join(name), name).unwrap();
        }
        let read: Vec<String> = apt_files(folder.path())
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        assert_eq!(read, ["a.sources", "b.list", "d.sources"]);
    }

    #[test]
    fn the_snapshot_archive_is_the_variable_s_or_on_the_mirror_s_server() {
        let mut host = Host {
            mirror: Some("http://mirror.example:8080/linux/debian".to_owned()),
            security: Some("http://mirror.example/security".to_owned()),
            ..Host::default()
        };
        let snapshot = |host: &Host| Mirrors::find(None, None, host).map(|found| found.snapshot);
        let beside = "http://mirror.example:8080/archive/{archive}/{time}";
        assert_eq!(snapshot(&host).unwrap(), beside);
        host.snapshot = Some("https://snapshots.example/{archive}/{time}/".to_owned());
        let own = "https://snapshots.example/{archive}/{time}";
        assert_eq!(snapshot(&host).unwrap(), own);
        host.snapshot = Some("snapshots.example".to_owned());
        let error = snapshot(&host).unwrap_err().to_string();
        assert!(error.contains(SNAPSHOT_VARIABLE), "{error}");
    }
}
