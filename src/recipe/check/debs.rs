//! `debs` in `[debian]`: packages of no archive, files beside the recipe or of a server.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::Rule;
use crate::debian::files::SCHEME;
use crate::format::digest;
use crate::format::kind::{HEAD, kind};
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// The first bytes of a package: it is an `ar` archive (deb(5)).
const MAGIC: &[u8] = b"!<arch>\n";

/// It is in the root, and taken in place of any other version of its name. Exactly one of `file` and `url` is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawDeb {
    /// A package's file; a path relative to this recipe.
    pub file: Option<String>,
    /// URL of a package's file, without user and password.
    pub url: Option<String>,
    /// SHA-256 of the file, hexadecimal. Required with `url`.
    pub sha256: Option<String>,
}

/// A package of no archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DebFile {
    /// Where it comes from.
    #[serde(skip)]
    pub from: DebFrom,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
}

/// The source of a package of no archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DebFrom {
    /// A file of the building host.
    File(PathBuf),
    /// A server.
    Url(String),
}

impl DebFile {
    /// Its URL, `file://` for a file of the building host.
    ///
    /// # Errors
    /// If the current folder cannot be read.
    pub fn url(&self) -> Result<String> {
        match &self.from {
            DebFrom::File(path) => Ok(format!("{SCHEME}{}", std::path::absolute(path)?.display())),
            DebFrom::Url(url) => Ok(url.clone()),
        }
    }

    /// The file's name.
    #[must_use]
    pub fn name(&self) -> String {
        let name = match &self.from {
            DebFrom::File(path) => path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            DebFrom::Url(url) => Some(name_in(url).to_owned()),
        };
        let plain = |name: &String| !["", ".", ".."].contains(&name.as_str());
        name.filter(plain)
            .unwrap_or_else(|| "package.deb".to_owned())
    }
}

/// The last part of a URL's path.
fn name_in(url: &str) -> &str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default()
}

/// SHA-256 of a file that begins as a package does.
fn read(path: &Path) -> Result<String> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD as u64).read_to_end(&mut head)?;
    ensure!(
        head.starts_with(MAGIC),
        "it is not a Debian package but {}",
        kind(&head)
    );
    digest::sha256(path)
}

impl Check<'_> {
    pub(super) fn debs(&mut self, raw: &[RawDeb]) -> Vec<DebFile> {
        let items = self.find("debian.debs").map_or(&[][..], Node::items);
        let mut all: Vec<DebFile> = Vec::new();
        for (raw, item) in raw.iter().zip(items) {
            let Some(deb) = self.deb(raw, item) else {
                continue;
            };
            if all.iter().any(|before| before.sha256 == deb.sha256) {
                self.add(Mistake::at(
                    &item.place,
                    "this package is given twice in `debian.debs`",
                    "expected each file once",
                ));
            }
            all.push(deb);
        }
        all
    }

    fn deb(&mut self, raw: &RawDeb, item: &Node) -> Option<DebFile> {
        let RawDeb { file, url, sha256 } = raw;
        let place = |key: &str| item.at(&[key]).unwrap_or(item).place.clone();
        let sha256 = sha256.as_ref().map(|digits| digits.to_ascii_lowercase());
        if let Some(digits) = &sha256
            && fetch::Digest::sha256(digits).is_none()
        {
            self.add(Mistake::at(
                &place("sha256"),
                format!("{digits:?} is not a SHA-256"),
                "expected 64 hexadecimal digits, as `sha256sum` prints them",
            ));
            return None;
        }
        match (file, url) {
            (Some(file), None) => {
                let path = self.host_path(&place("file"), file);
                let found = self.file_digest(&path, item)?;
                if sha256.as_ref().is_some_and(|given| *given != found) {
                    self.add(Mistake::at(
                        &place("sha256"),
                        format!("{} has the SHA-256 {found}", path.display()),
                        "expected this, or none: the lock pins it",
                    ));
                }
                Some(DebFile {
                    from: DebFrom::File(path),
                    sha256: found,
                })
            }
            (None, Some(url)) => {
                if let Err(why) = Rule::Url.check(url) {
                    self.add(why.mistake(&place("url")));
                }
                if sha256.is_none() {
                    self.add(Mistake::at(
                        &item.place,
                        "a package of a server without its `sha256`",
                        "expected sha256 = \"…\" beside the URL: nothing else says that it is the package that is meant",
                    ));
                }
                Some(DebFile {
                    from: DebFrom::Url(url.clone()),
                    sha256: sha256?,
                })
            }
            (file, url) => {
                let given = usize::from(file.is_some()) + usize::from(url.is_some());
                let lost = |gone: &String| gone.starts_with("debian.debs[]");
                if given > 0 || !self.gone.iter().any(lost) {
                    self.add(Mistake::at(
                        &item.place,
                        format!("a package has {given} of its sources"),
                        "expected exactly one of file and url",
                    ));
                }
                None
            }
        }
    }

    /// SHA-256 of a package's file.
    fn file_digest(&mut self, path: &Path, item: &Node) -> Option<String> {
        let place = item.at(&["file"]).unwrap_or(item).place.clone();
        let why = match read(path) {
            Ok(digest) => return Some(digest),
            Err(error) => error.root_cause().to_string(),
        };
        self.add(Mistake::at(
            &place,
            format!("{} is not usable: {why}", path.display()),
            "expected a .deb file, relative to this recipe",
        ));
        None
    }
}
