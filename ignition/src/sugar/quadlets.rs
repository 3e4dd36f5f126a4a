//! Podman Quadlets, translated to files and links in the folders of Podman's generator: podman-systemd.unit(5).

use super::contents::file;
use super::storage::{Existing, Storage};
use super::work::Work;
use crate::tree::{Node, Value};
use crate::unit::template_of;

/// Adds the files of all quadlets.
pub(super) fn add(work: &mut Work<'_>, tree: &mut Node) {
    let quadlets = tree
        .get_mut("systemd")
        .and_then(|systemd| systemd.take("quadlets"));
    let Some(Value::List(quadlets)) = quadlets.map(|list| list.value) else {
        return;
    };
    for (i, quadlet) in quadlets.iter().enumerate() {
        let path = format!("$.systemd.quadlets.{i}");
        let name = quadlet.text("name").unwrap_or_default();
        let folder = match quadlet.flag("rootful") {
            Some(true) => "/etc/containers/systemd",
            _ => "/etc/containers/systemd/users",
        };
        let to = format!("{folder}/{name}");
        if let Some(mut storage) = Storage::of(tree, work, &path, quadlet.at.as_ref()) {
            match template_of(name) {
                Some(template) => {
                    storage.add_link(node_at(&to, quadlet), &template, Existing::Refuse);
                }
                None => add_file(&mut storage, &to, quadlet, &path),
            }
        }
        for (j, dropin) in quadlet.items("dropins").iter().enumerate() {
            let path = format!("{path}.dropins.{j}");
            let name = dropin.text("name").unwrap_or_default();
            if let Some(mut storage) = Storage::of(tree, work, &path, dropin.at.as_ref()) {
                add_file(&mut storage, &format!("{to}.d/{name}"), dropin, &path);
            }
        }
    }
}

fn node_at(path: &str, from: &Node) -> Node {
    let mut node = Node::empty();
    node.at = from.at.clone();
    node.put("path", Node::text_at(path.to_owned(), from.at.clone()));
    node
}

fn add_file(storage: &mut Storage<'_, '_>, to: &str, from: &Node, path: &str) {
    let given = |name: &str| from.text(name).filter(|text| !text.is_empty());
    let bytes = match (given("contents"), from.get("contents_local")) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, Some(local)) if given("contents_local").is_some() => {
            match file(storage.work, local, &format!("{path}.contents_local")) {
                Some(bytes) => bytes,
                None => return,
            }
        }
        _ => Vec::new(),
    };
    storage.add_file(node_at(to, from), &bytes, 0o644, Existing::Refuse);
}
