//! A config as a tree in the spelling of the schema: what reading, translating and merging work on.
//!
//! Reading folds Go's JSON habits away: keys match whatever their case, `null` is absence, the last of a
//! duplicate scalar wins and duplicate objects are read over one another.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::read::json::{Json, Value as JsonValue};
use crate::read::yaml;
use crate::report::{At, Report};
use crate::schema::{Field, Item, Shape, Struct};

/// The fields of an object that are there.
pub(crate) type Fields = BTreeMap<&'static str, Node>;

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

    /// A string and where it came from.
    pub(crate) fn text_at(text: String, at: Option<At>) -> Self {
        Self {
            at,
            value: Value::Text(text),
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

    /// The fields, if this is an object.
    pub(crate) fn fields_mut(&mut self) -> Option<&mut Fields> {
        match &mut self.value {
            Value::Struct(fields) => Some(fields),
            _ => None,
        }
    }

    /// The field of this name, if present.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Node> {
        self.fields_mut()?.get_mut(name)
    }

    /// The field of this name, made if it is not there.
    pub(crate) fn entry(
        &mut self,
        name: &'static str,
        made: impl FnOnce() -> Node,
    ) -> Option<&mut Node> {
        Some(self.fields_mut()?.entry(name).or_insert_with(made))
    }

    /// The entries of the list of this name; none if absent.
    pub(crate) fn items_mut(&mut self, name: &str) -> &mut [Node] {
        match self.get_mut(name).map(|node| &mut node.value) {
            Some(Value::List(items)) => items,
            _ => &mut [],
        }
    }

    /// Takes a field away.
    pub(crate) fn take(&mut self, name: &str) -> Option<Node> {
        self.fields_mut()?.remove(name)
    }

    /// Puts a field in the place of whatever was there.
    pub(crate) fn put(&mut self, name: &'static str, node: Node) {
        if let Some(fields) = self.fields_mut() {
            fields.insert(name, node);
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
    let mut reader = Reader {
        minor,
        butane: false,
        report,
    };
    reader.structure(json, schema, "$", &mut out);
    out
}

/// As [`read`], in the spelling of Butane: `snake_case` keys, exactly as they are, and the sugar.
#[must_use]
pub fn read_butane(yaml: &Json, schema: &'static Struct, minor: u8, report: &mut Report) -> Node {
    let mut out = Node::empty();
    let mut reader = Reader {
        minor,
        butane: true,
        report,
    };
    reader.structure(yaml, schema, "$", &mut out);
    out
}

/// The spelling of an Ignition key or path in Butane: `sizeMiB` is `size_mib`.
#[must_use]
pub fn snake(camel: &str) -> String {
    let mut out = String::new();
    let mut rest = camel;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("MiB") {
            out.push_str("_mib");
            rest = after;
            continue;
        }
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
        rest = &rest[c.len_utf8()..];
    }
    out
}

struct Reader<'a> {
    minor: u8,
    butane: bool,
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
            let (exact, found) = self.field(schema, path, key);
            if !exact {
                let place = format!("{path}.{key}");
                self.report
                    .warn(&place, Some(at), format!("unused key {key}"));
            }
            let Some(field) = found else {
                continue;
            };
            let name = if self.butane { key } else { field.name };
            let place = format!("{path}.{name}");
            let before = fields.remove(field.name);
            if let Some(node) = self.value(value, field.shape, &place, before) {
                fields.insert(field.name, node);
            }
        }
    }

    /// The field that a key means, and whether the key is spelled as it should be.
    fn field(
        &self,
        schema: &'static Struct,
        path: &str,
        key: &str,
    ) -> (bool, Option<&'static Field>) {
        let known = |field: &&Field| field.since <= self.minor;
        if self.butane {
            // The version of Ignition follows from Butane's.
            let hidden = |field: &Field| path == "$.ignition" && field.name == "version";
            let own = |field: &&Field| !hidden(field) && snake(field.name) == key;
            let sugar = || schema.sugar.iter().find(|field| field.name == key);
            let found = schema.fields.iter().find(own).or_else(sugar).filter(known);
            return (found.is_some(), found);
        }
        let exact = schema.field(key).filter(known);
        let folded = || {
            let same = |field: &&Field| field.name.eq_ignore_ascii_case(key);
            schema.fields.iter().filter(known).find(same)
        };
        (exact.is_some(), exact.or_else(folded))
    }

    /// Reads a value over what an earlier duplicate of its key left.
    fn value(
        &mut self,
        json: &Json,
        shape: Shape,
        path: &str,
        before: Option<Node>,
    ) -> Option<Node> {
        let json = &*self.resolved(json, shape);
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

    /// A YAML scalar is what its place makes of it.
    fn resolved<'j>(&self, json: &'j Json, shape: Shape) -> Cow<'j, Json> {
        let value = match (&json.value, shape) {
            (JsonValue::Plain(text), _) if yaml::is_null(text) => JsonValue::Null,
            (JsonValue::Plain(text), Shape::Number | Shape::MaybeNumber) => yaml::number(text),
            (JsonValue::Plain(text) | JsonValue::Text(text), Shape::MaybeFlag) if self.butane => {
                yaml::flag(text).map_or(JsonValue::Text(text.clone()), JsonValue::Bool)
            }
            (JsonValue::Plain(text), _) => JsonValue::Text(text.clone()),
            _ => return Cow::Borrowed(json),
        };
        Cow::Owned(Json {
            at: json.at.clone(),
            value,
        })
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

/// The tree as JSON with nothing in it that was not said, but for the required strings of what was.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::CONFIG;

    fn read_text(text: &str) -> (Node, Report) {
        let mut report = Report::default();
        let json = crate::read::json::parse(text.as_bytes(), "t").unwrap();
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
