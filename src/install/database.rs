//! dpkg's database, written wave by wave as dpkg has it after unpacking: status, control files, file lists, triggers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::deb::ControlFile;
use super::package::Unpacked;
use crate::host::cache;

/// The database's folder in the tree.
pub(super) const FOLDER: &str = "var/lib/dpkg";
/// The folder of the control files of the package that is being unpacked.
pub(super) const UNPACKING: &str = "var/lib/dpkg/tmp.ci";
/// The hash of a configuration file that its package has not installed yet, in dpkg's status.
const NEW_CONFFILE: &str = "newconffile";
/// What follows the hash of a configuration file that another package has taken over.
const OBSOLETE: &str = " obsolete";

/// Makes an empty database.
pub(super) fn create(root: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    for name in ["info", "updates", "triggers", "alternatives", "parts"] {
        fs::create_dir_all(folder.join(name))?;
    }
    fs::write(folder.join("info/format"), "1\n")?;
    for name in ["available", "status", "triggers/File", "triggers/Unincorp"] {
        fs::write(folder.join(name), "")?;
    }
    Ok(())
}

/// Writes the control files of a package where its `preinst` script runs before it is unpacked.
pub(super) fn unpacking(root: &Path, package: &Unpacked) -> Result<()> {
    let folder = root.join(UNPACKING);
    cache::remove(&folder)?;
    fs::create_dir(&folder)?;
    let mut files = package.control.iter();
    files.try_for_each(|file| control(&folder.join(&file.name), file))
}

fn control(path: &Path, file: &ControlFile) -> Result<()> {
    fs::write(path, &file.content).with_context(|| format!("writing {}", path.display()))?;
    let mode = if file.mode & 0o111 == 0 { 0o644 } else { 0o755 };
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

/// Adds packages that are unpacked and not yet configured.
pub(super) fn add<'a>(
    root: &Path,
    packages: impl Iterator<Item = &'a Unpacked> + Clone,
) -> Result<()> {
    let folder = root.join(FOLDER);
    let status = folder.join("status");
    let earlier = fs::read_to_string(&status).context("reading dpkg's status")?;
    let known = hashes(&earlier);
    let stanzas = packages.clone().map(|package| stanza(package, &known));
    let mut stanzas: Vec<String> = stanzas.collect();
    if !earlier.trim_end().is_empty() {
        stanzas.insert(0, format!("{}\n", earlier.trim_end()));
    }
    fs::write(status, stanzas.join("\n"))?;
    for package in packages.clone() {
        list(root, package)?;
        let stem = folder.join("info").join(stem(package));
        for file in package.control.iter().filter(|file| file.name != "control") {
            control(
                Path::new(&format!("{}.{}", stem.display(), file.name)),
                file,
            )?;
        }
    }
    interests(&folder.join("triggers"), packages.clone())?;
    activate(&folder.join("triggers"), packages)
}

/// Writes the list of a package's paths.
pub(super) fn list(root: &Path, package: &Unpacked) -> Result<()> {
    let mut list = package.paths.join("\n");
    list.push('\n');
    let path = format!("{FOLDER}/info/{}.list", stem(package));
    fs::write(root.join(&path), list).with_context(|| format!("writing {path}"))
}

/// A package's name where it must be unambiguous: of its files in `info/`, and in the triggers.
pub(super) fn stem(package: &Unpacked) -> String {
    let name = package.field("Package");
    if package.field("Multi-Arch") == "same" {
        format!("{name}:{}", package.field("Architecture"))
    } else {
        name.to_owned()
    }
}

/// A package's stanza in the state `unpacked`. dpkg sorts the file when it writes it.
fn stanza(package: &Unpacked, known: &HashMap<&str, &str>) -> String {
    let mut stanza = String::new();
    for line in package.text("control").trim_end().lines() {
        stanza.push_str(line);
        stanza.push('\n');
        if line.starts_with("Package:") {
            stanza.push_str("Status: install ok unpacked\n");
        }
    }
    let paths: HashSet<&str> = package.paths.iter().map(|path| &path[1..]).collect();
    let mut conffiles = String::new();
    for (path, flag) in package.conffiles() {
        let hash = known.get(path).unwrap_or(&NEW_CONFFILE);
        // A flag names a file that the package no longer has.
        let flag = match flag {
            Some(flag) => format!(" {flag}"),
            None if paths.contains(path) => String::new(),
            // Another package has taken it over.
            None => OBSOLETE.to_owned(),
        };
        let hash = if flag.is_empty() { hash } else { NEW_CONFFILE };
        conffiles.push_str(&format!(" /{path} {hash}{flag}\n"));
    }
    if !conffiles.is_empty() {
        stanza.push_str("Conffiles:\n");
        stanza.push_str(&conffiles);
    }
    stanza
}

/// The hashes of the configuration files that packages have installed: a package that takes one over finds by it that
/// nobody has changed the file.
fn hashes(status: &str) -> HashMap<&str, &str> {
    status
        .lines()
        .filter_map(|line| line.strip_prefix(" /"))
        .filter_map(|line| line.split_once(' '))
        .map(|(path, rest)| (path, rest.split(' ').next().unwrap_or(rest)))
        .filter(|(_, hash)| hash.len() == 32)
        .collect()
}

/// Takes from a package of an earlier wave the paths that others have taken over.
pub(super) fn lost(root: &Path, package: &Unpacked) -> Result<()> {
    list(root, package)?;
    let path = root.join(FOLDER).join("status");
    let status = fs::read_to_string(&path).context("reading dpkg's status")?;
    let first = format!("Package: {}", package.field("Package"));
    let paths: HashSet<&str> = package.paths.iter().map(|path| &path[1..]).collect();
    let taken = |line: &str| {
        let conffile = line
            .strip_prefix(" /")
            .and_then(|line| line.split(' ').next());
        conffile.is_some_and(|path| {
            let ours = package
                .conffiles()
                .any(|(ours, flag)| ours == path && flag.is_none());
            ours && !paths.contains(path) && !line.ends_with(OBSOLETE)
        })
    };
    let mut inside = false;
    let mut text = String::new();
    for line in status.lines() {
        if line.starts_with("Package: ") {
            inside = line == first;
        }
        text.push_str(line);
        if inside && taken(line) {
            text.push_str(OBSOLETE);
        }
        text.push('\n');
    }
    fs::write(path, text).context("writing dpkg's status")
}

/// Adds the interests in triggers (deb-triggers(5)).
fn interests<'a>(folder: &Path, packages: impl Iterator<Item = &'a Unpacked>) -> Result<()> {
    let mut files = String::new();
    let mut named: BTreeMap<&str, String> = BTreeMap::new();
    for package in packages {
        let name = stem(package);
        for (word, trigger) in directives(package)? {
            let suffix = match word {
                "interest" | "interest-await" => "",
                "interest-noawait" => "/noawait",
                _ => continue,
            };
            if trigger.starts_with('/') {
                writeln!(files, "{trigger} {name}{suffix}")?;
            } else {
                writeln!(named.entry(trigger).or_default(), "{name}{suffix}")?;
            }
        }
    }
    append(&folder.join("File"), &files)?;
    for (trigger, interested) in named {
        append(&folder.join(trigger), &interested)?;
    }
    Ok(())
}

/// Activates the triggers of packages that are being unpacked. Those in which only packages are interested that are
/// not configured yet come to nothing: their configuration does that work.
fn activate<'a>(folder: &Path, packages: impl Iterator<Item = &'a Unpacked>) -> Result<()> {
    let interests = fs::read_to_string(folder.join("File")).context("reading dpkg's triggers")?;
    let interests: HashSet<&str> = interests
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let mut active = BTreeSet::new();
    for package in packages {
        for path in &package.paths {
            let mut at = path.as_str();
            while !at.is_empty() {
                if let Some(found) = interests.get(at) {
                    active.insert((*found).to_owned());
                }
                at = at.rsplit_once('/').map_or("", |(parent, _)| parent);
            }
        }
        for (word, trigger) in directives(package)? {
            if word.starts_with("activate") {
                active.insert(trigger.to_owned());
            }
        }
    }
    let lines: String = active
        .iter()
        .map(|trigger| format!("{trigger} -\n"))
        .collect();
    append(&folder.join("Unincorp"), &lines)
}

/// The lines of a package's file of triggers: a word, and a trigger.
fn directives(package: &Unpacked) -> Result<Vec<(&str, &str)>> {
    let mut found = Vec::new();
    for line in package.text("triggers").lines() {
        let mut words = line.split_whitespace();
        let Some(word) = words.next().filter(|word| !word.starts_with('#')) else {
            continue;
        };
        let trigger = words.next().with_context(|| {
            let name = package.field("Package");
            format!("{name}: a trigger without a name: {line:?}")
        })?;
        found.push((word, trigger));
    }
    Ok(found)
}

fn append(path: &Path, text: &str) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, files: &[(&str, &str)], paths: &[&str]) -> Unpacked {
        let mut package = Unpacked::of(&format!("Package: {name}\nArchitecture: all\n"));
        for (name, content) in files {
            package.control.push(ControlFile {
                name: (*name).to_owned(),
                mode: 0o644,
                content: content.as_bytes().to_vec(),
            });
        }
        package.paths = paths.iter().map(|&path| path.to_owned()).collect();
        package
    }

    #[test]
    fn dpkg_is_left_to_install_the_configuration_files() {
        let conffiles = "/etc/a\nremove-on-upgrade /etc/old\n/etc/taken\n";
        let package = package("a", &[("conffiles", conffiles)], &["/etc", "/etc/a"]);
        assert_eq!(
            stanza(&package, &HashMap::new()),
            "Package: a\nStatus: install ok unpacked\nArchitecture: all\n\
             Conffiles:\n /etc/a newconffile\n /etc/old newconffile remove-on-upgrade\n /etc/taken newconffile obsolete\n"
        );
    }

    #[test]
    fn waves_add_to_the_database_and_activate_triggers() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        create(root).unwrap();
        let interests = "interest-noawait /usr/share/man\ninterest menu\n# none\n";
        let mut first = package("m", &[("triggers", interests)], &["/.", "/usr"]);
        first.control[0].content = b"Package: m\nArchitecture: amd64\nMulti-Arch: same\n".to_vec();
        let second = package(
            "n",
            &[("triggers", "activate-noawait menu\n"), ("postinst", "#!")],
            &["/.", "/usr/share/man/man1", "/usr/share/manual"],
        );
        for wave in [&first, &second] {
            add(root, std::iter::once(wave)).unwrap();
        }
        let read = |name: &str| fs::read_to_string(root.join(FOLDER).join(name)).unwrap();
        assert_eq!(read("triggers/File"), "/usr/share/man m:amd64/noawait\n");
        assert_eq!(read("triggers/menu"), "m:amd64\n");
        assert_eq!(read("triggers/Unincorp"), "/usr/share/man -\nmenu -\n");
        assert_eq!(read("info/n.postinst"), "#!");
        assert_eq!(read("info/m:amd64.list"), "/.\n/usr\n");
        let status = read("status");
        let stanzas: Vec<&str> = status.split("\n\n").collect();
        assert!(
            stanzas.len() == 2 && stanzas[1].starts_with("Package: n\n"),
            "{status}"
        );
    }
}
