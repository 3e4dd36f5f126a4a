//! The rules of the language, each with Ignition's severity, by the config's own version.

use std::collections::BTreeSet;

use crate::report::{Position, Report};
use crate::schema::{CONFIG, Item, Join, Shape, Struct};
use crate::tree::{Node, Value};

mod disks;
mod nodes;
mod resources;

/// Checks a config that was read by the schema of specification 3.`minor`.
#[must_use]
pub fn validate(config: &Node, minor: u8) -> Report {
    let mut rules = Rules {
        minor,
        report: Report::default(),
    };
    let root = Spot {
        node: config,
        path: "$".to_owned(),
        at: config.at.as_ref(),
    };
    rules.duplicates(&root, &CONFIG);
    rules.ignition(&root);
    rules.disks(&root);
    rules.nodes(&root);
    rules.units(&root);
    rules.report
}

/// A node, its path, and the nearest position in the text.
struct Spot<'a> {
    node: &'a Node,
    path: String,
    at: Option<&'a Position>,
}

impl<'a> Spot<'a> {
    fn child(&self, name: &str) -> Option<Spot<'a>> {
        let node = self.node.get(name)?;
        Some(Spot {
            node,
            path: format!("{}.{name}", self.path),
            at: node.at.as_ref().or(self.at),
        })
    }

    fn items(&self, name: &str) -> Vec<Spot<'a>> {
        let spot = |(i, node): (usize, &'a Node)| Spot {
            node,
            path: format!("{}.{name}.{i}", self.path),
            at: node.at.as_ref().or(self.at),
        };
        self.node.items(name).iter().enumerate().map(spot).collect()
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.node.text(name)
    }
}

struct Rules {
    minor: u8,
    report: Report,
}

impl Rules {
    fn error(&mut self, spot: &Spot<'_>, name: &str, message: impl Into<String>) {
        let (path, at) = below(spot, name);
        self.report.error(&path, at, message);
    }

    fn warn(&mut self, spot: &Spot<'_>, name: &str, message: impl Into<String>) {
        let (path, at) = below(spot, name);
        self.report.warn(&path, at, message);
    }

    /// Checks that every keyed list, and every key space of several lists, has each key once.
    fn duplicates(&mut self, spot: &Spot<'_>, schema: &'static Struct) {
        let mut shared = BTreeSet::new();
        for field in schema.fields {
            match field.shape {
                Shape::Struct(schema) => {
                    if let Some(child) = spot.child(field.name) {
                        self.duplicates(&child, schema);
                    }
                }
                Shape::List(item, join) => {
                    let mut own = BTreeSet::new();
                    let seen = match schema.shared.contains(&field.name) {
                        true => &mut shared,
                        false => &mut own,
                    };
                    for entry in spot.items(field.name) {
                        if join == Join::ByKey && !seen.insert(entry.node.key(item)) {
                            self.error(&entry, "", "duplicate entry defined");
                        }
                        if let Item::Struct(schema) = item {
                            self.duplicates(&entry, schema);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Checks a path: present, absolute and in its shortest form.
    fn path(&mut self, spot: &Spot<'_>, name: &str, path: &str) {
        let wrong = if path.is_empty() {
            "path not specified"
        } else if !path.starts_with('/') {
            "path not absolute"
        } else if clean(path) != path {
            "path is not fully simplified"
        } else {
            return;
        };
        self.error(spot, name, wrong);
    }
}

/// The path and position of a field: the field's own if it is present, else its owner's.
fn below<'a>(spot: &Spot<'a>, name: &str) -> (String, Option<&'a Position>) {
    if name.is_empty() {
        return (spot.path.clone(), spot.at);
    }
    let mut at = spot.at;
    let mut node = Some(spot.node);
    for part in name.split('.') {
        node = node.and_then(|node| match &node.value {
            Value::List(items) => part.parse::<usize>().ok().and_then(|i| items.get(i)),
            _ => node.get(part),
        });
        at = node.and_then(|node| node.at.as_ref()).or(at);
    }
    (format!("{}.{name}", spot.path), at)
}

/// The shortest form of an absolute path, without access to any file system.
#[must_use]
pub fn clean(path: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    format!("/{}", out.join("/"))
}
