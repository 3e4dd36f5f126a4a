//! Copies fields of specification 2 to the form of 3.1.
//!
//! A field that specification 2 has always, and 3 only when given, is left out with the value that 2 takes for none:
//! an empty text, false, zero.

use crate::tree::{Node, Value};

/// An object at the position of `old`.
pub(super) fn object(old: &Node) -> Node {
    Node {
        at: old.at.clone(),
        ..Node::empty()
    }
}

/// Sets a field, but not to an empty object or list.
pub(super) fn put(new: &mut Node, name: &'static str, node: Node) {
    if !node.is_blank() {
        new.put(name, node);
    }
}

/// Copies fields as they are.
pub(super) fn copy(old: &Node, new: &mut Node, names: &[&'static str]) {
    for name in names {
        if let Some(node) = old.get(name) {
            put(new, name, node.clone());
        }
    }
}

/// Copies fields that have another value than an empty text, false or zero.
pub(super) fn copy_filled(old: &Node, new: &mut Node, names: &[&'static str]) {
    for name in names {
        if let Some(node) = old.get(name).filter(|node| is_filled(node)) {
            put(new, name, node.clone());
        }
    }
}

/// Copies lists of texts, each text once: 3 refuses one that is there twice.
pub(super) fn copy_once(old: &Node, new: &mut Node, names: &[&'static str]) {
    for name in names {
        let mut once: Vec<Node> = Vec::new();
        for node in old.items(name) {
            if !once.iter().any(|other| other.value == node.value) {
                once.push(node.clone());
            }
        }
        let at = old.get(name).and_then(|node| node.at.clone());
        put(new, name, list(at, once));
    }
}

/// A list.
pub(super) fn list(at: Option<crate::report::Position>, items: Vec<Node>) -> Node {
    Node {
        at,
        value: Value::List(items),
    }
}

/// A boolean at the position of `old`.
pub(super) fn flag(value: bool, old: &Node) -> Node {
    Node {
        at: old.at.clone(),
        value: Value::Flag(value),
    }
}

/// Whether a value is not the one that specification 2 takes for none.
pub(super) fn is_filled(node: &Node) -> bool {
    match &node.value {
        Value::Text(text) => !text.is_empty(),
        Value::Flag(flag) => *flag,
        Value::Number(number) => *number != 0,
        Value::List(_) | Value::Struct(_) => !node.is_blank(),
    }
}

/// Whether two values are equal, wherever they are in their texts.
pub(super) fn equal(one: &Node, other: &Node) -> bool {
    match (&one.value, &other.value) {
        (Value::List(one), Value::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| equal(a, b))
        }
        (Value::Struct(one), Value::Struct(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|((a, x), (b, y))| a == b && equal(x, y))
        }
        (one, other) => one == other,
    }
}
