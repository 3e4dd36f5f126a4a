//! Reads a tree from JSON or YAML by the schema.
//!
//! Go's JSON habits are normalised: keys match whatever their case, `null` is absence, the last of a duplicate scalar
//! wins and duplicate objects are read over one another.

use std::borrow::Cow;

use super::node::{Node, Value};
use super::scalar;
use crate::read::json::{Json, Value as JsonValue};
use crate::read::yaml;
use crate::report::Report;
use crate::schema::{Field, Item, Shape, Struct, snake};

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

    /// The field of a key, and whether the key is spelled correctly.
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

    /// Reads a value over the result of an earlier duplicate of its key.
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

    /// The type of the field decides the type of a YAML scalar.
    fn resolved<'j>(&self, json: &'j Json, shape: Shape) -> Cow<'j, Json> {
        let value = match (&json.value, shape) {
            (JsonValue::Plain(text), _) if yaml::is_null(text) => JsonValue::Null,
            (JsonValue::Plain(text), Shape::Number | Shape::MaybeNumber) => scalar::number(text),
            (JsonValue::Plain(text) | JsonValue::Text(text), Shape::MaybeFlag) if self.butane => {
                scalar::flag(text).map_or(JsonValue::Text(text.clone()), JsonValue::Bool)
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
        // Go decodes a duplicate list into the entries of the first one.
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
