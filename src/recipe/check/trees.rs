//! `[[overlay.archives]]` and `[[overlay.images]]`: trees of files that somebody else packed.

use std::fs;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::download::Download;
use super::names;
use super::paths::covered;
use super::references::is_pinned;
use crate::format::digest;
use crate::oci::has_login;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// How many leading parts of its paths an archive may lose.
const MOST_PARTS: u32 = 32;

/// A tar archive, plain or compressed by gzip, xz or zstd. Exactly one of `file` and `url` is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawArchive {
    /// The archive; a path relative to this recipe.
    pub file: Option<String>,
    /// URL of the archive, without user and password; the build fetches it.
    pub url: Option<String>,
    /// SHA-256 of the archive, hexadecimal. Required with `url`.
    pub sha256: Option<String>,
    /// The folder of the image that gets its content. Required.
    pub to: Option<String>,
    /// How many leading parts of each path are left out, as tar's --strip-components. Default: 0.
    pub strip: Option<u32>,
    /// Whether files keep the numbers of their owners; otherwise all are root's. Default: false.
    pub keep_owners: Option<bool>,
}

/// The files of a container image.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawImageTree {
    /// Its reference with a digest, as registry.example/name:tag@sha256:…; the build pulls it. Required.
    pub oci: Option<String>,
    /// The folder of the image that gets its content. Required.
    pub to: Option<String>,
    /// The folder of the container image whose content is taken. Default: /.
    pub path: Option<String>,
    /// Whether files keep the numbers of their owners; otherwise all are root's. Default: false.
    pub keep_owners: Option<bool>,
}

/// A tree of files that somebody else packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileTree {
    /// Where it comes from.
    pub from: TreeFrom,
    /// The folder of the root that gets its content, `/` or without a slash at its end.
    pub to: String,
    /// Whether files keep the numbers of their owners.
    pub keep_owners: bool,
    /// Its number in its list of the recipe.
    #[serde(skip)]
    pub number: usize,
    /// Where the recipe has it, for messages.
    #[serde(skip)]
    pub origin: String,
}

/// The source of a tree of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TreeFrom {
    /// A tar archive.
    Archive {
        /// The building host's file, or the server's.
        file: ArchiveFile,
        /// How many leading parts of each path are left out.
        strip: usize,
    },
    /// A container image.
    Image {
        /// Its reference with a digest.
        reference: String,
        /// The folder of it whose content is taken, `/` or without a slash at its end.
        path: String,
    },
}

/// The file of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArchiveFile {
    /// Of the building host; the hash is in the key of what is made of it.
    Host(#[serde(skip)] PathBuf),
    /// Of a server.
    Download(Download),
}

impl FileTree {
    /// The list of the recipe that has it.
    #[must_use]
    pub const fn list(&self) -> [&'static str; 2] {
        match self.from {
            TreeFrom::Archive { .. } => ["overlay", "archives"],
            TreeFrom::Image { .. } => ["overlay", "images"],
        }
    }

    /// The file of a server that it is made of.
    #[must_use]
    pub const fn download(&self) -> Option<&Download> {
        match &self.from {
            TreeFrom::Archive {
                file: ArchiveFile::Download(download),
                ..
            } => Some(download),
            _ => None,
        }
    }
}

/// The trees in their order: archives, then container images.
pub(super) fn check(
    check: &mut Check<'_>,
    archives: &[RawArchive],
    images: &[RawImageTree],
) -> Vec<FileTree> {
    let items = |check: &Check<'_>, list: &str| {
        let node = check.find(list);
        node.map_or(&[][..], Node::items).to_vec()
    };
    let mut all = Vec::new();
    let nodes = items(check, "overlay.archives");
    for (number, (raw, node)) in archives.iter().zip(&nodes).enumerate() {
        let from = archive(check, raw, node);
        let to = folder(check, node, "to", raw.to.as_deref());
        all.extend(tree(check, from, to, raw.keep_owners, (number, node)));
    }
    let nodes = items(check, "overlay.images");
    for (number, (raw, node)) in images.iter().zip(&nodes).enumerate() {
        let from = image(check, raw, node);
        let to = folder(check, node, "to", raw.to.as_deref());
        all.extend(tree(check, from, to, raw.keep_owners, (number, node)));
    }
    all
}

fn tree(
    check: &Check<'_>,
    from: Option<TreeFrom>,
    to: Option<String>,
    keep_owners: Option<bool>,
    (number, node): (usize, &Node),
) -> Option<FileTree> {
    Some(FileTree {
        from: from?,
        to: to?,
        keep_owners: keep_owners.unwrap_or(false),
        number,
        origin: check.mistakes.position(&node.place),
    })
}

fn archive(check: &mut Check<'_>, raw: &RawArchive, node: &Node) -> Option<TreeFrom> {
    let at = |key: &str| node.at(&[key]).unwrap_or(node).place.clone();
    let strip = raw.strip.unwrap_or(0);
    if strip > MOST_PARTS {
        check.add(Mistake::at(
            &at("strip"),
            format!("`strip` cannot be {strip}"),
            format!("expected at most {MOST_PARTS}"),
        ));
    }
    let sha256 = at("sha256");
    let sha256 = raw.sha256.as_deref().map(|digits| (digits, &sha256));
    let file = match (&raw.file, &raw.url) {
        (Some(file), None) => {
            let path = check.host_path(&at("file"), file);
            let found = match digest::sha256(&path) {
                Ok(found) => found,
                Err(error) => {
                    check.add(Mistake::at(
                        &at("file"),
                        format!("{} is not usable: {}", path.display(), error.root_cause()),
                        "expected a tar archive, relative to this recipe",
                    ));
                    return None;
                }
            };
            if let Some((digits, place)) = sha256
                && check.sha256(digits, place)? != found
            {
                check.add(Mistake::at(
                    place,
                    format!("{} has the SHA-256 {found}", path.display()),
                    "expected this, or none: the file's content is in the image's key",
                ));
            }
            ArchiveFile::Host(fs::canonicalize(&path).unwrap_or(path))
        }
        (None, Some(url)) => {
            let url = (url.as_str(), &at("url"));
            ArchiveFile::Download(check.download(url, sha256)?)
        }
        (file, url) => {
            let given = usize::from(file.is_some()) + usize::from(url.is_some());
            let lost = |gone: &String| gone.starts_with("overlay.archives[]");
            if given > 0 || !check.gone.iter().any(lost) {
                check.add(Mistake::at(
                    &node.place,
                    format!("an archive has {given} of its sources"),
                    "expected exactly one of file and url",
                ));
            }
            return None;
        }
    };
    let strip = usize::try_from(strip).ok()?;
    Some(TreeFrom::Archive { file, strip })
}

fn image(check: &mut Check<'_>, raw: &RawImageTree, node: &Node) -> Option<TreeFrom> {
    let Some(reference) = &raw.oci else {
        if !check.gone.iter().any(|gone| gone == "overlay.images[].oci") {
            check.add(Mistake::at(
                &node.place,
                "a container image without its reference",
                "expected oci = \"registry.example/name:tag@sha256:…\"",
            ));
        }
        return None;
    };
    let place = node.at(&["oci"])?.place.clone();
    if has_login(reference) {
        check.add(names::of_login(&place, "the reference"));
    } else if let Err(why) = is_pinned(reference) {
        check.add(Mistake::at(
            &place,
            format!("{reference:?} does not say which image it is: {why}"),
            "expected registry.example/name:tag@sha256: and 64 hexadecimal digits",
        ));
    }
    let path = match &raw.path {
        None => "/".to_owned(),
        Some(path) => folder(check, node, "path", Some(path))?,
    };
    Some(TreeFrom::Image {
        reference: reference.clone(),
        path,
    })
}

/// The path of a folder, in the image or in a container image.
fn folder(check: &mut Check<'_>, node: &Node, key: &str, path: Option<&str>) -> Option<String> {
    let Some(path) = path else {
        let lost = check
            .gone
            .iter()
            .any(|gone| gone.ends_with(&format!("[].{key}")));
        if !lost {
            check.add(Mistake::at(
                &node.place,
                format!("`{key}` is missing"),
                format!("expected {key} = \"/usr/lib/…\", the folder that gets the content"),
            ));
        }
        return None;
    };
    let place = node.at(&[key])?.place.clone();
    let inside = path.strip_prefix('/');
    let is_plain = inside.is_some_and(|inside| {
        let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        inside.is_empty() || inside.split('/').all(plain)
    });
    if !is_plain {
        check.add(Mistake::at(
            &place,
            format!("{path:?} is not the plain path of a folder"),
            "expected / or a path that begins with it, without //, . and .. and without a / at its end",
        ));
        return None;
    }
    if let (Some((found, expected)), "to") = (covered(path), key) {
        check.add(Mistake::at(&place, found, expected));
        return None;
    }
    Some(path.to_owned())
}
