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
    ("/etc/passwd-", "the state before the last change"),
    ("/etc/group-", "the state before the last change"),
    ("/etc/shadow-", "the state before the last change"),
    ("/etc/gshadow-", "the state before the last change"),
    ("/var/lib/dpkg/*-old", "the state before the last change"),
    (
        "/var/cache/debconf/*-old",
        "the state before the last change",
    ),
    (
        "/var/lib/dpkg/info/made-*.md5sums",
        "made by dpkg where a package has none, which Debian's all have",
    ),
    ("/run/*", "gone with a reboot"),
    (
        "/usr/share/locale/*",
        "messages of locales that are not asked for",
    ),
];

/// Paths of which the content may differ, with the reason; a `*` matches any part.
const CONTENT: &[(&str, &str)] = &[
    (
        "/etc/aliases.db",
        "an identifier of Berkeley DB, of the file's inode and the time",
    ),
    ("/etc/machine-id", "random"),
    ("/var/lib/dbus/machine-id", "random"),
    ("/etc/iscsi/initiatorname.iscsi", "random"),
    ("/etc/nvme/hostid", "random"),
    ("/etc/nvme/hostnqn", "random"),
    ("/etc/ssl/certs/ssl-cert-snakeoil.pem", "a random key"),
    ("/etc/ssl/private/ssl-cert-snakeoil.key", "a random key"),
    ("/etc/ssl/certs/java/cacerts", "the time of its making"),
    ("/var/lib/mysql/*", "random identifiers and times"),
    (
        "/var/lib/postgresql/*/main/*",
        "a random identifier and times",
    ),
];
/// What may be missing without documentation.
const DOCS: &[(&str, &str)] = &[
    ("/usr/share/doc/*", "documentation"),
    ("/usr/share/man/*", "manual pages"),
    ("/usr/share/info/*", "manuals"),
    ("/usr/share/groff/*", "macros of manual pages"),
    ("/usr/share/gtk-doc/*", "documentation of libraries"),
    ("/etc/alternatives/*.gz", "links to manual pages"),
    (
        "/var/lib/dpkg/alternatives/builtins.7.gz",
        "an alternative that is only a manual page",
    ),
];
/// Files in which only the order of lines may differ, with the reason.
const UNORDERED: &[(&str, &str)] = &[
    (
        "/var/lib/dpkg/triggers/File",
        "a line for each interest, in the order of the unpacking",
    ),
    ("/etc/passwd", ACCOUNTS),
    ("/etc/group", ACCOUNTS),
    ("/etc/shadow", ACCOUNTS),
    ("/etc/gshadow", ACCOUNTS),
];
const ACCOUNTS: &str = "in the order of the configuration, which a pre-dependency changes";
/// Numbers that scripts give out in that order, so that accounts and owners are compared by name (Debian policy
/// 9.2.2).
const GIVEN_OUT: std::ops::RangeInclusive<u32> = 100..=999;

/// The result of a comparison.
pub(crate) struct Comparison {
    pub(crate) differences: Vec<String>,
    pub(crate) paths: usize,
}

/// Compares all paths of two trees, but for documentation that ours leaves out.
pub(crate) fn trees(ours: &Path, theirs: &Path, docs: bool) -> Result<Comparison> {
    let (ours, theirs) = (listing(ours)?, listing(theirs)?);
    let mut differences = Vec::new();
    for path in ours
        .keys()
        .chain(theirs.keys().filter(|path| !ours.contains_key(*path)))
    {
        if is_in(ALLOWED, path)
            || (!docs && is_in(DOCS, path) && !is_of_copyright(path, &ours, &theirs))
        {
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

/// Whether a path is a package's `copyright`, or the folder or link through which it is found, in one of the trees. These stay
/// without documentation.
fn is_of_copyright(
    path: &str,
    ours: &BTreeMap<String, Item>,
    theirs: &BTreeMap<String, Item>,
) -> bool {
    let has = |path: &str| ours.contains_key(path) || theirs.contains_key(path);
    let Some(inside) = path.strip_prefix("/usr/share/doc/") else {
        return false;
    };
    if let Some((_, name)) = inside.split_once('/') {
        return name == "copyright";
    }
    let target = |item: &Item| item.target.clone().unwrap_or_else(|| inside.to_owned());
    let targets = [ours.get(path), theirs.get(path)];
    targets.into_iter().flatten().map(target).any(|target| {
        let name = target.strip_prefix("/usr/share/doc/").unwrap_or(&target);
        has(&format!("/usr/share/doc/{name}/copyright"))
    })
}

fn is_in(list: &[(&str, &str)], path: &str) -> bool {
    list.iter().any(|(pattern, _)| matches(pattern, path))
}

/// Whether a path has the parts of a pattern in their order, the first at its begin and the last at its end.
fn matches(pattern: &str, path: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else {
        return pattern == path;
    };
    let Some(mut left) = path.strip_prefix(begin) else {
        return false;
    };
    let parts: Vec<&str> = rest.split('*').collect();
    let (end, middle) = parts.split_last().unwrap();
    for part in middle {
        let Some(at) = left.find(part) else {
            return false;
        };
        left = &left[at + part.len()..];
    }
    left.ends_with(end)
}

/// What is compared of a path.
struct Item {
    facts: String,
    /// User and group as numbers; their names are among the facts.
    owner: (u32, u32),
    content: Vec<u8>,
    /// Of a link.
    target: Option<String>,
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.facts == other.facts && self.content == other.content
    }
}

fn difference(path: &str, ours: &Item, theirs: &Item) -> String {
    if ours.facts != theirs.facts {
        return format!("{path}: {}; by dpkg {}", ours.facts, theirs.facts);
    }
    // Zero bytes: not a text.
    if ours.content.contains(&0) || theirs.content.contains(&0) {
        let (one, other) = (ours.content.len(), theirs.content.len());
        return format!("{path}: other content; ours {one} bytes, by dpkg {other}");
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
    let users = accounts(&mut found, "/etc/passwd");
    let groups = accounts(&mut found, "/etc/group");
    // The user's group is its fourth field.
    if let Some(passwd) = found.get_mut("/etc/passwd") {
        passwd.content = named(&passwd.content, 3, &groups);
    }
    for (path, item) in &mut found {
        if is_in(CONTENT, path) {
            item.content.clear();
        }
        let owner = |id: u32, names: &HashMap<u32, String>| match names.get(&id) {
            Some(name) => name.clone(),
            None => id.to_string(),
        };
        let (uid, gid) = item.owner;
        item.facts = format!(
            "{} {}:{}",
            item.facts,
            owner(uid, &users),
            owner(gid, &groups)
        );
        if UNORDERED.iter().any(|(other, _)| other == path) {
            item.content = sorted(&item.content);
        }
    }
    Ok(found)
}

/// Names of the numbers that scripts have given out; in the file the names take the numbers' places.
fn accounts(found: &mut BTreeMap<String, Item>, path: &str) -> HashMap<u32, String> {
    let Some(item) = found.get_mut(path) else {
        return HashMap::new();
    };
    let text = String::from_utf8_lossy(&item.content);
    let name = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let number: u32 = fields.nth(1)?.parse().ok()?;
        GIVEN_OUT.contains(&number).then_some((number, name))
    };
    let names = text.lines().filter_map(name).collect();
    item.content = named(&item.content, 2, &names);
    names
}

/// The lines of a file with names in place of the numbers of a field.
fn named(content: &[u8], field: usize, names: &HashMap<u32, String>) -> Vec<u8> {
    let text = String::from_utf8_lossy(content);
    let line = |line: &str| {
        let mut fields: Vec<&str> = line.split(':').collect();
        let number = fields.get(field).and_then(|number| number.parse().ok());
        if let Some(name) = number.and_then(|number: u32| names.get(&number)) {
            fields[field] = name;
        }
        fields.join(":") + "\n"
    };
    text.lines().map(line).collect::<String>().into_bytes()
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
        let (mut kind, mut content, mut target) = (String::new(), Vec::new(), None);
        if meta.is_dir() {
            kind.push_str("folder");
        } else if meta.is_symlink() {
            let to = fs::read_link(&path)?.display().to_string();
            kind = format!("link to {to}");
            target = Some(to);
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
        let item = Item {
            facts: format!("{kind}, {mode:04o}"),
            owner: (meta.uid(), meta.gid()),
            content,
            target,
        };
        found.insert(name, item);
        if meta.is_dir() {
            walk(root, &path, links, found)?;
        }
    }
    Ok(())
}

fn sorted(content: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = content.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines.join(&b'\n')
}

fn digest(content: &[u8]) -> Vec<u8> {
    use sha2::Digest as _;
    sha2::Sha256::digest(content).to_vec()
}
