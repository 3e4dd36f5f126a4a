//! Merges two configs: the child's values replace the parent's, list entries are matched by the keys of the schema.

use std::collections::BTreeMap;

use crate::schema::{Item, Join, Shape, Struct};
use crate::tree::{Node, Value};

/// Merges `child` over `parent`; both in the form of the newest version.
#[must_use]
pub fn merge(parent: &Node, child: &Node, schema: &'static Struct) -> Node {
    let mut out = BTreeMap::new();
    for field in schema.fields {
        let (old, new) = (parent.get(field.name), child.get(field.name));
        let node = match (field.shape, old, new) {
            (_, None, None) => None,
            (Shape::Struct(schema), Some(old), Some(new)) => Some(merge(old, new, schema)),
            (Shape::List(_, Join::Append), Some(old), Some(new)) => Some(append(old, new)),
            (Shape::List(item, Join::ByKey), old, new) => Some(by_key(
                old,
                new,
                item,
                &elsewhere(child, schema, field.name),
            )),
            (_, old, new) => new.or(old).cloned(),
        };
        if let Some(node) = node {
            out.insert(field.name, node);
        }
    }
    Node {
        at: child.at.clone().or_else(|| parent.at.clone()),
        value: Value::Struct(out),
    }
}

fn items(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

fn append(old: &Node, new: &Node) -> Node {
    let both = items(Some(old)).iter().chain(items(Some(new)));
    Node {
        at: new.at.clone(),
        value: Value::List(both.cloned().collect()),
    }
}

/// Keys of the child's entries in the other lists of the same key space.
fn elsewhere(child: &Node, schema: &'static Struct, name: &str) -> Vec<String> {
    if !schema.shared.contains(&name) {
        return Vec::new();
    }
    let mut out = Vec::new();
    for other in schema.shared.iter().filter(|other| **other != name) {
        if let Some(Shape::List(item, _)) = schema.field(other).map(|field| field.shape) {
            out.extend(child.items(other).iter().map(|node| node.key(item)));
        }
    }
    out
}

fn by_key(old: Option<&Node>, new: Option<&Node>, item: Item, elsewhere: &[String]) -> Node {
    let (parents, children) = (items(old), items(new));
    let mut out = Vec::new();
    for parent in parents {
        let name = parent.key(item);
        match (children.iter().find(|c| c.key(item) == name), item) {
            // A header without a value removes the parent's.
            (Some(child), Item::Struct(schema)) => {
                let header = schema.fields.iter().any(|f| f.name == "value");
                if !(header && child.get("value").is_none()) {
                    out.push(merge(parent, child, schema));
                }
            }
            (Some(child), Item::Text) => out.push(child.clone()),
            (None, _) if elsewhere.contains(&name) => {}
            (None, _) => out.push(parent.clone()),
        }
    }
    for child in children {
        let name = child.key(item);
        if !parents.iter().any(|parent| parent.key(item) == name) {
            out.push(child.clone());
        }
    }
    Node {
        at: new.or(old).and_then(|node| node.at.clone()),
        value: Value::List(out),
    }
}
