//! Trees of local files, and Podman Quadlets: both become files, directories and links.

use super::contents::{data_url, file, inside};
use super::{Files, Kind, Work};
use crate::report::At;
use crate::tree::{Node, Value};
use crate::validate::clean;

/// Adds what the trees and the quadlets hold.
pub(super) fn add(work: &mut Work<'_>, tree: &mut Node) {
    let trees = tree
        .get_mut("storage")
        .and_then(|storage| storage.take("trees"));
    let quadlets = tree
        .get_mut("systemd")
        .and_then(|systemd| systemd.take("quadlets"));
    for (i, folder) in items(trees).into_iter().enumerate() {
        let Some(storage) = tree.entry("storage", Node::empty) else {
            return;
        };
        add_tree(work, storage, &folder, &format!("$.storage.trees.{i}"));
    }
    for (i, quadlet) in items(quadlets).into_iter().enumerate() {
        let Some(storage) = tree.entry("storage", Node::empty) else {
            return;
        };
        add_quadlet(work, storage, &quadlet, &format!("$.systemd.quadlets.{i}"));
    }
}

fn items(list: Option<Node>) -> Vec<Node> {
    match list.map(|list| list.value) {
        Some(Value::List(items)) => items,
        _ => Vec::new(),
    }
}

/// The place that an error about a made node is told at.
struct Place<'a> {
    path: &'a str,
    at: Option<&'a At>,
}

const TAKEN: &str =
    "a file, directory or link of the config is there already, with contents or of another kind";

fn add_tree(work: &mut Work<'_>, storage: &mut Node, folder: &Node, path: &str) {
    let place = Place {
        path,
        at: folder.at.as_ref(),
    };
    let local = inside(folder.text("local").unwrap_or_default());
    let walk = |local: String| (work.options.files as &dyn Files).tree(&local);
    let found = match local.map_err(str::to_owned).and_then(walk) {
        Ok(found) => found,
        Err(why) => return work.report.error(&format!("{path}.local"), place.at, why),
    };
    let top = folder
        .text("path")
        .filter(|path| !path.is_empty())
        .unwrap_or("/");
    for entry in found {
        let to = match top.starts_with('/') {
            true => clean(&format!("{top}/{}", entry.path)),
            // Ignition's own rule tells what is wrong with it.
            false => format!("{top}/{}", entry.path),
        };
        match entry.kind {
            Kind::Directory => add_directory(work, storage, folder, &to, &place),
            Kind::File(bytes, executable) => {
                let mode =
                    folder
                        .number("file_mode")
                        .unwrap_or(if executable { 0o755 } else { 0o644 });
                let new = node_at(&to, folder);
                put_file(work, storage, new, &bytes, mode, true, &place);
            }
            Kind::Link(target) => {
                add_link(work, storage, node_at(&to, folder), &target, true, &place)
            }
            Kind::Other(why) => {
                let message = format!("{}: {why}", entry.path);
                work.report.error(path, place.at, message);
            }
        }
    }
}

/// A node of this path and the owners of its tree.
fn node_at(path: &str, folder: &Node) -> Node {
    let mut node = Node::empty();
    node.at = folder.at.clone();
    for owner in ["user", "group"] {
        if let Some(given) = folder.get(owner) {
            node.put(owner, given.clone());
        }
    }
    node.put("path", Node::text_at(path.to_owned(), folder.at.clone()));
    node
}

/// Where a list of the storage has an entry with this path.
fn position(storage: &Node, list: &str, path: &str) -> Option<usize> {
    let same = |node: &Node| node.text("path") == Some(path);
    storage.items(list).iter().position(same)
}

fn exists(storage: &Node, path: &str) -> bool {
    let lists = ["files", "directories", "links"];
    lists
        .into_iter()
        .any(|list| position(storage, list, path).is_some())
}

/// Folders are made by what is in them, unless the tree says how they are to be.
fn add_directory(
    work: &mut Work<'_>,
    storage: &mut Node,
    folder: &Node,
    to: &str,
    place: &Place<'_>,
) {
    let said = |name: &str| folder.get(name).is_some_and(|node| !node.is_blank());
    if !(said("dir_mode") || said("user") || said("group")) {
        return;
    }
    if exists(storage, to) {
        return work
            .report
            .error(place.path, place.at, format!("{to}: {TAKEN}"));
    }
    let mut node = node_at(to, folder);
    let at = folder.at.clone();
    let value = Value::Number(folder.number("dir_mode").unwrap_or(0o755));
    node.put("mode", Node { at, value });
    append(work, storage, "directories", node, place);
}

/// Puts a file, or its contents into an entry that has none yet if that is `shared`.
fn put_file(
    work: &mut Work<'_>,
    storage: &mut Node,
    new: Node,
    bytes: &[u8],
    mode: i64,
    shared: bool,
    place: &Place<'_>,
) {
    let to = new.text("path").unwrap_or_default().to_owned();
    let found = position(storage, "files", &to).filter(|_| shared);
    if found.is_none() && exists(storage, &to) {
        return work
            .report
            .error(place.path, place.at, format!("{to}: {TAKEN}"));
    }
    let index = match found {
        Some(index) => index,
        None => append(work, storage, "files", new, place),
    };
    let Some(node) = storage.items_mut("files").get_mut(index) else {
        return;
    };
    let contents = node.entry("contents", Node::empty);
    let Some(contents) = contents else {
        return;
    };
    if contents
        .text("source")
        .is_some_and(|source| !source.is_empty())
    {
        return work
            .report
            .error(place.path, place.at, format!("{to}: {TAKEN}"));
    }
    let at = place.at.cloned();
    let packed = contents
        .text("compression")
        .is_some_and(|text| !text.is_empty());
    let url = data_url(bytes, packed, work.minor, work.options);
    contents.put("source", Node::text_at(url.text, at.clone()));
    if let Some(compression) = url.compression {
        contents.put(
            "compression",
            Node::text_at(compression.to_owned(), at.clone()),
        );
    }
    let value = Value::Number(mode);
    node.entry("mode", || Node { at, value });
    let to = format!("$.storage.files.{index}");
    work.origins.made(format!("{to}.contents"), place.path);
}

fn add_link(
    work: &mut Work<'_>,
    storage: &mut Node,
    new: Node,
    target: &str,
    shared: bool,
    place: &Place<'_>,
) {
    let to = new.text("path").unwrap_or_default().to_owned();
    let found = position(storage, "links", &to).filter(|_| shared);
    if found.is_none() && exists(storage, &to) {
        return work
            .report
            .error(place.path, place.at, format!("{to}: {TAKEN}"));
    }
    let index = match found {
        Some(index) => index,
        None => append(work, storage, "links", new, place),
    };
    let Some(node) = storage.items_mut("links").get_mut(index) else {
        return;
    };
    if node.text("target").is_some_and(|target| !target.is_empty()) {
        return work
            .report
            .error(place.path, place.at, format!("{to}: {TAKEN}"));
    }
    node.put(
        "target",
        Node::text_at(target.to_owned(), place.at.cloned()),
    );
}

/// Adds to a list of the storage, and tells where.
fn append(
    work: &mut Work<'_>,
    storage: &mut Node,
    list: &'static str,
    node: Node,
    place: &Place<'_>,
) -> usize {
    let empty = || Node {
        at: place.at.cloned(),
        value: Value::List(Vec::new()),
    };
    let Some(Node {
        value: Value::List(items),
        ..
    }) = storage.entry(list, empty)
    else {
        return 0;
    };
    items.push(node);
    let index = items.len() - 1;
    work.origins
        .made(format!("$.storage.{list}.{index}"), place.path);
    index
}

/// The template of an instance, as `a@.container` of `a@b.container`.
pub(super) fn template_of(name: &str) -> Option<String> {
    let (stem, rest) = name.split_once('@')?;
    let (instance, kind) = rest.rsplit_once('.')?;
    (!instance.is_empty()).then(|| format!("{stem}@.{kind}"))
}

fn add_quadlet(work: &mut Work<'_>, storage: &mut Node, quadlet: &Node, path: &str) {
    let place = Place {
        path,
        at: quadlet.at.as_ref(),
    };
    let name = quadlet.text("name").unwrap_or_default();
    let folder = match quadlet.flag("rootful") {
        Some(true) => "/etc/containers/systemd",
        _ => "/etc/containers/systemd/users",
    };
    let to = format!("{folder}/{name}");
    let mut new = Node::empty();
    new.at = quadlet.at.clone();
    new.put("path", Node::text_at(to.clone(), quadlet.at.clone()));
    match template_of(name) {
        Some(template) => add_link(work, storage, new, &template, false, &place),
        None => add_contents(work, storage, new, quadlet, &place),
    }
    for (i, dropin) in quadlet.items("dropins").iter().enumerate() {
        let place = Place {
            path: &format!("{path}.dropins.{i}"),
            at: dropin.at.as_ref(),
        };
        let name = dropin.text("name").unwrap_or_default();
        let mut new = Node::empty();
        new.at = dropin.at.clone();
        new.put(
            "path",
            Node::text_at(format!("{to}.d/{name}"), dropin.at.clone()),
        );
        add_contents(work, storage, new, dropin, &place);
    }
}

fn add_contents(
    work: &mut Work<'_>,
    storage: &mut Node,
    new: Node,
    from: &Node,
    place: &Place<'_>,
) {
    let given = |name: &str| from.text(name).filter(|text| !text.is_empty());
    let bytes = match (given("contents"), from.get("contents_local")) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, Some(local)) if given("contents_local").is_some() => {
            match file(work, local, &format!("{}.contents_local", place.path)) {
                Some(bytes) => bytes,
                None => return,
            }
        }
        _ => Vec::new(),
    };
    put_file(work, storage, new, &bytes, 0o644, false, place);
}
