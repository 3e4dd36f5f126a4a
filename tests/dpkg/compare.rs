//! Compares two trees: paths, types, modes, owners, contents, targets, hard links, capabilities. Accounts and the
//! enablement of units are contents and links of `/etc`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Paths that may differ, with the reason; a `*` at the end matches any rest.
const ALLOWED: &[(&str, &str)] = &[
    ("/var/log/dpkg.log", "times, and only what dpkg itself did"),
    ("/var/log/alternatives.log", "times"),
    ("/var/log/bootstrap.log", "times"),
    ("/var/cache/ldconfig/aux-cache", "times and inode numbers"),
    (
        "/etc/ssh/ssh_host_*",
        "random keys, which the build does not make",
    ),
    ("/etc/machine-id", "random"),
    ("/var/lib/dpkg/*-old", "the state before the last change"),
    (
        "/var/cache/debconf/*-old",
        "the state before the last change",
    ),
    ("/run/*", "gone with a reboot"),
];

/// The result of a comparison.
pub(crate) struct Comparison {
    pub(crate) differences: Vec<String>,
    pub(crate) paths: usize,
}

/// Compares all paths of two trees.
pub(crate) fn trees(ours: &Path, theirs: &Path) -> Result<Comparison> {
    let (ours, theirs) = (listing(ours)?, listing(theirs)?);
    let mut differences = Vec::new();
    for path in ours
        .keys()
        .chain(theirs.keys().filter(|path| !ours.contains_key(*path)))
    {
        if is_allowed(path) {
            continue;
        }
        match (ours.get(path), theirs.get(path)) {
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => differences.push(difference(path, one, other)),
            (Some(one), None) => differences.push(format!("{path}: not by dpkg ({})", one.facts)),
            (None, Some(other)) => {
                differences.push(format!("{path}: only by dpkg ({})", other.facts))
            }
            (None, None) => {}
        }
    }
    differences.sort();
    Ok(Comparison {
        differences,
        paths: theirs.len(),
    })
}

fn is_allowed(path: &str) -> bool {
    ALLOWED
        .iter()
        .any(|(pattern, _)| match pattern.split_once('*') {
            Some((begin, end)) => path.starts_with(begin) && path.ends_with(end),
            None => path == *pattern,
        })
}

/// What is compared of a path.
#[derive(PartialEq, Eq)]
struct Item {
    facts: String,
    content: Vec<u8>,
}

fn difference(path: &str, ours: &Item, theirs: &Item) -> String {
    if ours.facts != theirs.facts {
        return format!("{path}: {}; by dpkg {}", ours.facts, theirs.facts);
    }
    let (one, other) = (
        String::from_utf8_lossy(&ours.content),
        String::from_utf8_lossy(&theirs.content),
    );
    let lines = |text: &str, without: &str| -> Vec<String> {
        let without: Vec<&str> = without.lines().collect();
        let lines = text.lines().filter(|line| !without.contains(line));
        lines.take(6).map(str::to_owned).collect()
    };
    format!(
        "{path}: other content; ours {:?}, by dpkg {:?}",
        lines(&one, &other),
        lines(&other, &one)
    )
}

fn listing(root: &Path) -> Result<BTreeMap<String, Item>> {
    let mut found = BTreeMap::new();
    let mut links = HashMap::new();
    walk(root, root, &mut links, &mut found)?;
    Ok(found)
}

fn walk(
    root: &Path,
    folder: &Path,
    links: &mut HashMap<u64, String>,
    found: &mut BTreeMap<String, Item>,
) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    entries.sort();
    for path in entries {
        let name = format!(
            "/{}",
            path.strip_prefix(root)?.to_str().context("not UTF-8")?
        );
        let meta = fs::symlink_metadata(&path)?;
        let (mut kind, mut content) = (String::new(), Vec::new());
        if meta.is_dir() {
            kind.push_str("folder");
        } else if meta.is_symlink() {
            kind = format!("link to {}", fs::read_link(&path)?.display());
        } else if meta.is_file() {
            kind.push_str("file");
            if let Some(value) = xattr::get(&path, "security.capability")? {
                kind.push_str(&format!(" with capabilities {value:02x?}"));
            }
            if meta.nlink() > 1 {
                let first = links.entry(meta.ino()).or_insert_with(|| name.clone());
                kind.push_str(&format!(", the same as {first}"));
            }
            content = fs::read(&path)?;
            if content.len() > 1 << 20 {
                content = digest(&content);
            }
        } else {
            kind.push_str("special file");
        }
        let mode = if meta.is_symlink() {
            0
        } else {
            meta.mode() & 0o7777
        };
        let facts = format!("{kind}, {mode:04o} {}:{}", meta.uid(), meta.gid());
        found.insert(name, Item { facts, content });
        if meta.is_dir() {
            walk(root, &path, links, found)?;
        }
    }
    Ok(())
}

fn digest(content: &[u8]) -> Vec<u8> {
    use sha2::Digest as _;
    sha2::Sha256::digest(content).to_vec()
}
