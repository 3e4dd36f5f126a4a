//! What lies below the recipe's files: the packages, the kernel's modules and Slipway's own files, as one tree; and the users,
//! groups and units that it has.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::install::Rootfs;
use crate::layer::merge::{self, Tree, resolve};
use crate::layer::{Entry, Kind, Layer};

/// Folder of the links that enable units.
pub(super) const ENABLED: &str = "/etc/systemd/system";
/// Folders of unit files; the first one that has a unit is used.
const UNITS: [&str; 2] = [ENABLED, "/usr/lib/systemd/system"];
/// Scripts of System V, which systemd's generator makes units of.
const SCRIPTS: &str = "/etc/init.d";

/// A tree, and its names.
pub(super) struct Found {
    /// The entries.
    pub(super) tree: Tree,
    /// Names and numbers of `/etc/passwd`.
    pub(super) users: BTreeMap<String, u32>,
    /// Names and numbers of `/etc/group`.
    pub(super) groups: BTreeMap<String, u32>,
}

impl Found {
    /// The packages with `layers` over them.
    ///
    /// # Errors
    /// If the layers do not fit over the packages.
    pub(super) fn below(rootfs: &Rootfs, layers: &[Layer]) -> Result<Self> {
        Ok(Self::of(merge::merge(rootfs.entries(), layers, &[])?.tree))
    }

    /// Layers alone.
    ///
    /// # Errors
    /// If they do not fit over each other.
    pub(super) fn of_layers(layers: &[Layer]) -> Result<Self> {
        Ok(Self::of(merge::merge(&[], layers, &[])?.tree))
    }

    fn of(tree: Tree) -> Self {
        let read = |path: &str| {
            let text = read(&tree, path).unwrap_or_default();
            ids(&String::from_utf8_lossy(&text))
        };
        Self {
            users: read("/etc/passwd"),
            groups: read("/etc/group"),
            tree,
        }
    }

    /// The content of a file, links followed.
    pub(super) fn text(&self, path: &str) -> Option<Vec<u8>> {
        read(&self.tree, path)
    }

    /// Whether something is at a path, or will be below `/var`.
    pub(super) fn has(&self, path: &str) -> bool {
        let is_there =
            |path: String| self.tree.contains_key(&path) || merge::is_seeded(&self.tree, &path);
        resolve(&self.tree, path, false).is_ok_and(is_there)
    }

    /// Whether a path is on the partition of `/var`.
    pub(super) fn is_of_var(&self, path: &str) -> bool {
        resolve(&self.tree, path, false).is_ok_and(|path| path.starts_with("/var/"))
    }

    /// The path of a unit file as systemd finds it; for an instance, that of its template. None of a masked unit.
    pub(super) fn unit_file(&self, unit: &str) -> Option<String> {
        let template = template(unit);
        let names = [Some(unit), template.as_deref()].into_iter().flatten();
        let paths = names.flat_map(|name| UNITS.map(|folder| format!("{folder}/{name}")));
        let path = paths.into_iter().find(|path| self.has(path))?;
        let path = self.end(&path)?;
        let is_file = |entry: &Entry| matches!(entry.kind, Kind::File(_));
        self.tree.get(&path).is_some_and(is_file).then_some(path)
    }

    /// The name of the unit that a name stands for: itself, or of an alias, which is a link to the file of another unit, that unit's. Of an
    /// instance of an alias it is that instance. A link out of the folders of units is a unit by its own name.
    pub(super) fn unit_name(&self, unit: &str) -> String {
        let path = self.unit_file(unit).unwrap_or_default();
        let name = match path.rsplit_once('/') {
            Some((folder, name)) if UNITS.contains(&folder) => name,
            _ => unit,
        };
        match (unit.split_once('@'), name.split_once("@.")) {
            (Some((_, instance)), Some((template, _))) => format!("{template}@{instance}"),
            _ => name.to_owned(),
        }
    }

    /// Whether a unit has a link in the folder of links, which is its alias or its mask.
    pub(super) fn is_link(&self, unit: &str) -> bool {
        let entry = self.tree.get(&format!("{ENABLED}/{unit}"));
        entry.is_some_and(|entry| matches!(entry.kind, Kind::Symlink(_)))
    }

    /// The texts of a unit's drop-ins, in the order in which systemd reads them; for an instance, those of its template too.
    pub(super) fn drop_ins(&self, unit: &str) -> Vec<Vec<u8>> {
        let template = template(unit);
        let mut named: BTreeMap<&str, String> = BTreeMap::new();
        for name in [Some(unit), template.as_deref()].into_iter().flatten() {
            for folder in UNITS.map(|folder| format!("{folder}/{name}.d")) {
                for file in self.below_folder(&folder) {
                    if file.ends_with(".conf") && !file.contains('/') {
                        let path = format!("{folder}/{file}");
                        named.entry(file).or_insert(path);
                    }
                }
            }
        }
        let paths = named.into_values();
        paths.filter_map(|path| self.text(&path)).collect()
    }

    /// Whether there is a unit, or a link in the place of one.
    pub(super) fn has_unit(&self, unit: &str) -> bool {
        let template = template(unit);
        let mut names = [Some(unit), template.as_deref()].into_iter().flatten();
        names.any(|name| {
            UNITS
                .iter()
                .any(|folder| self.has(&format!("{folder}/{name}")))
        }) || !self.links_to(unit).is_empty()
    }

    /// Whether systemd makes a service of a script of System V.
    pub(super) fn has_script(&self, unit: &str) -> bool {
        let name = unit.strip_suffix(".service");
        name.is_some_and(|name| self.has(&format!("{SCRIPTS}/{name}")))
    }

    /// The names of all unit files.
    pub(super) fn units(&self) -> BTreeSet<&str> {
        let inside = |folder: &'static str| {
            let is_folder = move |name: &str| {
                let entry = self.tree.get(&format!("{folder}/{name}"));
                entry.is_some_and(|entry| entry.kind == Kind::Directory)
            };
            let names = self.below_folder(folder);
            names.filter(move |name| !name.contains('/') && !is_folder(name))
        };
        UNITS.into_iter().flat_map(inside).collect()
    }

    /// The paths below a folder, relative to it.
    pub(super) fn below_folder(&self, folder: &str) -> impl Iterator<Item = &str> {
        let folder = format!("{folder}/");
        let paths = self.tree.range(folder.clone()..).map(|(path, _)| path);
        paths.map_while(move |path| path.strip_prefix(folder.as_str()))
    }

    /// The links that enable a unit: links to it, also through others, and links with its name in a target's folder.
    pub(super) fn links_to(&self, unit: &str) -> Vec<String> {
        let name = |path: &str| path.rsplit('/').next().map(str::to_owned);
        let links = self.below_folder(ENABLED).filter_map(|path| {
            let path = format!("{ENABLED}/{path}");
            match &self.tree.get(&path)?.kind {
                Kind::Symlink(target) => {
                    let is_one = target != "/dev/null"
                        && (name(&path).as_deref() == Some(unit)
                            || name(target).as_deref() == Some(unit)
                            || self.end(&path).as_deref().and_then(name).as_deref() == Some(unit));
                    is_one.then_some(path)
                }
                _ => None,
            }
        });
        links.collect()
    }

    /// Where a path leads when all links are followed.
    fn end(&self, path: &str) -> Option<String> {
        resolve(&self.tree, path, true).ok()
    }
}

/// The content of a file of a tree, links followed.
fn read(tree: &Tree, path: &str) -> Option<Vec<u8>> {
    let entry: &Entry = tree.get(&resolve(tree, path, true).ok()?)?;
    match &entry.kind {
        Kind::File(source) => source.read().ok(),
        _ => None,
    }
}

/// Names and numbers of passwd(5) or group(5).
fn ids(text: &str) -> BTreeMap<String, u32> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        })
        .collect()
}

/// The template of an instance: `getty@.service` for `getty@tty1.service`.
pub(super) fn template(unit: &str) -> Option<String> {
    let (name, rest) = unit.split_once('@')?;
    let (_, suffix) = rest.rsplit_once('.')?;
    Some(format!("{name}@.{suffix}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::host::cache::Key;

    /// A tree of these entries.
    pub(in crate::steps::layers) fn found(entries: Vec<Entry>) -> Found {
        let layer = Layer::with_key(entries, Key::of_data("test", 1).finish()).unwrap();
        Found::of(merge::merge(&[], &[layer], &[]).unwrap().tree)
    }

    #[test]
    fn names_have_numbers() {
        let found =
            ids("root:x:0:0:root:/root:/bin/sh\nsshd:*:104:65534::/run/sshd:/bin/false\nbroken\n");
        assert_eq!(
            found,
            BTreeMap::from([("root".to_owned(), 0), ("sshd".to_owned(), 104)])
        );
    }

    #[test]
    fn units_are_files_templates_aliases_and_links() {
        let found = found(vec![
            Entry::symlink("/lib", "usr/lib"),
            Entry::file("/usr/lib/systemd/system/a.service", 0o644, "A"),
            Entry::file("/lib/systemd/system/getty@.service", 0o644, "G"),
            Entry::symlink(
                "/etc/systemd/system/dbus-a.service",
                "/usr/lib/systemd/system/a.service",
            ),
            Entry::symlink(
                "/etc/systemd/system/x.wants/gone.timer",
                "/usr/lib/systemd/system/gone.timer",
            ),
            Entry::symlink("/etc/systemd/system/masked.service", "/dev/null"),
            Entry::file("/etc/init.d/old", 0o755, "#!/bin/sh"),
        ]);
        for (unit, text, has) in [
            ("a.service", Some(&b"A"[..]), true),
            ("dbus-a.service", Some(b"A"), true),
            ("getty@tty1.service", Some(b"G"), true),
            ("gone.timer", None, true),
            ("masked.service", None, true),
            ("b.service", None, false),
            ("old.service", None, false),
        ] {
            let file = found.unit_file(unit).and_then(|path| found.text(&path));
            assert_eq!(file.as_deref(), text, "{unit}");
            assert_eq!(found.has_unit(unit), has, "{unit}");
        }
        assert!(found.has_script("old.service") && !found.has_script("old.timer"));
        let expected = [
            "a.service",
            "dbus-a.service",
            "getty@.service",
            "masked.service",
        ];
        assert!(found.units().into_iter().eq(expected));
    }

    #[test]
    fn an_alias_stands_for_the_unit_that_it_leads_to() {
        let unit = |name: &str| format!("/usr/lib/systemd/system/{name}");
        let own = |name: &str| format!("{ENABLED}/{name}");
        let found = found(vec![
            Entry::file(unit("ssh.service"), 0o644, "S"),
            Entry::symlink(own("sshd.service"), unit("ssh.service")),
            Entry::symlink(own("third.service"), "sshd.service"),
            Entry::file(unit("getty@.service"), 0o644, "G"),
            Entry::symlink(unit("autovt@.service"), "getty@.service"),
            Entry::symlink(own("getty@tty9.service"), unit("getty@.service")),
            Entry::file("/usr/share/linked.service", 0o644, "L"),
            Entry::symlink(own("linked.service"), "/usr/share/linked.service"),
            Entry::symlink(own("masked.service"), "/dev/null"),
            Entry::symlink(own("broken.service"), unit("gone.service")),
        ]);
        for (name, stands_for, is_link) in [
            ("ssh.service", "ssh.service", false),
            ("sshd.service", "ssh.service", true),
            ("third.service", "ssh.service", true),
            ("getty@.service", "getty@.service", false),
            ("getty@tty1.service", "getty@tty1.service", false),
            ("getty@tty9.service", "getty@tty9.service", true),
            ("autovt@.service", "getty@.service", false),
            ("autovt@tty1.service", "getty@tty1.service", false),
            ("linked.service", "linked.service", true),
            ("masked.service", "masked.service", true),
            ("broken.service", "broken.service", true),
            ("none.service", "none.service", false),
        ] {
            assert_eq!(found.unit_name(name), stands_for, "{name}");
            assert_eq!(found.is_link(name), is_link, "{name}");
        }
    }
}
