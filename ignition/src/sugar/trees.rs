//! Trees: folders of local files become files, directories and links.

use super::storage::{Existing, Storage};
use super::work::Work;
use crate::local_files::{EntryKind, inside};
use crate::tree::{Node, Value};
use crate::validate::clean;

/// Adds the entries of all trees.
pub(super) fn add(work: &mut Work<'_>, tree: &mut Node) {
    let trees = tree
        .get_mut("storage")
        .and_then(|storage| storage.take("trees"));
    let Some(Value::List(folders)) = trees.map(|list| list.value) else {
        return;
    };
    for (i, folder) in folders.iter().enumerate() {
        let path = format!("$.storage.trees.{i}");
        if let Some(mut storage) = Storage::of(tree, work, &path, folder.at.as_ref()) {
            add_tree(&mut storage, folder, &path);
        }
    }
}

fn add_tree(storage: &mut Storage<'_, '_>, folder: &Node, path: &str) {
    let files = storage.work.options.files;
    let at = folder.at.as_ref();
    let local = inside(folder.text("local").unwrap_or_default()).map_err(str::to_owned);
    let found = match local.and_then(|local| files.tree(&local)) {
        Ok(found) => found,
        Err(why) => {
            let report = &mut storage.work.report;
            return report.error(&format!("{path}.local"), at, why);
        }
    };
    let top = folder
        .text("path")
        .filter(|path| !path.is_empty())
        .unwrap_or("/");
    let given = |name: &str| folder.get(name).is_some_and(|node| !node.is_blank());
    for entry in found {
        let to = match top.starts_with('/') {
            true => clean(&format!("{top}/{}", entry.path)),
            // Ignition's own rule reports the mistake.
            false => format!("{top}/{}", entry.path),
        };
        let new = node_at(&to, folder);
        match entry.kind {
            // Directories are made with their files, unless the tree sets a mode or an owner.
            EntryKind::Directory if given("dir_mode") || given("user") || given("group") => {
                storage.add_directory(new, folder.number("dir_mode").unwrap_or(0o755));
            }
            EntryKind::Directory => {}
            EntryKind::File(bytes, executable) => {
                let default = if executable { 0o755 } else { 0o644 };
                let mode = folder.number("file_mode").unwrap_or(default);
                storage.add_file(new, &bytes, mode, Existing::Complete);
            }
            EntryKind::Link(target) => storage.add_link(new, &target, Existing::Complete),
            EntryKind::Other(why) => {
                let message = format!("{}: {why}", entry.path);
                storage.work.report.error(path, at, message);
            }
        }
    }
}

/// A node with this path and the owners of its tree.
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
