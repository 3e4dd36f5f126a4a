//! A config as a tree in the spelling of the schema: what reading, translating and merging work on.
//!
//! Reading folds Go's JSON habits away: keys match whatever their case, `null` is absence, the last of a
//! duplicate scalar wins and duplicate objects are read over one another.

use std::collections::BTreeMap;

use crate::json::{Json, Value as JsonValue};
use crate::report::{At, Report};
use crate::schema::{Item, Shape, Struct};

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it stands in its source.
    pub at: Option<At>,
    /// The value.
    pub value: Value,
}

/// A value of the language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Number(i64),
    /// A boolean.
    Flag(bool),
    /// A list.
    List(Vec<Node>),
    /// An object; absent fields are not in it.
    Struct(BTreeMap<&'static str, Node>),
}

impl Node {
    /// An object without fields.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            at: None,
            value: Value::Struct(BTreeMap::new()),
        }
    }

    /// The field of this name, if present.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        match &self.value {
            Value::Struct(fields) => fields.get(name),
            _ => None,
        }
    }

    /// The string of this name, if present.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Node::as_text)
    }

    /// The number of this name, if present.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.get(name)?.value {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The flag of this name, if present.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)?.value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    /// The entries of the list of this name; none if absent.
    #[must_use]
    pub fn items(&self, name: &str) -> &[Node] {
        match self.get(name).map(|node| &node.value) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    /// The string, if this is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether nothing at all is said here: no field, no entry, all the way down.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        match &self.value {
            Value::Struct(fields) => fields.values().all(Node::is_blank),
            Value::List(items) => items.is_empty(),
            _ => false,
        }
    }
}

/// Reads a JSON object by the schema of specification 3.`minor`, reporting every unknown key (a warning)
/// and every wrong type (an error).
#[must_use]
pub fn read(json: &Json, schema: &'static Struct, minor: u8, report: &mut Report) -> Node {
    let mut out = Node::empty();
    let mut reader = Reader { minor, report };
    reader.structure(json, schema, "$", &mut out);
    out
}

struct Reader<'a> {
    minor: u8,
    report: &'a mut Report,
}

impl Reader<'_> {
    fn wrong(&mut self, json: &Json, path: &str, wanted: &str) {
        let message = format!("expected {wanted}, found {}", json.value.kind());
        self.report.error(path, Some(&json.at), message);
    }

    fn structure(&mut self, json: &Json, schema: &'static Struct, path: &str, out: &mut Node) {
        let entries = match &json.value {
            JsonValue::Object(entries) => entries,
            JsonValue::Null => return,
            _ => return self.wrong(json, path, "an object"),
        };
        out.at = Some(json.at.clone());
        let Value::Struct(fields) = &mut out.value else {
            return;
        };
        for (key, at, value) in entries {
            let known = |field: &&crate::schema::Field| field.since <= self.minor;
            let exact = schema.field(key).filter(known);
            let folded = || {
                let same = |field: &&crate::schema::Field| field.name.eq_ignore_ascii_case(key);
                schema.fields.iter().filter(known).find(same)
            };
            let place = format!("{path}.{key}");
            if exact.is_none() {
                self.report
                    .warn(&place, Some(at), format!("unused key {key}"));
            }
            let Some(field) = exact.or_else(folded) else {
                continue;
            };
            let place = format!("{path}.{}", field.name);
            let before = fields.remove(field.name);
            if let Some(node) = self.value(value, field.shape, &place, before) {
                fields.insert(field.name, node);
            }
        }
    }

    /// Reads a value over what an earlier duplicate of its key left.
    fn value(
        &mut self,
        json: &Json,
        shape: Shape,
        path: &str,
        before: Option<Node>,
    ) -> Option<Node> {
        let at = Some(json.at.clone());
        let null = matches!(json.value, JsonValue::Null);
        match shape {
            Shape::Struct(schema) => {
                let mut node = before.unwrap_or_else(Node::empty);
                self.structure(json, schema, path, &mut node);
                Some(node)
            }
            Shape::List(..) if null => None,
            Shape::List(item, _) => self.list(json, item, path, before),
            Shape::MaybeText | Shape::MaybeNumber | Shape::MaybeFlag if null => None,
            Shape::Text | Shape::Number if null => before,
            Shape::Text | Shape::MaybeText => match &json.value {
                JsonValue::Text(text) => Some(Value::Text(text.clone())),
                _ => {
                    self.wrong(json, path, "a string");
                    None
                }
            }
            .map(|value| Node { at, value }),
            Shape::Number | Shape::MaybeNumber => match &json.value {
                JsonValue::Number(text) => match text.parse() {
                    Ok(number) => Some(Value::Number(number)),
                    Err(_) => {
                        let message = format!("expected a whole number, found {text}");
                        self.report.error(path, Some(&json.at), message);
                        None
                    }
                },
                _ => {
                    self.wrong(json, path, "a whole number");
                    None
                }
            }
            .map(|value| Node { at, value }),
            Shape::MaybeFlag => match json.value {
                JsonValue::Bool(flag) => Some(Value::Flag(flag)),
                _ => {
                    self.wrong(json, path, "true or false");
                    None
                }
            }
            .map(|value| Node { at, value }),
        }
    }

    fn list(&mut self, json: &Json, item: Item, path: &str, before: Option<Node>) -> Option<Node> {
        let JsonValue::List(items) = &json.value else {
            self.wrong(json, path, "a list");
            return before;
        };
        // Go reads a duplicate list over the entries of the first one.
        let mut old = match before.map(|node| node.value) {
            Some(Value::List(old)) => old,
            _ => Vec::new(),
        }
        .into_iter();
        let mut out = Vec::new();
        for (i, item_json) in items.iter().enumerate() {
            let place = format!("{path}.{i}");
            let shape = match item {
                Item::Text => Shape::Text,
                Item::Struct(schema) => Shape::Struct(schema),
            };
            let node = self.value(item_json, shape, &place, old.next());
            out.push(node.unwrap_or_else(|| Node {
                at: Some(item_json.at.clone()),
                value: Value::Text(String::new()),
            }));
        }
        Some(Node {
            at: Some(json.at.clone()),
            value: Value::List(out),
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::CONFIG;

    fn read_text(text: &str) -> (Node, Report) {
        let mut report = Report::default();
        let json = crate::json::parse(text.as_bytes(), "t").unwrap();
        let node = read(&json, &CONFIG, 7, &mut report);
        (node, report)
    }

    #[test]
    fn gos_habits_are_folded_away() {
        let (node, report) = read_text(
            r#"{"Ignition":{"Version":"3.4.0"},"storage":{"files":[{"path":"/a","mode":null}]},
                "storage":{"files":[{"mode":420}],"links":null}}"#,
        );
        assert!(!report.is_fatal(), "{report}");
        assert_eq!(node.get("ignition").unwrap().text("version"), Some("3.4.0"));
        let files = node.get("storage").unwrap().items("files");
        assert_eq!(files[0].text("path"), Some("/a"));
        assert_eq!(files[0].number("mode"), Some(420));
    }

    #[test]
    fn every_wrong_type_is_reported_at_once() {
        let (_, report) = read_text(
            r#"{"ignition":[],"storage":{"files":[{"path":1,"mode":"x"},{"mode":1.5}]},"extra":1}"#,
        );
        let found: Vec<_> = report
            .entries
            .iter()
            .map(|e| (e.kind, e.path.as_str()))
            .collect();
        use crate::report::Kind::{Error, Warning};
        assert_eq!(
            found,
            [
                (Error, "$.ignition"),
                (Error, "$.storage.files.0.path"),
                (Error, "$.storage.files.0.mode"),
                (Error, "$.storage.files.1.mode"),
                (Warning, "$.extra"),
            ]
        );
    }
}
