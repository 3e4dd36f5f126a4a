//! File systems: those of specification 2 have names, and files, directories and links are in one of them by its name;
//! those of 3 have mount points, and a path says all.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{copy, copy_filled, flag, is_filled, object, put};
use super::{Entry, Translation};
use crate::tree::Node;
use crate::unit;

/// The name of the root's file system, which is there without an entry.
const ROOT: &str = "root";
/// The root in the initrd of Ignition 2.
const SYSROOT: &str = "/sysroot";
/// The folder of the mount points of file systems that have none in the config.
const MOUNTS: &str = "/var/tmp/ignition";

/// The folder in the root of each file system's name, without a slash at its end; or why it has none.
pub(super) type Prefixes = BTreeMap<String, Result<String, String>>;

impl Translation {
    /// Translates the file systems of the config `old` into `storage`.
    pub(super) fn filesystems(&mut self, old: &Node, storage: &mut Node) -> Prefixes {
        let mut prefixes = Prefixes::from([(ROOT.to_owned(), Ok(String::new()))]);
        let section = old.get("storage");
        let (used, units) = (used_names(section), mount_units(old));
        let mut entries = Vec::new();
        for entry in Entry::all(section, "filesystems", "$.storage") {
            let name = entry.node.text("name").unwrap_or_default();
            match (entry.node.get("mount"), entry.node.text("path")) {
                (Some(_), Some(_)) => {
                    let message = "both mount and path are set; a file system has one of them";
                    self.refuse(&entry, "path", message);
                }
                (None, None) => self.refuse(&entry, "", "expected mount or path, found neither"),
                (None, Some(path)) => {
                    prefixes.insert(name.to_owned(), below_sysroot(path));
                }
                (Some(mount), None) => {
                    let point = mount_point(name, mount, &units);
                    let mut new = self.mount(&entry, mount);
                    if let Ok(point) = &point
                        && (name == ROOT || used.contains(name))
                    {
                        let at = entry.at("name").cloned();
                        let text = if point.is_empty() { "/" } else { point };
                        new.put("path", Node::text_at(text.to_owned(), at));
                    }
                    prefixes.insert(name.to_owned(), point);
                    entries.push((format!("{}.mount", entry.path), new));
                }
            }
        }
        for (i, (path, _)) in entries.iter().enumerate() {
            let from = path.strip_suffix("mount").unwrap_or(path);
            self.origins.rename(
                format!("$.storage.filesystems.{i}.path"),
                format!("{from}name"),
            );
        }
        let at = section.and_then(|node| node.get("filesystems")?.at.clone());
        let all = self.list("$.storage.filesystems", at, entries);
        put(storage, "filesystems", all);
        prefixes
    }

    fn mount(&mut self, entry: &Entry<'_>, mount: &Node) -> Node {
        let mut new = object(mount);
        copy(mount, &mut new, &["device", "label", "uuid", "options"]);
        copy_filled(mount, &mut new, &["format", "wipeFilesystem"]);
        let Some(create) = mount.get("create") else {
            return new;
        };
        for name in ["wipeFilesystem", "options"] {
            if mount.get(name).is_some_and(is_filled) {
                let message =
                    format!("both create and {name} are set; write {name} without create");
                self.refuse(entry, &format!("mount.{name}"), message);
            }
        }
        if create.flag("force") != Some(true) {
            let message = "create without force fails on a device that has a file system, which version 3 uses instead; \
                write \"force\": true to make the file system anew, or no create to use one of the same format";
            self.refuse(entry, "mount.create", message);
        }
        new.put("wipeFilesystem", flag(true, create));
        copy(create, &mut new, &["options"]);
        new
    }
}

/// The folder in the new system of a folder in the initrd of Ignition 2.
fn below_sysroot(path: &str) -> Result<String, String> {
    let below = path.strip_prefix(SYSROOT);
    match below.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        Some(rest) => Ok(rest.trim_end_matches('/').to_owned()),
        None => Err(format!(
            "the file system's path {path} is a folder of the initrd, not below {SYSROOT}; write to the file system root"
        )),
    }
}

/// Where a file system is mounted while files are written: at the place of the config's own mount unit for its device,
/// if there is one, else at a folder made for that.
fn mount_point(
    name: &str,
    mount: &Node,
    units: &BTreeMap<String, String>,
) -> Result<String, String> {
    if name == ROOT {
        return Ok(String::new());
    }
    if let Some(point) = mount.text("device").and_then(|device| units.get(device)) {
        return Ok(point.trim_end_matches('/').to_owned());
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.chars().all(plain) && !name.starts_with('.') {
        true => Ok(format!("{MOUNTS}/{name}")),
        false => Err(format!(
            "the file system's name {name:?} cannot be a folder's; expected letters, digits, '-', '_' and '.'"
        )),
    }
}

/// The names of the file systems that files, directories and links are in.
fn used_names(storage: Option<&Node>) -> BTreeSet<&str> {
    let lists = ["files", "directories", "links"].into_iter();
    lists
        .flat_map(|name| storage.map_or(&[][..], |storage| storage.items(name)))
        .filter_map(|node| node.text("filesystem"))
        .collect()
}

/// The mount points of the config's mount units by their devices.
fn mount_units(old: &Node) -> BTreeMap<String, String> {
    let units = old
        .get("systemd")
        .map_or(&[][..], |node| node.items("units"));
    let mut out = BTreeMap::new();
    for node in units {
        if !node.text("name").unwrap_or_default().ends_with(".mount") {
            continue;
        }
        let settings = unit::parse(node.text("contents").unwrap_or_default());
        let settings = settings.unwrap_or_default();
        let value = |name: &str| {
            let found = settings
                .iter()
                .rfind(|setting| setting.section == "Mount" && setting.name == name);
            found.map(|setting| setting.value.clone())
        };
        if let (Some(what), Some(place)) = (value("What"), value("Where")) {
            out.insert(what, place);
        }
    }
    out
}
