//! The JSON Schema of a cluster object, for editors: from the words, and from the tables of kubeadm's fields that they lead to.

use serde_json::{Map, Value, json};

use super::words::{Document, Shape, TABLES, WORDS, Word};
use crate::fields::{CLUSTER, INIT, KUBE_PROXY, KUBELET};
use crate::schema::{Field, Kind};

/// The dialect that editors know best.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// A bootstrap token.
const TOKEN: &str = "^[0-9a-z]{6}\\.[0-9a-z]{16}$";
/// A duration as Go reads it.
const DURATION: &str =
    "^[+-]?(0|(([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|\u{b5}s|\u{3bc}s|ms|s|m|h))+)$";
/// An amount as Kubernetes reads it.
const QUANTITY: &str =
    "^[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$";

impl Document {
    /// Its fields, and the name of its kind.
    const fn fields(self) -> (&'static [Field], &'static str) {
        match self {
            Self::Init => (INIT, "kubeadm's InitConfiguration"),
            Self::Cluster => (CLUSTER, "kubeadm's ClusterConfiguration"),
            Self::Kubelet => (KUBELET, "KubeletConfiguration"),
            Self::Proxy => (KUBE_PROXY, "KubeProxyConfiguration"),
        }
    }
}

/// The schema's text, the same as in the repository's `recipes/`.
///
/// # Panics
/// Never: every schema can be expressed in JSON.
#[must_use]
pub fn text() -> String {
    let mut text =
        serde_json::to_string_pretty(&schema()).unwrap_or_else(|error| unreachable!("{error}"));
    text.push('\n');
    text
}

/// The schema.
#[must_use]
pub fn schema() -> Value {
    let mut root = table(
        "A Kubernetes cluster and this node of it: /etc/slipway/cluster.toml. docs/cluster.md has an example with every field.",
    );
    root["$schema"] = DIALECT.into();
    root["title"] = "Cluster object".into();
    for word in WORDS {
        let mut value = value(word);
        value["description"] = word.about.into();
        match word.name.split_once('.') {
            None => root["properties"][word.name] = value,
            Some((name, inner)) => {
                let tables = root["properties"].as_object_mut();
                let of_word = tables.map(|tables| {
                    let about = || TABLES.iter().find(|(table, _)| *table == name);
                    let new = || table(about().map_or("", |(_, about)| about));
                    tables.entry(name).or_insert_with(new)
                });
                if let Some(of_word) = of_word {
                    of_word["properties"][inner] = value;
                }
            }
        }
    }
    root
}

/// A table without fields yet; no others are allowed.
fn table(about: &str) -> Value {
    json!({"type": "object", "description": about, "properties": {}, "additionalProperties": false})
}

/// What a field of the object holds.
fn value(word: &Word) -> Value {
    let mut value = match (word.shape, word.kind, word.to) {
        (Shape::Not, ..) => json!({"type": "boolean"}),
        (Shape::Arguments, ..) => arguments(),
        (Shape::Tokens, ..) => {
            let (fields, document) = Document::Init.fields();
            let path = "bootstrapTokens";
            let own =
                field(fields, path).map_or(Value::Null, |kind| of_kind(&kind, path, document));
            json!({"type": "array", "items": {"anyOf": [{"type": "string", "pattern": TOKEN}, own["items"]]}})
        }
        (Shape::Fields, _, Some((document, _))) => {
            let (fields, name) = document.fields();
            of_fields(fields, "", name)
        }
        (_, Some(Kind::OneOf(words)), _) => json!({"enum": words}),
        (_, Some(Kind::Token), _) => json!({"type": "string", "pattern": TOKEN}),
        (_, Some(kind), _) => of_kind(&kind, "", ""),
        (_, None, Some((document, path))) => {
            let (fields, name) = document.fields();
            field(fields, path).map_or(Value::Null, |kind| of_kind(&kind, path, name))
        }
        (_, None, None) => json!({}),
    };
    if let Some(pattern) = word.pattern {
        match value.get_mut("items") {
            Some(items) => items["pattern"] = pattern.into(),
            None => value["pattern"] = pattern.into(),
        }
    }
    if word.shape == Shape::Several {
        value = json!({"anyOf": [value, {"type": "array", "items": value}]});
    }
    value
}

/// Flags: names to values, or to lists of values where a flag is given more than once.
fn arguments() -> Value {
    let scalar = json!(["string", "number", "boolean"]);
    json!({
        "type": "object",
        "propertyNames": {"minLength": 1},
        "additionalProperties": {"anyOf": [{"type": scalar}, {"type": "array", "items": {"type": scalar}}]},
    })
}

/// The kind of the field at a path.
fn field(fields: &[Field], path: &str) -> Option<Kind> {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let kind = fields.iter().find(|field| field.name == name)?.kind;
    match kind {
        _ if rest.is_empty() => Some(kind),
        Kind::Object(inner) => field(inner, rest),
        _ => None,
    }
}

/// A table of fields of a document; `path` is that of the table in it.
fn of_fields(fields: &[Field], path: &str, document: &str) -> Value {
    let field = |field: &Field| {
        let path = if path.is_empty() {
            field.name.to_owned()
        } else {
            format!("{path}.{}", field.name)
        };
        let mut value = of_kind(&field.kind, &path, document);
        let since = match field.since {
            // What every version that an object may have knows.
            0..=34 => String::new(),
            minor => format!(" Since Kubernetes 1.{minor}."),
        };
        value["description"] = format!("{path} of {document}.{since}").into();
        (field.name.to_owned(), value)
    };
    let properties: Map<String, Value> = fields.iter().map(field).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// What a field of a document holds. Empty text stands for the default of a word.
fn of_kind(kind: &Kind, path: &str, document: &str) -> Value {
    match kind {
        Kind::Text => json!({"type": "string"}),
        Kind::OneOf(words) => {
            let all: Vec<&str> = words.iter().copied().chain([""]).collect();
            json!({"enum": all})
        }
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Int(least, most) => {
            let mut value = json!({"type": "integer"});
            if *least != i64::MIN {
                value["minimum"] = (*least).into();
            }
            if *most != i64::MAX {
                value["maximum"] = (*most).into();
            }
            value
        }
        Kind::Float | Kind::Single => json!({"type": "number"}),
        Kind::Duration => json!({"type": "string", "pattern": DURATION}),
        Kind::Nanoseconds => json!({"type": ["string", "integer"], "pattern": DURATION}),
        Kind::Quantity => json!({"type": ["string", "integer"], "pattern": QUANTITY}),
        Kind::Token => json!({"type": "string", "pattern": TOKEN}),
        Kind::Any => json!({}),
        Kind::List(kind) => json!({"type": "array", "items": of_kind(kind, path, document)}),
        Kind::Map(kind) => {
            json!({"type": "object", "additionalProperties": of_kind(kind, path, document)})
        }
        Kind::Object(fields) => of_fields(fields, path, document),
    }
}
