//! Configs of specification 2 (Container Linux, Flatcar, Cluster API's kubeadm provider), translated to 3.1.
//!
//! The target is that of Flatcar's Ignition. Specification 2 applies the entries of a list in their order, and 3 has
//! each key once: entries with one key become one, as if the later were merged over the earlier. What has no equal in
//! 3.1 is an error at its place in the text.

mod accounts;
mod disks;
mod fields;
mod filesystems;
mod nodes;
mod resources;
mod schema;
mod units;

use crate::merge::merge;
use crate::origins::Origins;
use crate::read::json::Json;
use crate::report::{Position, Report};
use crate::schema::Struct;
use crate::tree::{self, Node, Value};
use fields::put;

/// The minor number of the version 3 that a translated config has.
pub(crate) const BECOMES_MINOR: u8 = 1;

/// The minor number of a version 2; none for other texts.
pub(crate) fn minor(version: &str) -> Option<u8> {
    match version {
        "2.0.0" => Some(0),
        "2.1.0" => Some(1),
        "2.2.0" => Some(2),
        "2.3.0" => Some(3),
        "2.4.0" => Some(4),
        _ => None,
    }
}

/// Reads a config of specification 2.`minor` and translates it: the tree in the form of 3.1, the findings about keys,
/// types and what cannot be translated, by the paths of the text, and these paths for later findings.
pub(crate) fn translate(json: &Json, minor: u8) -> (Node, Report, Origins) {
    let mut report = Report::default();
    let old = tree::read(json, &schema::CONFIG, minor, &mut report);
    let mut translation = Translation {
        minor,
        report,
        origins: Origins::same_spelling(),
    };
    let new = translation.config(&old);
    (new, translation.report, translation.origins)
}

/// A translation under way.
struct Translation {
    minor: u8,
    report: Report,
    origins: Origins,
}

/// An entry of a list and its path in the text.
struct Entry<'a> {
    node: &'a Node,
    path: String,
}

impl<'a> Entry<'a> {
    fn all(list: Option<&'a Node>, name: &'static str, path: &str) -> Vec<Self> {
        let items = list.map_or(&[][..], |list| list.items(name));
        let entry = |(i, node)| Entry {
            node,
            path: format!("{path}.{name}.{i}"),
        };
        items.iter().enumerate().map(entry).collect()
    }

    /// The position of a field: its own if it is there, else the entry's.
    fn at(&self, name: &str) -> Option<&'a Position> {
        let own = self.node.get(name).and_then(|node| node.at.as_ref());
        own.or(self.node.at.as_ref())
    }
}

impl Translation {
    fn config(&mut self, old: &Node) -> Node {
        let mut new = Node {
            at: old.at.clone(),
            ..Node::empty()
        };
        put(&mut new, "ignition", self.ignition(old.get("ignition")));
        put(&mut new, "passwd", self.passwd(old.get("passwd")));
        put(&mut new, "systemd", self.systemd(old.get("systemd")));
        put(&mut new, "storage", self.storage(old));
        new
    }

    fn storage(&mut self, old: &Node) -> Node {
        let storage = old.get("storage");
        let mut new = Node {
            at: storage.and_then(|node| node.at.clone()),
            ..Node::empty()
        };
        let prefixes = self.filesystems(old, &mut new);
        self.disks(storage, &mut new);
        self.nodes(old, &prefixes, &mut new);
        new
    }

    /// Reports what cannot be translated.
    fn refuse(&mut self, entry: &Entry<'_>, name: &str, message: impl Into<String>) {
        let path = match name {
            "" => entry.path.clone(),
            name => format!("{}.{name}", entry.path),
        };
        self.report.error(&path, entry.at(name), message);
    }

    fn warn(&mut self, entry: &Entry<'_>, name: &str, message: impl Into<String>) {
        let path = format!("{}.{name}", entry.path);
        self.report.warn(&path, entry.at(name), message);
    }

    /// A list of the translated config at `path`, of entries with their paths in the text.
    fn list(&mut self, path: &str, at: Option<Position>, entries: Vec<(String, Node)>) -> Node {
        let mut items = Vec::new();
        for (i, (from, node)) in entries.into_iter().enumerate() {
            self.origins.rename(format!("{path}.{i}"), from);
            items.push(node);
        }
        Node {
            at,
            value: Value::List(items),
        }
    }

    /// Entries with one key as one, at the place of the first: the later merged over the earlier.
    fn joined(
        entries: Vec<(String, Node)>,
        key: &str,
        schema: &'static Struct,
    ) -> Vec<(String, Node)> {
        let mut out: Vec<(String, Node)> = Vec::new();
        for (path, node) in entries {
            let same = |(_, other): &&mut (String, Node)| other.text(key) == node.text(key);
            match out.iter_mut().find(same) {
                Some((from, other)) => {
                    *other = merge(other, &node, schema);
                    *from = path;
                }
                None => out.push((path, node)),
            }
        }
        out
    }
}
