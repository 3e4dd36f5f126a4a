//! A value of the language with its position in the source.

use std::collections::BTreeMap;

use crate::report::Position;
use crate::schema::{Item, Key};

/// The fields of an object that are present.
pub(crate) type Fields = BTreeMap<&'static str, Node>;

/// A value and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its position in the source; none for a generated value.
    pub at: Option<Position>,
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

    /// A string and its position.
    pub(crate) fn text_at(text: String, at: Option<Position>) -> Self {
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

    /// The field of this name, added if it is absent.
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

    /// Removes a field and returns it.
    pub(crate) fn take(&mut self, name: &str) -> Option<Node> {
        self.fields_mut()?.remove(name)
    }

    /// Sets a field; an existing value is replaced.
    pub(crate) fn put(&mut self, name: &'static str, node: Node) {
        if let Some(fields) = self.fields_mut() {
            fields.insert(name, node);
        }
    }

    /// The key of this entry of a list of `item`.
    #[must_use]
    pub fn key(&self, item: Item) -> String {
        let field = |name: &str| self.text(name).unwrap_or_default().to_owned();
        match item {
            Item::Text => self.as_text().unwrap_or_default().to_owned(),
            Item::Struct(schema) => match schema.key {
                Key::None => String::new(),
                Key::Field(name) => field(name),
                Key::NumberOrLabel => match (self.number("number"), self.text("label")) {
                    (Some(number), _) if number != 0 => format!("number:{number}"),
                    (_, Some(label)) => format!("label:{label}"),
                    _ => String::new(),
                },
            },
        }
    }

    /// Whether it is empty: no field, no entry, at any depth.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        match &self.value {
            Value::Struct(fields) => fields.values().all(Node::is_blank),
            Value::List(items) => items.is_empty(),
            _ => false,
        }
    }
}
