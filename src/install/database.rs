//! dpkg's database in its state after unpacking: status, control files, file lists, triggers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::unpack::Unpacked;

/// The database's folder in the tree.
pub(super) const FOLDER: &str = "var/lib/dpkg";

/// Writes the database for packages that are unpacked and not yet configured.
pub(super) fn write(root: &Path, packages: &[Unpacked]) -> Result<()> {
    let folder = root.join(FOLDER);
    for name in ["info", "updates", "triggers", "alternatives", "parts"] {
        fs::create_dir_all(folder.join(name))?;
    }
    fs::write(folder.join("info/format"), "1\n")?;
    fs::write(folder.join("available"), "")?;
    fs::write(folder.join("status"), status(packages))?;
    for package in packages {
        let stem = stem(package);
        for file in package.control.iter().filter(|file| file.name != "control") {
            let path = folder.join("info").join(format!("{stem}.{}", file.name));
            fs::write(&path, &file.content)?;
            let mode = if file.mode & 0o111 == 0 { 0o644 } else { 0o755 };
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
        let mut list = package.paths.join("\n");
        list.push('\n');
        fs::write(folder.join("info").join(format!("{stem}.list")), list)?;
    }
    triggers(&folder.join("triggers"), packages)
}

/// The base name of a package's files in `info/`.
pub(super) fn stem(package: &Unpacked) -> String {
    let name = package.field("Package");
    if package.field("Multi-Arch") == "same" {
        format!("{name}:{}", package.field("Architecture"))
    } else {
        name.to_owned()
    }
}

/// The stanzas of all packages, sorted by name, each in the state `unpacked`.
fn status(packages: &[Unpacked]) -> String {
    let mut stanzas = BTreeMap::new();
    for package in packages {
        let name = package.field("Package");
        let control = package.text("control").trim_end();
        let mut stanza = String::new();
        for line in control.lines() {
            stanza.push_str(line);
            stanza.push('\n');
            if line.starts_with("Package:") {
                stanza.push_str("Status: install ok unpacked\n");
            }
        }
        stanzas.insert((name, package.field("Architecture")), stanza);
    }
    stanzas.into_values().collect::<Vec<_>>().join("\n")
}

/// The interests in triggers (deb-triggers(5)). No trigger is pending: each package's configuration does the work of
/// its triggers.
fn triggers(folder: &Path, packages: &[Unpacked]) -> Result<()> {
    let mut files = String::new();
    let mut named: BTreeMap<&str, String> = BTreeMap::new();
    for package in packages {
        let name = package.field("Package");
        for line in package.text("triggers").lines() {
            let mut words = line.split_whitespace();
            let suffix = match words.next() {
                Some("interest" | "interest-await") => "",
                Some("interest-noawait") => "/noawait",
                _ => continue,
            };
            let trigger = words
                .next()
                .with_context(|| format!("{name}: a trigger without a name: {line:?}"))?;
            if trigger.starts_with('/') {
                writeln!(files, "{trigger} {name}{suffix}")?;
            } else {
                writeln!(named.entry(trigger).or_default(), "{name}{suffix}")?;
            }
        }
    }
    fs::write(folder.join("File"), files)?;
    fs::write(folder.join("Unincorp"), "")?;
    for (trigger, interested) in named {
        fs::write(folder.join(trigger), interested)?;
    }
    Ok(())
}
