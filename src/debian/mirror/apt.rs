//! The entries of apt's configuration, and which are Debian's.

use std::path::{Path, PathBuf};

use super::{ARCHIVE, SECURITY_ARCHIVE, is_http, mirror_list};
use crate::debian::deb822::Reader;

/// `sources.list`, then the files of `sources.list.d` that apt reads, by name.
pub(super) fn files(folder: &Path) -> Vec<(PathBuf, String)> {
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
    paths.into_iter().filter_map(read).collect()
}

/// A file with its path; none if it cannot be read. A comment may have any bytes, as a name in Latin-1.
pub(super) fn read(path: PathBuf) -> Option<(PathBuf, String)> {
    let content = std::fs::read(&path).ok()?;
    Some((path, String::from_utf8_lossy(&content).into_owned()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Main,
    Security,
}

/// An active binary entry of apt.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
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

/// The URI of the surest entry of a kind, and the file that it is in.
pub(super) fn best(entries: &[Entry], kind: Kind) -> Option<(String, String)> {
    entries
        .iter()
        .filter(|entry| entry.kind() == Some(kind))
        .filter_map(|entry| Some((entry.doubt()?, entry)))
        // The first of the least doubtful: `min_by_key` keeps the earliest.
        .min_by_key(|(doubt, _)| *doubt)
        .map(|(_, entry)| (entry.uri.clone(), entry.file.display().to_string()))
}

/// The active binary entries of files, with the first mirror of a list in place of its name.
pub(super) fn entries(files: &[(PathBuf, String)], lists: &[(PathBuf, String)]) -> Vec<Entry> {
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
