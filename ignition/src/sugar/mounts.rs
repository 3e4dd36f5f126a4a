//! Mount and swap units of file systems with `with_mount_unit`.

use super::work::Work;
use crate::merge::merge;
use crate::schema::SYSTEMD;
use crate::tree::{Node, Value};
use crate::unit::mount::{Mount, Swap};

/// Adds a unit for every file system with `with_mount_unit`; the fields of a unit of the same name in the config take
/// precedence.
pub(super) fn add(work: &mut Work<'_>, tree: &mut Node) {
    let mut units = Vec::new();
    let mut places = Vec::new();
    let Some(storage) = tree.get_mut("storage") else {
        return;
    };
    let remote = remote(storage);
    for (i, filesystem) in storage.items_mut("filesystems").iter_mut().enumerate() {
        let Some(with) = filesystem.take("with_mount_unit") else {
            continue;
        };
        if matches!(with.value, Value::Flag(true)) {
            let device = filesystem.text("device").unwrap_or_default();
            let remote = remote.iter().any(|name| name == device);
            units.push(unit(filesystem, &with, work.minor, remote));
            places.push(format!("$.storage.filesystems.{i}.with_mount_unit"));
        }
    }
    if units.is_empty() {
        return;
    }
    let Some(systemd) = tree.entry("systemd", Node::empty) else {
        return;
    };
    let own = systemd.items("units").to_vec();
    let names: Vec<String> = own.iter().map(|unit| name(unit).to_owned()).collect();
    let quadlets = systemd.take("quadlets");
    let made: Vec<String> = units.iter().map(|unit| name(unit).to_owned()).collect();
    twice(work, &own, &made);
    let mut parent = Node::empty();
    let (at, value) = (None, Value::List(units));
    parent.put("units", Node { at, value });
    *systemd = merge(&parent, systemd, &SYSTEMD);
    // Generated units come first and in order; then the others in theirs.
    let rest = names
        .iter()
        .enumerate()
        .filter(|(_, name)| !made.contains(name));
    let from: Vec<Option<usize>> = made
        .iter()
        .map(|made| names.iter().position(|own| own == made))
        .chain(rest.map(|(j, _)| Some(j)))
        .collect();
    work.origins.reorder("$.systemd.units", &from);
    for (i, place) in places
        .iter()
        .enumerate()
        .filter(|(i, _)| from[*i].is_none())
    {
        work.origins.made(format!("$.systemd.units.{i}"), place);
    }
    if let Some(quadlets) = quadlets {
        systemd.put("quadlets", quadlets);
    }
}

fn name(unit: &Node) -> &str {
    unit.text("name").unwrap_or_default()
}

/// Merging uses only the first of two entries for a generated unit, so the second is reported here.
fn twice(work: &mut Work<'_>, own: &[Node], made: &[String]) {
    for (j, unit) in own.iter().enumerate() {
        let before = own[..j].iter().any(|other| name(other) == name(unit));
        if before && made.iter().any(|made| made == name(unit)) {
            let path = format!("$.systemd.units.{j}");
            work.report
                .error(&path, unit.at.as_ref(), "duplicate entry defined");
        }
    }
}

/// The devices that open only with the network: LUKS volumes bound to Tang.
fn remote(storage: &Node) -> Vec<String> {
    let mut out = Vec::new();
    for luks in storage.items("luks") {
        let bound = luks
            .get("clevis")
            .is_some_and(|clevis| !clevis.items("tang").is_empty());
        if let Some(name) = luks.text("name").filter(|_| bound) {
            out.push(format!("/dev/mapper/{name}"));
            out.push(format!("/dev/disk/by-id/dm-name-{name}"));
        }
    }
    out
}

fn unit(filesystem: &Node, with: &Node, minor: u8, remote: bool) -> Node {
    let text = |name: &str| filesystem.text(name).unwrap_or_default();
    let options = filesystem
        .items("mountOptions")
        .iter()
        .filter_map(Node::as_text);
    let options: Vec<&str> = options.chain(remote.then_some("_netdev")).collect();
    let device = text("device");
    let (name, contents) = if text("format") == "swap" && minor >= 3 {
        let swap = Swap {
            device,
            options: &options,
        };
        (swap.name(), swap.text())
    } else {
        let mount = Mount {
            device,
            path: text("path"),
            format: text("format"),
            options: &options,
            remote,
        };
        (mount.name(), mount.text())
    };
    let mut unit = Node::empty();
    unit.at = with.at.clone();
    let (at, value) = (with.at.clone(), Value::Flag(true));
    unit.put("enabled", Node { at, value });
    unit.put("name", Node::text_at(name, with.at.clone()));
    unit.put("contents", Node::text_at(contents, with.at.clone()));
    unit
}
