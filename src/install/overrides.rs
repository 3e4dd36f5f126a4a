//! What scripts of packages have ordered of dpkg for files that are unpacked later: diversions (dpkg-divert(1)) and
//! owners and modes (dpkg-statoverride(1)).

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::database::FOLDER;

/// The diverter of a diversion that an administrator has made, which moves the file of every package.
const LOCAL: &str = ":";

/// A file's path for every package but one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Diversion {
    to: String,
    diverter: String,
}

/// Owner and mode of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
}

/// The orders in a tree's database; paths without the first slash.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    diversions: HashMap<String, Diversion>,
    stats: HashMap<String, Stat>,
}

impl Overrides {
    /// Reads owners and modes from a tree; without a file there are none. dpkg reads them before the `preinst` scripts.
    pub(super) fn read_stats(&mut self, root: &Path) -> Result<()> {
        let list = text(root, &format!("{FOLDER}/statoverride"))?;
        self.stats = stats(&list, &text(root, "etc/passwd")?, &text(root, "etc/group")?)?;
        Ok(())
    }

    /// Reads the diversions, which dpkg does after the `preinst` script of each package.
    pub(super) fn read_diversions(&mut self, root: &Path) -> Result<()> {
        self.diversions = diversions(&text(root, &format!("{FOLDER}/diversions"))?)?;
        Ok(())
    }

    /// The path at which a package's file is written.
    pub(super) fn path<'a>(&'a self, path: &'a str, package: &str) -> &'a str {
        match self.diversions.get(path) {
            Some(diversion) if diversion.diverter != package => &diversion.to,
            _ => path,
        }
    }

    /// The package that diverts the path.
    pub(super) fn diverter(&self, path: &str) -> Option<&str> {
        let diverter = self.diversions.get(path)?.diverter.as_str();
        (diverter != LOCAL).then_some(diverter)
    }

    /// Owner and mode that are set in place of those of the package.
    pub(super) fn stat(&self, path: &str) -> Option<Stat> {
        self.stats.get(path).copied()
    }
}

/// The text of a file of a tree, empty without one.
fn text(root: &Path, path: &str) -> Result<String> {
    let path = root.join(path);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other.with_context(|| format!("reading {}", path.display())),
    }
}

/// Three lines each: the path, the path to which it is diverted, and the diverting package.
fn diversions(text: &str) -> Result<HashMap<String, Diversion>> {
    let lines: Vec<&str> = text.lines().collect();
    ensure!(
        lines.len().is_multiple_of(3),
        "dpkg's list of diversions has {} lines, which three do not divide",
        lines.len()
    );
    let plain = |path: &str| path.trim_start_matches('/').to_owned();
    let of = |three: &[&str]| {
        let diversion = Diversion {
            to: plain(three[1]),
            diverter: three[2].to_owned(),
        };
        (plain(three[0]), diversion)
    };
    Ok(lines.chunks(3).map(of).collect())
}

/// A line each: user, group, mode in octal, path; a number as user or group has `#` before it.
fn stats(text: &str, passwd: &str, group: &str) -> Result<HashMap<String, Stat>> {
    let mut found = HashMap::new();
    for line in text.lines() {
        let about = || format!("dpkg's list of owners: {line:?}");
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().with_context(about);
        let uid = id(word()?, passwd).with_context(about)?;
        let gid = id(word()?, group).with_context(about)?;
        let mode = u32::from_str_radix(word()?, 8).with_context(about)?;
        let path = word()?.trim_start_matches('/').to_owned();
        found.insert(path, Stat { uid, gid, mode });
    }
    Ok(found)
}

/// The number of a name in the lines of `/etc/passwd` or `/etc/group`.
fn id(name: &str, lines: &str) -> Result<u32> {
    if let Some(number) = name.strip_prefix('#') {
        return Ok(number.parse()?);
    }
    lines
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name)
                .then(|| fields.nth(1)?.parse().ok())
                .flatten()
        })
        .with_context(|| format!("no account has the name {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diversions_move_the_files_of_all_other_packages() {
        let read =
            diversions("/sbin/halt\n/sbin/halt.real\nguard\n/usr/x\n/usr/x.old\n:\n").unwrap();
        let overrides = Overrides {
            diversions: read,
            stats: HashMap::new(),
        };
        for (path, package, expected) in [
            ("sbin/halt", "guard", "sbin/halt"),
            ("sbin/halt", "systemd-sysv", "sbin/halt.real"),
            ("usr/x", "any", "usr/x.old"),
            ("usr/y", "any", "usr/y"),
        ] {
            assert_eq!(overrides.path(path, package), expected);
        }
        assert_eq!(overrides.diverter("sbin/halt"), Some("guard"));
        assert_eq!(overrides.diverter("usr/x"), None);
        assert!(diversions("/a\n/b\n").is_err());
    }

    #[test]
    fn owners_are_names_of_the_tree_or_numbers() {
        let (passwd, group) = ("root:x:0:0::/:\nm:x:7:8::/:\n", "root:x:0:\nadm:x:4:\n");
        let read = stats("m adm 2750 /var/log/a b\n#5 #6 644 /x\n", passwd, group).unwrap();
        assert_eq!(
            read["var/log/a b"],
            Stat {
                uid: 7,
                gid: 4,
                mode: 0o2750
            }
        );
        assert_eq!(
            read["x"],
            Stat {
                uid: 5,
                gid: 6,
                mode: 0o644
            }
        );
        let error = stats("nobody root 644 /x\n", passwd, group).unwrap_err();
        assert!(format!("{error:#}").contains("nobody"), "{error:#}");
    }
}
