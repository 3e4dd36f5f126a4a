//! Butane's own rules, checked before the sugar is expanded.

use super::version::Variant;
use crate::mode::is_octal_in_decimal;
use crate::report::Report;
use crate::tree::Node;
use crate::unit::template_of;

/// Checks Butane's own fields.
pub(super) fn check(tree: &Node, variant: Variant, minor: u8, report: &mut Report) {
    if variant == Variant::Edge {
        edge(tree, report);
    }
    if let Some(storage) = tree.get("storage") {
        for (list, directory) in [("files", false), ("directories", true)] {
            for (i, node) in storage.items(list).iter().enumerate() {
                mode(node, directory, &format!("$.storage.{list}.{i}"), report);
            }
        }
        for (i, node) in storage.items("filesystems").iter().enumerate() {
            let path = format!("$.storage.filesystems.{i}");
            mount_unit(node, variant, minor, &path, report);
        }
        for (i, node) in storage.items("disks").iter().enumerate() {
            disk(
                node,
                variant,
                minor,
                &format!("$.storage.disks.{i}"),
                report,
            );
        }
        for (i, node) in storage.items("luks").iter().enumerate() {
            luks(node, variant, minor, &format!("$.storage.luks.{i}"), report);
        }
        for (i, node) in storage.items("trees").iter().enumerate() {
            if node.text("local").unwrap_or_default().is_empty() {
                let path = format!("$.storage.trees.{i}");
                report.error(
                    &path,
                    node.at.as_ref(),
                    "a tree needs local, the folder that it is made of",
                );
            }
        }
    }
    let Some(systemd) = tree.get("systemd") else {
        return;
    };
    for (i, node) in systemd.items("units").iter().enumerate() {
        let path = format!("$.systemd.units.{i}");
        one_contents(node, &path, report);
        dropins(node, &path, report);
    }
    for (i, node) in systemd.items("quadlets").iter().enumerate() {
        quadlet(node, &format!("$.systemd.quadlets.{i}"), report);
    }
}

/// RHEL for Edge and Fedora IoT take no disks and no kernel arguments from a config: their image's blueprint has them.
fn edge(tree: &Node, report: &mut Report) {
    let mut refuse = |found: Option<&Node>, path: &str| {
        if let Some(found) = found.filter(|found| !found.is_blank()) {
            let message = "r4e and fiot take none; write a config of variant slipway";
            report.error(path, found.at.as_ref(), message);
        }
    };
    refuse(tree.get("kernelArguments"), "$.kernel_arguments");
    for list in ["disks", "filesystems", "luks", "raid"] {
        let found = tree.get("storage").and_then(|storage| storage.get(list));
        refuse(found, &format!("$.storage.{list}"));
    }
}

/// Warns of a mode whose leading zero was forgotten.
fn mode(node: &Node, directory: bool, path: &str, report: &mut Report) {
    let Some(found) = node.number("mode") else {
        return;
    };
    if is_octal_in_decimal(found, directory) {
        let at = node.get("mode").and_then(|mode| mode.at.as_ref());
        let message = format!("found {found} in decimal; expected octal, as 0{found}");
        report.warn(&format!("{path}.mode"), at, message);
    }
}

fn mount_unit(node: &Node, variant: Variant, minor: u8, path: &str, report: &mut Report) {
    if node.flag("with_mount_unit") != Some(true) {
        return;
    }
    let format = node.text("format").unwrap_or_default();
    let mounted = node.text("path").unwrap_or_default();
    let at = |name: &str| {
        node.get(name)
            .or(Some(node))
            .and_then(|node| node.at.as_ref())
    };
    if format.is_empty() {
        let message = "with_mount_unit needs a format";
        report.error(&format!("{path}.format"), at("format"), message);
    }
    // Swap units came with the specification that becomes Ignition 3.3.
    if mounted.is_empty() && !(format == "swap" && minor >= 3) {
        let message = "with_mount_unit needs a path";
        report.error(&format!("{path}.path"), at("path"), message);
    }
    let strict = variant == Variant::Slipway || (variant == Variant::Fcos && minor >= 5);
    let below = |top: &str| {
        let rest = mounted.strip_prefix(top);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if strict && !mounted.is_empty() && !below("/etc") && !below("/var") {
        let message =
            "a mount unit's path is /etc, /var or below: the rest of the system is read-only";
        report.error(&format!("{path}.path"), at("path"), message);
    }
}

fn disk(node: &Node, variant: Variant, minor: u8, path: &str, report: &mut Report) {
    if variant == Variant::Flatcar || minor < 5 || node.flag("wipeTable") == Some(true) {
        return;
    }
    for (i, partition) in node.items("partitions").iter().enumerate() {
        let numbered = partition.number("number").unwrap_or(0) != 0;
        if numbered || partition.get("label").is_none() {
            continue;
        }
        let message = "a partition is not found again by its label; give its number, or wipe_table";
        report.warn(
            &format!("{path}.partitions.{i}.number"),
            partition.at.as_ref(),
            message,
        );
    }
}

fn luks(node: &Node, variant: Variant, minor: u8, path: &str, report: &mut Report) {
    let mut refuse = |name: &'static str, since: &str| {
        if let Some(found) = node.get(name).filter(|found| !found.is_blank()) {
            let message = format!("flatcar has no {name}{since}");
            report.error(&format!("{path}.{name}"), found.at.as_ref(), message);
        }
    };
    if variant == Variant::Flatcar {
        refuse("cex", "");
        if minor < 7 {
            refuse("clevis", " before 1.2.0-experimental");
        }
    }
}

/// Contents have only one source.
fn one_contents(node: &Node, path: &str, report: &mut Report) {
    if let (Some(_), Some(local)) = (node.get("contents"), node.get("contents_local")) {
        let message = "found contents too; expected one of contents and contents_local";
        report.error(
            &format!("{path}.contents_local"),
            local.at.as_ref(),
            message,
        );
    }
}

fn dropins(node: &Node, path: &str, report: &mut Report) {
    for (i, dropin) in node.items("dropins").iter().enumerate() {
        one_contents(dropin, &format!("{path}.dropins.{i}"), report);
    }
}

/// The kinds of file that Podman's generator reads: podman-systemd.unit(5).
const QUADLETS: [&str; 8] = [
    "container",
    "volume",
    "network",
    "kube",
    "image",
    "build",
    "pod",
    "artifact",
];

fn quadlet(node: &Node, path: &str, report: &mut Report) {
    let name = node.text("name").unwrap_or_default();
    let at = node.get("name").unwrap_or(node).at.as_ref();
    let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
    if !QUADLETS.contains(&kind) {
        let message = format!(
            "the name of a quadlet ends with one of .{}",
            QUADLETS.join(", .")
        );
        report.error(&format!("{path}.name"), at, message);
    }
    let dropin_names = node
        .items("dropins")
        .iter()
        .map(|node| node.text("name").unwrap_or_default());
    if name.contains('/') || dropin_names.into_iter().any(|name| name.contains('/')) {
        report.error(
            &format!("{path}.name"),
            at,
            "a quadlet's name, and that of its drop-ins, holds no slash",
        );
    }
    if template_of(name).is_none() {
        one_contents(node, path, report);
    } else {
        for contents in ["contents", "contents_local"] {
            if let Some(found) = node.get(contents) {
                let message = "an instance has the contents of its template; it becomes a link";
                report.error(&format!("{path}.{contents}"), found.at.as_ref(), message);
            }
        }
    }
    dropins(node, path, report);
}
