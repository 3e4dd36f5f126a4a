//! Writes a tree as Ignition JSON: in full as Ignition does, or only the fields that were given.

use super::node::{Node, Value};
use crate::schema::{Item, Shape, Struct};

/// The tree as JSON with only the fields that were given, and the required strings of their objects.
#[must_use]
pub fn to_sparse_json(node: &Node, schema: &'static Struct) -> serde_json::Value {
    let mut out = serde_json::Map::new();
    for field in schema.fields {
        let value = match (field.shape, node.get(field.name)) {
            (Shape::Text, None) => Some("".into()),
            (_, None) => None,
            (_, Some(node)) if node.is_blank() => None,
            (Shape::Struct(schema), Some(node)) => Some(to_sparse_json(node, schema)),
            (
                Shape::List(Item::Struct(schema), _),
                Some(Node {
                    value: Value::List(items),
                    ..
                }),
            ) => Some(
                items
                    .iter()
                    .map(|item| to_sparse_json(item, schema))
                    .collect(),
            ),
            (_, Some(node)) => scalar(&node.value, field.shape),
        };
        if let Some(value) = value {
            out.insert(field.name.to_owned(), value);
        }
    }
    serde_json::Value::Object(out)
}

/// The tree as JSON in the form that Ignition itself writes: objects and required strings always,
/// empty lists never.
#[must_use]
pub fn to_json(node: &Node, schema: &'static Struct) -> serde_json::Value {
    let mut out = serde_json::Map::new();
    for field in schema.fields {
        let found = node.get(field.name);
        let value = match (field.shape, found) {
            (Shape::Struct(schema), Some(node)) => Some(to_json(node, schema)),
            (Shape::Struct(schema), None) => Some(to_json(&Node::empty(), schema)),
            (
                Shape::List(Item::Struct(schema), _),
                Some(Node {
                    value: Value::List(items),
                    ..
                }),
            ) => {
                let items: Vec<_> = items.iter().map(|item| to_json(item, schema)).collect();
                (!items.is_empty()).then_some(serde_json::Value::Array(items))
            }
            (_, Some(node)) => scalar(&node.value, field.shape),
            (Shape::Text, None) => Some("".into()),
            (_, None) => None,
        };
        if let Some(value) = value {
            out.insert(field.name.to_owned(), value);
        }
    }
    serde_json::Value::Object(out)
}

fn scalar(value: &Value, shape: Shape) -> Option<serde_json::Value> {
    match value {
        Value::Number(0) if matches!(shape, Shape::Number) => None,
        Value::Text(text) => Some(text.as_str().into()),
        Value::Number(number) => Some((*number).into()),
        Value::Flag(flag) => Some((*flag).into()),
        Value::List(items) if items.is_empty() => None,
        Value::List(items) => Some(items.iter().filter_map(Node::as_text).collect()),
        Value::Struct(_) => None,
    }
}
