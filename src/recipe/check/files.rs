//! Files that a recipe lays over those of the packages: `[overlay]` folders first, then `[files]`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::download::Download;
use super::names::Rule;
use super::paths::{LINKS, covered};
use super::size::TextOrNumber;
use super::trees::{RawArchive, RawImageTree};
use super::variables::Variables;
use crate::host::tree;
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::tree::{Node, Value};

/// What is put at one path. Exactly one of content, source, url, link, directory and remove is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawFile {
    /// The file's text.
    pub content: Option<String>,
    /// A file to copy; a path relative to this recipe.
    pub source: Option<String>,
    /// A file of a server, without user and password; the build fetches it. Not for files whose content is checked with the recipe.
    pub url: Option<String>,
    /// SHA-256 of the file, hexadecimal. Required with `url`.
    pub sha256: Option<String>,
    /// Whether content or source is filled in: `{{ name }}` is the value of that variable, `{{{{` two braces. Default: false.
    pub template: Option<bool>,
    /// A symbolic link with this target.
    pub link: Option<String>,
    /// A folder, when true.
    pub directory: Option<bool>,
    /// Nothing, when true: what a package put there goes, with everything below it. When false: an inherited entry does not count.
    pub remove: Option<bool>,
    /// Permission bits in octal, as "0644" or 0o644. Default: 0644; 0755 for folders and executable sources.
    pub mode: Option<TextOrNumber>,
    /// Name or number of the owner. Default: root.
    pub user: Option<TextOrNumber>,
    /// Name or number of the group. Default: root.
    pub group: Option<TextOrNumber>,
}

/// Whole folders laid over the packages' files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawOverlay {
    /// Folders whose content is copied to `/`, all owned by root; paths relative to this recipe.
    /// Files get mode 0644, or 0755 if they are executable; `[files]` wins over them.
    pub trees: Vec<String>,
    /// Tar archives whose content is put into a folder of the image; `trees` and `[files]` win over them, and a later one over an
    /// earlier.
    pub archives: Vec<RawArchive>,
    /// Container images whose files are put into a folder of the image, over the archives.
    pub images: Vec<RawImageTree>,
}

/// One path of the root, set by the recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    /// Absolute path inside the root.
    pub path: String,
    /// Its kind and content.
    pub kind: FileKind,
    /// Permission bits, set-user-ID, set-group-ID and sticky included; unused for links and removals.
    pub mode: u32,
    /// Name or number of the owner.
    pub user: String,
    /// Name or number of the group.
    pub group: String,
    /// Where the recipe has it, for messages: file, line and column, and the folder of `overlay.trees`.
    #[serde(skip)]
    pub origin: String,
}

/// Kind and content of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// The content of a file of the building host.
    Source(#[serde(skip)] PathBuf),
    /// These bytes.
    Content(Vec<u8>),
    /// A file of a server.
    Download(Download),
    /// A symbolic link with this target.
    Link(String),
    /// A folder.
    Directory,
    /// Removal of a package's file or folder, with its content.
    Remove,
}

/// The files, and the place of each in the recipe.
pub(super) fn check(
    check: &mut Check<'_>,
    overlay: &RawOverlay,
    files: &BTreeMap<String, RawFile>,
    variables: &Variables,
) -> Vec<(FileEntry, Place)> {
    let mut all = BTreeMap::new();
    check.unique("overlay.trees");
    let items = check.find("overlay.trees").map_or(&[][..], Node::items);
    for (tree, item) in overlay.trees.iter().zip(items) {
        let folder = check.host_path(&item.place, tree);
        let origin = format!("{}, folder {tree}", check.mistakes.position(&item.place));
        let mut bad = Vec::new();
        let mut add = |path: String, kind, mode| {
            if let Some(found) = bad_path(&path) {
                bad.push(found);
                return;
            }
            let entry = entry_of(&path, kind, mode, &origin);
            all.insert(path, (entry, item.place.clone()));
        };
        if let Err(error) = lay_over(&folder, &mut add) {
            check.add(Mistake::at(
                &item.place,
                format!("{error:#}"),
                "expected a folder, relative to this recipe",
            ));
        }
        bad_paths(check, &item.place, bad);
    }
    for (path, raw) in files {
        if let Some(entry) = file(check, path, raw, variables) {
            all.insert(path.clone(), entry);
        }
    }
    all.into_values().collect()
}

/// Adds the mistakes of a folder's paths: of many with the same remedy the first one, and how many more there are.
fn bad_paths(check: &mut Check<'_>, place: &Place, bad: Vec<(String, &'static str)>) {
    let mut kinds: BTreeMap<&str, (String, usize)> = BTreeMap::new();
    for (found, expected) in bad {
        let kind = kinds.entry(expected).or_insert((found, 0));
        kind.1 += 1;
    }
    for (expected, (first, count)) in kinds {
        let found = match count {
            1 => first,
            _ => format!("{first}, and {} more like it in the folder", count - 1),
        };
        check.add(Mistake::at(place, found, expected));
    }
}

/// Adds the content of a folder of the building host by `add`: path, kind and mode. Only empty folders are added, so that a
/// folder of the image keeps its owner and mode.
fn lay_over(folder: &Path, add: &mut dyn FnMut(String, FileKind, u32)) -> Result<()> {
    let mut items = tree::walk(folder)?.into_iter().peekable();
    while let Some(item) = items.next() {
        let (kind, mode) = if item.meta.is_symlink() {
            let target = fs::read_link(&item.path)?;
            let Some(target) = target.to_str() else {
                bail!("the target of {} is not UTF-8", item.path.display());
            };
            (FileKind::Link(target.to_owned()), 0o777)
        } else if item.meta.is_dir() {
            // In the sorted list a folder's content follows the folder.
            if items
                .peek()
                .is_some_and(|next| next.path.starts_with(&item.path))
            {
                continue;
            }
            (FileKind::Directory, 0o755)
        } else if item.meta.is_file() {
            let mode = source_mode(&item.path)?;
            (FileKind::Source(item.path), mode)
        } else {
            bail!("{} is not a file, folder or link", item.path.display());
        };
        add(item.inside, kind, mode);
    }
    Ok(())
}

fn entry_of(path: &str, kind: FileKind, mode: u32, origin: &str) -> FileEntry {
    FileEntry {
        path: path.to_owned(),
        kind,
        mode,
        user: "root".to_owned(),
        group: "root".to_owned(),
        origin: origin.to_owned(),
    }
}

/// The umask of the checkout must not affect the image: only the executable bit is kept.
fn source_mode(path: &Path) -> std::io::Result<u32> {
    let executable = fs::metadata(path)?.permissions().mode() & 0o100 != 0;
    Ok(if executable { 0o755 } else { 0o644 })
}

fn file(
    check: &mut Check<'_>,
    path: &str,
    raw: &RawFile,
    variables: &Variables,
) -> Option<(FileEntry, Place)> {
    let entry = check.tree.entry("files")?.node.entry(path)?;
    let (key, node) = (entry.key.clone(), &entry.node);
    let bad = bad_path(path);
    let is_bad = bad.is_some();
    if let Some((found, expected)) = bad {
        check.add(Mistake::at(&key, found, expected));
    }
    let (kind, default) = kind(check, path, raw, &key, node)?;
    only_with(check, node);
    let kind = match raw.template {
        Some(true) => filled(check, kind, node, variables)?,
        _ => kind,
    };
    let mode = match node.at(&["mode"]) {
        Some(given) => mode(check, given),
        None => Some(default),
    };
    let entry = FileEntry {
        path: path.to_owned(),
        kind,
        mode: mode?,
        user: owner(check, raw.user.as_ref(), node.at(&["user"])),
        group: owner(check, raw.group.as_ref(), node.at(&["group"])),
        origin: check.mistakes.position(&key),
    };
    // A bad path would be a second mistake of the checks of all files.
    (!is_bad).then_some((entry, key))
}

/// The kind of the entry and its default mode.
fn kind(
    check: &mut Check<'_>,
    path: &str,
    raw: &RawFile,
    key: &Place,
    node: &Node,
) -> Option<(FileKind, u32)> {
    // `remove = false` has taken its entry back where the recipes were merged.
    if let Some(no) = node.at(&["directory"])
        && matches!(no.value, Value::Boolean(false))
    {
        check.add(Mistake::at(
            &no.place,
            "`directory` cannot be false",
            "expected true, or the key left out",
        ));
        return None;
    }
    let given: Vec<&str> = ["content", "source", "url", "link", "directory", "remove"]
        .into_iter()
        .filter(|word| node.at(&[word]).is_some())
        .collect();
    let [only] = given.as_slice() else {
        let lost = format!("files.{path}.");
        if given.is_empty() && check.gone.iter().any(|gone| gone.starts_with(&lost)) {
            return None;
        }
        let found = match given.as_slice() {
            [] => format!("nothing says what {path} is"),
            many => format!("{path} is given as {} at once", many.join(" and ")),
        };
        check.add(Mistake::at(
            key,
            found,
            "expected one of content, source, url, link, directory and remove",
        ));
        return None;
    };
    match *only {
        "content" => Some((FileKind::Content(raw.content.clone()?.into_bytes()), 0o644)),
        "url" => {
            let at = |word: &str| node.at(&[word]).map(|node| &node.place);
            let url = (raw.url.as_deref()?, at("url")?);
            let sha256 = raw.sha256.as_deref().zip(at("sha256"));
            check.not_read(path, url.1);
            let download = check.download(url, sha256)?;
            Some((FileKind::Download(download), 0o644))
        }
        "link" => Some((FileKind::Link(raw.link.clone()?), 0o777)),
        "directory" => Some((FileKind::Directory, 0o755)),
        "remove" => Some((FileKind::Remove, 0)),
        _ => {
            let place = node.at(&["source"])?.place.clone();
            let source = check.host_path(&place, raw.source.as_deref()?);
            match fs::metadata(&source) {
                Ok(found) if found.is_file() => {
                    Some((FileKind::Source(source.clone()), source_mode(&source).ok()?))
                }
                Ok(_) => {
                    check.add(
                        Mistake::at(
                            &place,
                            format!("{} is not a file", source.display()),
                            "expected a file, relative to this recipe",
                        )
                        .help("a whole folder is laid over by trees = [\"…\"] in [overlay]"),
                    );
                    None
                }
                Err(error) => {
                    check.add(missing_source(&place, &source, &error));
                    None
                }
            }
        }
    }
}

/// Adds the mistakes of keys that belong to other kinds.
fn only_with(check: &mut Check<'_>, node: &Node) {
    for (word, with, expected) in [
        ("sha256", &["url"][..], "expected it beside a `url`"),
        (
            "template",
            &["content", "source"],
            "expected it beside `content` or `source`",
        ),
    ] {
        let alone = with.iter().all(|with| node.at(&[with]).is_none());
        if let (Some(given), true) = (node.at(&[word]), alone) {
            let found = format!("`{word}` of a file that has none of {}", with.join(", "));
            check.add(Mistake::at(&given.place, found, expected));
        }
    }
}

/// A template with the recipe's variables in it.
fn filled(
    check: &mut Check<'_>,
    kind: FileKind,
    node: &Node,
    variables: &Variables,
) -> Option<FileKind> {
    let text = match kind {
        FileKind::Content(bytes) => {
            let text = String::from_utf8(bytes).ok()?;
            variables.content(check, node.at(&["content"])?, &text)?
        }
        FileKind::Source(path) => match fs::read_to_string(&path) {
            Ok(text) => variables.source(check, &path, &text)?,
            Err(error) => {
                let place = node.at(&["source"])?.place.clone();
                let found = format!("{} is not usable as a template: {error}", path.display());
                check.add(Mistake::at(&place, found, "expected a text in UTF-8"));
                return None;
            }
        },
        other => return Some(other),
    };
    Some(FileKind::Content(text.into_bytes()))
}

fn missing_source(place: &Place, source: &Path, error: &std::io::Error) -> Mistake {
    let neighbours: Vec<String> = source
        .parent()
        .and_then(|folder| fs::read_dir(folder).ok())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let name = source
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Mistake::at(
        place,
        format!("reading {} failed: {error}", source.display()),
        "expected a file, relative to this recipe",
    )
    .nearest(&name, neighbours.iter().map(String::as_str))
}

/// Permission bits: octal text, or an octal number.
fn mode(check: &mut Check<'_>, node: &Node) -> Option<u32> {
    const EXPECTED: &str = "expected permission bits in octal, as \"0644\" or 0o644";
    let (text, octal) = match &node.value {
        Value::Text(text) => (text.as_str(), true),
        Value::Integer { text, radix } => (text.as_str(), *radix == 8),
        _ => return None,
    };
    let bits = u32::from_str_radix(text, 8)
        .ok()
        .filter(|bits| *bits <= 0o7777 && text.chars().all(|c| c.is_digit(8)));
    if octal && bits.is_some() {
        return bits;
    }
    let mut mistake = Mistake::at(
        &node.place,
        format!("`mode` cannot be {}", node.describe()),
        EXPECTED,
    );
    if bits.is_some() {
        mistake = mistake.help(format!("write it in octal: \"{text:0>4}\""));
    }
    check.add(mistake);
    None
}

fn owner(check: &mut Check<'_>, given: Option<&TextOrNumber>, node: Option<&Node>) -> String {
    let name = match given {
        None => return "root".to_owned(),
        Some(TextOrNumber::Text(name)) => name.clone(),
        Some(TextOrNumber::Number(number)) => number.to_string(),
    };
    if let (Err(why), Some(node)) = (Rule::User.check(&name), node) {
        check.add(why.mistake(&node.place));
    }
    name
}

/// The reason why a path is invalid in the image.
fn bad_path(path: &str) -> Option<(String, &'static str)> {
    let Some(inside) = path.strip_prefix('/') else {
        let found = format!("{path:?} is not an absolute path");
        return Some((found, "expected a path inside the image that begins with /"));
    };
    // The list of what a first boot puts into /var has no escapes for them, and every list of paths is read by lines.
    if path.contains(char::is_control) {
        let found = format!("{path:?} has a control character");
        return Some((
            found,
            "expected a path without line feeds, tabs and other control characters",
        ));
    }
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if inside.split('/').any(odd) {
        let found = format!("{path:?} is not a plain path");
        return Some((
            found,
            "expected a path without //, . and .. and without a / at its end",
        ));
    }
    if let Some(covered) = covered(path) {
        return Some(covered);
    }
    let mut links = image::paths::VAR_LINKS.iter().chain(&LINKS);
    if path == "/var" || links.any(|(link, _)| path == *link) {
        let found = format!("{path} cannot be of the recipe: a node has its own there");
        return Some((found, "expected a path below it, which a first boot makes"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_plain_and_part_of_the_image() {
        for good in [
            "/etc/a",
            "/usr/lib/x.service",
            "/etc/a b",
            "/optional",
            "/opt/x",
            "/usr/local/bin/x",
            "/var/runs",
        ] {
            assert_eq!(bad_path(good), None);
        }
        for bad in [
            "etc/a",
            "/",
            "/etc/",
            "/etc//a",
            "/etc/../a",
            "/run/x",
            "/proc",
            "/opt",
            "/usr/local",
            "/var",
            "/var/run",
            "/var/run/x",
            "/var/lock/x",
            "/etc/a\0",
            "/etc/a\nb",
            "/opt/a\tb",
            "/opt/\u{7f}",
        ] {
            assert!(bad_path(bad).is_some(), "{bad:?}");
        }
        let (found, _) = bad_path("/run/a\nb").unwrap();
        assert_eq!(found, r#""/run/a\nb" has a control character"#);
    }

    #[test]
    fn a_target_that_is_not_utf_8_is_refused_by_its_link() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;

        let folder = tempfile::tempdir().unwrap();
        let target = OsStr::from_bytes(b"caf\xe9");
        std::os::unix::fs::symlink(target, folder.path().join("link")).unwrap();
        let error = lay_over(folder.path(), &mut |_, _, _| {}).unwrap_err();
        let error = error.to_string();
        assert!(error.ends_with("link is not UTF-8"), "{error}");
    }
}
