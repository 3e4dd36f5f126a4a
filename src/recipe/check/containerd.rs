//! Drop-ins of containerd's configuration: what they would take from the node.
//!
//! containerd 1.7 merges an imported file key by key but for the tables of plugins: such a table replaces the whole one of the
//! main file (`mergeConfig` in `services/server/config/config.go`, <https://github.com/containerd/containerd/issues/5837>). A
//! drop-in with a registry's mirror alone would leave the node without its pause image and its runtime.

use std::fs;
use std::path::PathBuf;

use super::Check;
use crate::layer::merge::Tree;
use crate::layer::{Kind, Source};
use crate::node_files::{CONTAINERD, CONTAINERD_DROP_INS, CONTAINERD_REGISTRIES, containerd};
use crate::recipe::Recipe;
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::tree::{self, Node, Value};

/// The plugin of the container runtime interface.
const CRI: &str = "io.containerd.grpc.v1.cri";
/// Plugins without which no pod starts.
const NEEDED: [&str; 2] = [CRI, "io.containerd.snapshotter.v1.overlayfs"];
/// Keys that other parts of the node rely on.
const FIXED: [&[&str]; 4] = [&["imports"], &["root"], &["state"], &["grpc", "address"]];

/// Checks the drop-ins in a tree with the recipe's files. `places` are those of the files.
pub(super) fn check(check: &mut Check<'_>, recipe: &Recipe, places: &[Place], tree: &Tree) {
    if recipe.kubernetes.is_none() {
        return;
    }
    let folder = format!("{CONTAINERD_DROP_INS}/");
    for (path, entry) in tree.range(folder.clone()..) {
        let Some(name) = path.strip_prefix(&folder) else {
            break;
        };
        if name.contains('/') || !name.ends_with(".toml") {
            continue;
        }
        let number = recipe.files.iter().position(|file| file.path == *path);
        let place = number.and_then(|number| places.get(number));
        let place = place.cloned().unwrap_or(Place::top(0));
        let (shown, bytes) = match &entry.kind {
            Kind::File(Source::Bytes(bytes)) => (PathBuf::from(path), Ok(bytes.clone())),
            Kind::File(Source::Path(file)) => (file.clone(), fs::read(file)),
            Kind::Directory => continue,
            _ => {
                let found = format!("{path} is a link, whose file is not checked");
                check.add(Mistake::at(&place, found, "expected content or source"));
                continue;
            }
        };
        match bytes.map(String::from_utf8) {
            Ok(Ok(text)) => drop_in(check, shown, text),
            Ok(Err(error)) => check.add(Mistake::at(&place, format!("{path}: {error}"), "")),
            Err(error) => check.add(Mistake::at(&place, format!("{path}: {error}"), "")),
        }
    }
}

/// Adds the mistakes of one drop-in.
fn drop_in(check: &mut Check<'_>, shown: PathBuf, text: String) {
    let file = check.mistakes.file(shown, text);
    let before = check.mistakes.len();
    let node = tree::parse(file, check.mistakes);
    if check.mistakes.len() > before {
        return;
    }
    let ours: toml::Table = toml::from_str(&containerd()).unwrap_or_default();
    for keys in FIXED {
        if let Some(value) = node.at(keys) {
            let found = format!("`{}` is given in a drop-in of containerd", keys.join("."));
            check.add(Mistake::at(&value.place, found, "expected it left out"));
        }
    }
    if let (Some(value), Some(version)) = (node.at(&["version"]), ours.get("version")) {
        differing(check, "version", version, value);
    }
    for item in node.at(&["disabled_plugins"]).map_or(&[][..], Node::items) {
        if let Some(name) = item.text().filter(|name| NEEDED.contains(name)) {
            let found = format!("the plugin {name} is disabled, and no pod starts without it");
            check.add(Mistake::at(&item.place, found, "expected another plugin"));
        }
    }
    let Some(Value::Table(plugins)) = node.at(&["plugins"]).map(|node| &node.value) else {
        return;
    };
    for (name, entry) in plugins {
        if let Some(ours) = ours.get("plugins").and_then(|plugins| plugins.get(name)) {
            replaced(check, name, ours, &entry.node, &entry.key);
        } else if name.starts_with("io.containerd.cri.v1.") || !name.contains('.') {
            let found = format!("containerd 1.7 has no plugin {name:?}");
            let mistake = Mistake::at(&entry.key, found, "expected the name that 1.7 has");
            check.add(mistake.help(format!(
                "that of the container runtime interface is {CRI:?}"
            )));
        }
    }
}

/// Holds a plugin's table, which replaces the node's, against it: every key of the node's is to be in it.
fn replaced(check: &mut Check<'_>, name: &str, ours: &toml::Value, node: &Node, key: &Place) {
    let mut absent = Vec::new();
    let mut todo = vec![(String::new(), ours, node)];
    while let Some((path, ours, node)) = todo.pop() {
        for (key, ours) in ours.as_table().into_iter().flatten() {
            let path = tree::join(&path, key);
            match node.at(&[key]) {
                None => leaves(&path, ours, &mut absent),
                Some(found) if ours.is_table() => todo.push((path, ours, found)),
                Some(found) => differing(check, &path, ours, found),
            }
        }
    }
    if absent.is_empty() {
        return;
    }
    absent.sort();
    let found = format!(
        "this table replaces the node's plugins.{name:?} and leaves out what the node needs"
    );
    let mistake = Mistake::at(
        key,
        found,
        format!("expected all that {CONTAINERD} has there"),
    );
    check.add(mistake.help(format!(
        "add {}; a registry needs no such table: {CONTAINERD_REGISTRIES}/HOST/hosts.toml",
        absent.join(", ")
    )));
}

/// All keys of a value with their values, as `path = value`.
fn leaves(path: &str, value: &toml::Value, all: &mut Vec<String>) {
    match value.as_table() {
        Some(table) => {
            for (key, value) in table {
                leaves(&tree::join(path, key), value, all);
            }
        }
        None => all.push(format!("{path} = {value}")),
    }
}

fn differing(check: &mut Check<'_>, path: &str, ours: &toml::Value, node: &Node) {
    let same = serde_json::to_value(ours).is_ok_and(|ours| ours == node.to_json());
    if !same {
        let found = format!("`{path}` is {}", node.describe());
        check.add(Mistake::at(&node.place, found, format!("expected {ours}")));
    }
}
