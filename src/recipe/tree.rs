//! A TOML file as a tree with the position of every key and value, and the merging of such trees.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistakes::{Mistake, Mistakes, Place};

/// Lists of names: a recipe's list is added to the inherited one; `-name` removes an inherited name
/// and `-*` all of them. Every other list replaces the inherited one.
pub(super) const APPENDED: &[&str] = &[
    "debian.components",
    "debian.packages",
    "debian.backports",
    "debian.snapshots",
    "debian.locales",
    "kernel.modules",
    "kernel.load",
    "kernel.blacklist",
    "kernel.cmdline",
    "locale.generate",
    "overlay.trees",
    "ca.certificates",
    "root.set-uid",
    "units.enable",
    "units.disable",
    "units.mask",
    "kubernetes.container-packages",
];

/// Those of [`APPENDED`] whose items are paths of the building host, each relative to the file that it is written in: the same text in
/// two folders is two items.
const PATHS: &[&str] = &["overlay.trees", "ca.certificates"];

/// The table whose entries a recipe takes back by `remove = false`.
const FILES: &str = "files";

/// Tables that describe one object and replace the inherited one as a unit (`*` is any key).
pub(super) const WHOLE: &[&str] = &["files.*", "node.etcd"];

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub place: Place,
    pub value: Value,
}

/// A value of TOML.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer { text: String, radix: u32 },
    Float(String),
    Boolean(bool),
    Date(String),
    List(Vec<Node>),
    Table(Table),
}

/// A table's entries by key.
pub(super) type Table = BTreeMap<String, Entry>;

/// A key's position and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: Place,
    pub node: Node,
}

/// Parses a file's text, adding every syntax error to `mistakes`. With such errors the result is
/// partial, and only good for finding the file's parent.
pub(super) fn parse(file: usize, mistakes: &mut Mistakes) -> Node {
    let text = mistakes.text(file).to_owned();
    let (table, errors) = DeTable::parse_recoverable(&text);
    for error in errors {
        let place = error
            .span()
            .map_or(Place::top(file), |span| Place::new(file, &span));
        mistakes.add(Mistake::at(&place, error.message().to_owned(), ""));
    }
    Node {
        place: Place::new(file, &table.span()),
        value: Value::Table(convert_table(file, table.get_ref())),
    }
}

fn convert_table(file: usize, table: &DeTable<'_>) -> Table {
    table
        .iter()
        .map(|(key, value)| {
            let entry = Entry {
                key: Place::new(file, &key.span()),
                node: convert(file, value),
            };
            (key.get_ref().to_string(), entry)
        })
        .collect()
}

fn convert(file: usize, node: &Spanned<DeValue<'_>>) -> Node {
    let value = match node.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Integer {
            text: number.as_str().replace('_', ""),
            radix: number.radix(),
        },
        DeValue::Float(number) => Value::Float(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Value::Boolean(*yes),
        DeValue::Datetime(date) => Value::Date(date.to_string()),
        DeValue::Array(list) => Value::List(list.iter().map(|item| convert(file, item)).collect()),
        DeValue::Table(table) => Value::Table(convert_table(file, table)),
    };
    Node {
        place: Place::new(file, &node.span()),
        value,
    }
}

impl Node {
    /// The node at a path of keys.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Self> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        self.entry(first)?.node.at(rest)
    }

    /// An entry of this table.
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Table(table) => table.get(key),
            _ => None,
        }
    }

    /// The key and the node of a table that has only this one.
    pub(super) fn only(&self) -> Option<(String, Self)> {
        match &self.value {
            Value::Table(table) if table.len() == 1 => {
                let (key, entry) = table.first_key_value()?;
                Some((key.clone(), entry.node.clone()))
            }
            _ => None,
        }
    }

    /// The entries, if the value is a table.
    pub(super) fn entries(self) -> Table {
        match self.value {
            Value::Table(table) => table,
            _ => Table::new(),
        }
    }

    /// Adds to the end of the text at a path of keys, if there is one.
    pub(super) fn append_to_text(&mut self, path: &[&str], end: &str) {
        match (&mut self.value, path.split_first()) {
            (Value::Text(text), None) => text.push_str(end),
            (Value::Table(table), Some((first, rest))) => {
                if let Some(entry) = table.get_mut(*first) {
                    entry.node.append_to_text(rest, end);
                }
            }
            _ => {}
        }
    }

    /// Takes an entry out of this table.
    pub(super) fn take(&mut self, key: &str) -> Option<Entry> {
        match &mut self.value {
            Value::Table(table) => table.remove(key),
            _ => None,
        }
    }

    /// The text, if the value is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items, if the value is a list.
    pub(super) fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The value as JSON, for serde.
    pub(super) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Text(text) | Value::Date(text) => Json::from(text.as_str()),
            Value::Integer { text, radix } => {
                i64::from_str_radix(text, *radix).map_or(Json::Null, Json::from)
            }
            Value::Float(text) => text.parse::<f64>().map_or(Json::Null, Json::from),
            Value::Boolean(yes) => Json::from(*yes),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Table(table) => Json::Object(
                table
                    .iter()
                    .map(|(key, entry)| (key.clone(), entry.node.to_json()))
                    .collect(),
            ),
        }
    }

    /// The kind and text of the value, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Text(text) => format!("the text {text:?}"),
            Value::Integer { text, .. } => format!("the number {text}"),
            Value::Float(text) => format!("the number {text}"),
            Value::Boolean(yes) => format!("`{yes}`"),
            Value::Date(text) => format!("the date {text}"),
            Value::List(_) => "a list".to_owned(),
            Value::Table(_) => "a table".to_owned(),
        }
    }
}

/// Lays a recipe's tree over what was read before it, if anything, by the rules of [`APPENDED`] and [`WHOLE`]. Of those before it the
/// files `extended` are the ones that it extends: a name that only another one has already is no mistake here.
pub(super) fn merge(
    before: Option<Node>,
    tree: Node,
    extended: &BTreeSet<usize>,
    mistakes: &mut Mistakes,
) -> Node {
    lay("", before, tree, extended, mistakes)
}

fn lay(
    path: &str,
    parent: Option<Node>,
    child: Node,
    extended: &BTreeSet<usize>,
    mistakes: &mut Mistakes,
) -> Node {
    let inherited = parent.map(|node| node.value);
    let value = match (inherited, child.value) {
        (inherited, Value::Table(own)) if !is_whole(path) => {
            let mut table = match inherited {
                Some(Value::Table(table)) => table,
                _ => Table::new(),
            };
            for (key, entry) in own {
                let inner = join(path, &key);
                let old = table.remove(&key).map(|old| old.node);
                if path == FILES && takes_back(&entry.node) {
                    if old.is_none() {
                        mistakes.add(nothing_inherited(&key, &entry, &table));
                    }
                    continue;
                }
                let node = lay(&inner, old, entry.node, extended, mistakes);
                let place = entry.key;
                table.insert(key, Entry { key: place, node });
            }
            Value::Table(table)
        }
        (inherited, Value::List(own)) if APPENDED.contains(&path) => {
            let list = match inherited {
                Some(Value::List(list)) => list,
                _ => Vec::new(),
            };
            Value::List(append(path, list, own, extended, mistakes))
        }
        (_, value) => value,
    };
    Node {
        place: child.place,
        value,
    }
}

/// Whether an entry of `[files]` takes an inherited one back.
fn takes_back(entry: &Node) -> bool {
    let removes = entry.at(&["remove"]).map(|node| &node.value);
    let is_alone = matches!(&entry.value, Value::Table(keys) if keys.len() == 1);
    is_alone && matches!(removes, Some(Value::Boolean(false)))
}

fn nothing_inherited(path: &str, entry: &Entry, inherited: &Table) -> Mistake {
    Mistake::at(
        &entry.key,
        format!("`remove = false` takes back {path}, which is not inherited"),
        "expected the path of an inherited entry of [files]",
    )
    .nearest(path, inherited.keys().map(String::as_str))
}

/// The path of a key in the table at `path`.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn is_whole(path: &str) -> bool {
    WHOLE.iter().any(|whole| match whole.strip_suffix('*') {
        Some(prefix) => path
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty()),
        None => path == *whole,
    })
}

/// Whether two items of the list at `path` are the same word, or paths of the same file or folder.
pub(super) fn is_same(path: &str, one: &Node, other: &Node, mistakes: &Mistakes) -> bool {
    match (one.text(), other.text()) {
        (Some(text), Some(of_other)) if PATHS.contains(&path) => {
            real(&one.place, text, mistakes) == real(&other.place, of_other, mistakes)
        }
        (one, other) => one.is_some() && one == other,
    }
}

/// A path of the building host without links and `..`, as far as it is there.
fn real(place: &Place, text: &str, mistakes: &Mistakes) -> PathBuf {
    let folder = mistakes.path(place.file).parent();
    let path = folder.unwrap_or(Path::new("")).join(text);
    std::fs::canonicalize(&path).unwrap_or(path)
}

fn append(
    path: &str,
    mut list: Vec<Node>,
    own: Vec<Node>,
    extended: &BTreeSet<usize>,
    mistakes: &mut Mistakes,
) -> Vec<Node> {
    for item in own {
        let of_sibling =
            |old: &Node| old.place.file != item.place.file && !extended.contains(&old.place.file);
        let is_there = |old: &Node| of_sibling(old) && is_same(path, old, &item, mistakes);
        if list.iter().any(is_there) {
            continue;
        }
        match item.text().and_then(|text| text.strip_prefix('-')) {
            Some("*") => list.clear(),
            Some(name) => take_away(path, &mut list, (&item.place, name), mistakes),
            None => list.push(item),
        }
    }
    list
}

/// Removes the item that a recipe takes away by `-name`. A path is meant relative to that recipe, or else as the recipe that it is
/// inherited from has it.
fn take_away(
    path: &str,
    list: &mut Vec<Node>,
    (place, name): (&Place, &str),
    mistakes: &mut Mistakes,
) {
    let named = Node {
        place: place.clone(),
        value: Value::Text(name.to_owned()),
    };
    let is_path = list.iter().any(|old| is_same(path, old, &named, mistakes));
    let is_meant = |old: &Node| match is_path {
        true => is_same(path, old, &named, mistakes),
        false => old.text() == Some(name),
    };
    let meant: Vec<Node> = list.iter().filter(|old| is_meant(old)).cloned().collect();
    let other = meant
        .iter()
        .find(|other| !is_same(path, &meant[0], other, mistakes));
    let mistake = match (meant.first(), other) {
        (None, _) => Mistake::at(
            place,
            format!("`-{name}` takes away what is not inherited"),
            "expected the name of an inherited item after the hyphen",
        )
        .nearest(name, list.iter().filter_map(Node::text)),
        (Some(first), Some(_)) => Mistake::at(
            place,
            format!("`-{name}` may take away {name} of several recipes"),
            "expected the path relative to this file after the hyphen",
        )
        .also(&first.place, "one of them"),
        (Some(_), None) => {
            list.retain(|old| !is_meant(old));
            return;
        }
    };
    mistakes.add(mistake);
}
