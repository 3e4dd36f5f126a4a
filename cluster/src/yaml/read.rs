//! YAML documents as trees, every value with its position.

use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Number, Value};

use super::scalar::{Scalar, resolve};
use crate::report::{Position, Report};

/// Deeper nesting is refused.
const DEEPEST: usize = 64;
/// The most values that aliases may copy, all together.
const COPIED: usize = 10_000;
/// The prefix of YAML's standard tags.
const CORE: &str = "tag:yaml.org,2002:";

/// A value with its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub at: Position,
    /// What it is.
    pub content: Content,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Nothing.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number of 64 bits, signed or unsigned.
    Int(i128),
    /// Another number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the text; each key once.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The value of a key, if this is a mapping that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Content::Map(entries) = &self.content else {
            return None;
        };
        entries
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, node)| node)
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Content {
    /// The value as JSON has it. A number that JSON does not have is null.
    #[must_use]
    pub fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(bool) => (*bool).into(),
            Self::Int(int) => Number::from_i128(*int).map_or(Value::Null, Value::Number),
            Self::Float(float) => Number::from_f64(*float).map_or(Value::Null, Value::Number),
            Self::Text(text) => text.as_str().into(),
            Self::List(items) => items.iter().map(|item| item.content.value()).collect(),
            Self::Map(entries) => {
                let entry = |(name, node): &(String, Node)| (name.clone(), node.content.value());
                Value::Object(entries.iter().map(entry).collect())
            }
        }
    }
}

/// The documents of a text with the number of lines before each, divided as Kubernetes divides them: at lines that are
/// `---`, perhaps with a comment.
#[must_use]
pub fn split(text: &str) -> Vec<(usize, String)> {
    let mut documents = Vec::new();
    let (mut before, mut current) = (0, String::new());
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let ends = line.strip_prefix("---").is_some_and(|rest| {
            let rest = rest.trim();
            rest.is_empty() || rest.starts_with('#')
        });
        if ends && !current.is_empty() {
            documents.push((before, std::mem::take(&mut current)));
            before = number + 1;
        } else {
            current += line;
        }
    }
    if !current.is_empty() {
        documents.push((before, current));
    }
    documents
}

/// Reads one document; `before` is the number of lines before it. Of a key that is there twice the last one counts, with
/// a warning. Nothing if the text is not YAML: the report says why.
pub fn document(text: &str, before: usize, report: &mut Report) -> Option<Node> {
    let mut builder = Builder {
        before,
        root: None,
        open: Vec::new(),
        anchors: BTreeMap::new(),
        copied: 0,
        report,
    };
    if let Some(at) = control(text) {
        let at = builder.position(at.line, at.column);
        let message = "a control character; expected it in double quotes, as \\n or \\x1B";
        builder.report.refuse_at("", at, message);
        return None;
    }
    for event in Parser::new_from_str(text) {
        let taken = match event {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => {
                let at = builder.position(error.marker().line(), error.marker().col());
                Err((at, format!("not valid YAML: {}", error.info())))
            }
        };
        if let Err((at, message)) = taken {
            builder.report.refuse_at("", at, message);
            return None;
        }
    }
    let at = builder.position(1, 0);
    let content = Content::Null;
    Some(builder.root.unwrap_or(Node { at, content }))
}

/// Where the first character is that go-yaml takes in no text, from line 1 and column 0.
fn control(text: &str) -> Option<Position> {
    text.split('\n').enumerate().find_map(|(number, line)| {
        let column = line.chars().position(|c| !is_taken(c))?;
        let line = number + 1;
        Some(Position { line, column })
    })
}

fn is_taken(c: char) -> bool {
    matches!(c, '\t' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
}

/// An error and its position.
type Wrong = (Position, String);

/// A list or mapping whose end was not read yet.
enum Open {
    List(Position, usize, Vec<Node>),
    Map(Position, usize, Entries),
}

#[derive(Default)]
struct Entries {
    entries: Vec<(String, Node)>,
    /// The keys that stand in the mapping itself.
    names: BTreeSet<String>,
    key: Option<Key>,
}

enum Key {
    Merge,
    Name(String, Position),
}

struct Builder<'a> {
    before: usize,
    root: Option<Node>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
    copied: usize,
    report: &'a mut Report,
}

impl Builder<'_> {
    fn position(&self, line: usize, column: usize) -> Position {
        Position {
            line: self.before + line,
            column: column + 1,
        }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Wrong> {
        let at = self.position(span.start.line(), span.start.col());
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err((at, "a second document; it begins after a line ---".into()))
            }
            Event::Alias(anchor) => self.alias(anchor, at),
            // In quotes it is a key as any other.
            Event::Scalar(text, style, _, tag)
                if text == "<<" && is_merge(style, tag.as_deref()) && self.merges() =>
            {
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let content = scalar(text.into_owned(), style, tag.as_deref());
                let content = content.map_err(|message| (at, message))?;
                self.put(Node { at, content }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(Open::List(at, anchor, Vec::new()), at),
            Event::MappingStart(anchor, _) => {
                self.begin(Open::Map(at, anchor, Entries::default()), at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            _ => Ok(()),
        }
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), Wrong> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err((at, "an alias inside the value that it refers to".into()));
        };
        let (values, depth) = weight(&node);
        self.copied += values;
        if self.copied > COPIED {
            return Err((at, format!("aliases copy more than {COPIED} values")));
        }
        if self.open.len() + depth > DEEPEST {
            return Err(deep(at));
        }
        self.put(node, 0)
    }

    fn begin(&mut self, open: Open, at: Position) -> Result<(), Wrong> {
        if self.open.len() >= DEEPEST {
            return Err(deep(at));
        }
        self.open.push(open);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Wrong> {
        match self.open.pop() {
            Some(Open::List(at, anchor, items)) => {
                let content = Content::List(items);
                self.put(Node { at, content }, anchor)
            }
            Some(Open::Map(at, anchor, entries)) => {
                let content = Content::Map(entries.entries);
                self.put(Node { at, content }, anchor)
            }
            None => Ok(()),
        }
    }

    /// Adds a value to the innermost open list or mapping; without one it is the document.
    fn put(&mut self, node: Node, anchor: usize) -> Result<(), Wrong> {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, _, items)) => items.push(node),
            Some(Open::Map(_, _, map)) => match map.key.take() {
                None => map.key = Some(key(node)?),
                Some(Key::Merge) => merge(&mut map.entries, node)?,
                Some(Key::Name(name, at)) => {
                    if !map.names.insert(name.clone()) {
                        let message = format!("duplicate key {name:?}: the last one counts");
                        self.report.warn_at("", at, message);
                    }
                    set(&mut map.entries, name, node);
                }
            },
        }
        Ok(())
    }

    /// Whether a mapping expects a key: the next value is to be merged into it.
    fn merges(&mut self) -> bool {
        let Some(Open::Map(_, _, map)) = self.open.last_mut() else {
            return false;
        };
        let is_key = map.key.is_none();
        if is_key {
            map.key = Some(Key::Merge);
        }
        is_key
    }
}

fn deep(at: Position) -> Wrong {
    (at, format!("nested more than {DEEPEST} deep"))
}

/// The number of values, and their depth.
fn weight(node: &Node) -> (usize, usize) {
    let inner: Vec<(usize, usize)> = match &node.content {
        Content::List(items) => items.iter().map(weight).collect(),
        Content::Map(entries) => entries.iter().map(|(_, node)| weight(node)).collect(),
        _ => return (1, 0),
    };
    let values: usize = inner.iter().map(|(values, _)| values).sum();
    let depth = inner.iter().map(|(_, depth)| *depth).max().unwrap_or(0);
    (values + 1, depth + 1)
}

/// Whether `<<` is a merge key by its style, or its tag.
fn is_merge(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    tag.map_or(style == ScalarStyle::Plain, |tag| {
        tag.handle == CORE && tag.suffix == "merge"
    })
}

/// A key: go-yaml's mapping to JSON takes numbers and truth values too.
fn key(node: Node) -> Result<Key, Wrong> {
    let name = match node.content {
        Content::Text(text) => text,
        Content::Bool(bool) => bool.to_string(),
        Content::Int(int) => int.to_string(),
        _ => return Err((node.at, "expected a name as the key".into())),
    };
    Ok(Key::Name(name, node.at))
}

/// Sets the entries of what stands after `<<`. They take the place of those before it, as in go-yaml; of a list's mappings the first one
/// counts.
fn merge(entries: &mut Vec<(String, Node)>, node: Node) -> Result<(), Wrong> {
    let all = match node.content {
        Content::List(items) => items,
        _ => vec![node],
    };
    for node in all.into_iter().rev() {
        let Content::Map(more) = node.content else {
            return Err((
                node.at,
                "expected a mapping, or a list of them, after <<".into(),
            ));
        };
        for (name, value) in more {
            set(entries, name, value);
        }
    }
    Ok(())
}

/// Sets an entry, in place of the one of the same name.
fn set(entries: &mut Vec<(String, Node)>, name: String, node: Node) {
    let known = entries.iter_mut().find(|(key, _)| *key == name);
    if let Some((_, value)) = known {
        *value = node;
    } else {
        entries.push((name, node));
    }
}

fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<Content, String> {
    let tag = tag.map(|tag| format!("{}{}", tag.handle, tag.suffix));
    // A tag that is not YAML's own says nothing to go-yaml, but that this is text.
    let kind = tag.as_deref().map(|tag| tag.strip_prefix(CORE));
    let value = match kind.map(Option::unwrap_or_default) {
        None if style == ScalarStyle::Plain => resolve(&text),
        Some("binary") => return Err("base64 is not read here; expected the text itself".into()),
        Some(kind @ ("bool" | "int" | "float" | "null" | "timestamp")) => tagged(kind, &text)?,
        None | Some(_) => Scalar::Text,
    };
    Ok(match value {
        Scalar::Null => Content::Null,
        Scalar::Bool(bool) => Content::Bool(bool),
        Scalar::Int(int) => Content::Int(int),
        Scalar::Float(float) if float.is_finite() => Content::Float(float),
        Scalar::Float(_) => return Err("a number that JSON has not; expected a finite one".into()),
        Scalar::Date | Scalar::Merge | Scalar::Text => Content::Text(text),
    })
}

/// The value of a text with one of YAML's tags, in quotes or not.
fn tagged(kind: &str, text: &str) -> Result<Scalar, String> {
    let value = resolve(text);
    let is_of_kind = matches!(
        (kind, &value),
        ("bool", Scalar::Bool(_))
            | ("int", Scalar::Int(_))
            | ("float", Scalar::Int(_) | Scalar::Float(_))
            | ("null", Scalar::Null)
            | ("timestamp", Scalar::Date)
    );
    is_of_kind
        .then_some(value)
        .ok_or_else(|| format!("not a value of its tag, !!{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<Node>, Report) {
        let mut report = Report::default();
        let node = document(text, 0, &mut report);
        (node, report)
    }

    #[test]
    fn documents_are_divided_at_lines_of_three_hyphens() {
        let lines = |text| -> Vec<usize> { split(text).iter().map(|(line, _)| *line).collect() };
        assert_eq!(lines("a: 1\n---\nb: 2\n"), [0, 2]);
        assert_eq!(lines("---\na: 1\n--- # next\nb: 2\n---\n"), [0, 3]);
        assert_eq!(lines("a: |\n  ---\n  b\n"), [0]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn a_value_has_its_position_and_the_last_duplicate_counts() {
        let (node, report) = read("a: 1\nb:\n  c: x\na: 2\n");
        let node = node.unwrap();
        assert_eq!(node.get("a").unwrap().content, Content::Int(2));
        let at = node.get("b").and_then(|b| b.get("c")).unwrap().at;
        assert_eq!((at.line, at.column), (3, 6));
        let warning = report.warnings[0].to_string();
        assert_eq!(
            warning,
            "duplicate key \"a\": the last one counts (line 4, column 1)"
        );
    }

    #[test]
    fn merge_keys_add_what_is_not_there() {
        let (node, _) = read("x: &x {a: 1, b: 2}\nz:\n  <<: *x\n  b: 3\n");
        let z = node.unwrap().get("z").unwrap().clone();
        assert_eq!(z.get("a").unwrap().content, Content::Int(1));
        assert_eq!(z.get("b").unwrap().content, Content::Int(3));
    }

    #[test]
    fn what_is_merged_later_takes_the_place_of_what_was_before() {
        let base = "x: &x {a: 1}\ny: &y {a: 2, b: 2}\nz: ";
        for (z, a) in [
            ("{a: 3, <<: *x}", 1),
            ("{<<: *x, a: 3}", 3),
            ("{<<: *x, <<: *y}", 2),
            ("{<<: [*x, *y]}", 1),
            ("{a: 3, !!merge <<: *x}", 1),
            ("{a: 3, '<<': 4}", 3),
        ] {
            let (node, report) = read(&format!("{base}{z}\n"));
            let z = node.unwrap().get("z").unwrap().clone();
            assert_eq!(z.get("a").unwrap().content, Content::Int(a));
            assert_eq!(report, Report::default());
        }
        let (node, _) = read("{a: 3, \"<<\": {a: 1}}");
        assert_eq!(node.unwrap().get("a").unwrap().content, Content::Int(3));
    }

    #[test]
    fn a_tag_says_what_a_text_is() {
        let text = |text: &str| Content::Text(text.to_owned());
        for (value, expected) in [
            ("!!str 12", text("12")),
            ("!own 12", text("12")),
            ("! 12", text("12")),
            ("!<tag:yaml.org,2002:str> 12", text("12")),
            ("!!str", text("")),
            ("!!int '12'", Content::Int(12)),
            ("!!bool \"yes\"", Content::Bool(true)),
            ("!!float 1", Content::Int(1)),
            ("!!null ''", Content::Null),
            ("!!timestamp 2026-01-02", text("2026-01-02")),
        ] {
            let (node, _) = read(&format!("a: {value}\n"));
            let node = node.unwrap().get("a").unwrap().clone();
            assert_eq!(node.content, expected, "{value}");
        }
        for value in ["!!int x", "!!bool 1", "!!null x", "!!timestamp x"] {
            assert!(read(&format!("a: {value}\n")).0.is_none(), "{value}");
        }
    }

    #[test]
    fn what_is_not_yaml_is_refused_with_its_position() {
        for text in [
            "a: [1",
            "a: !!binary x",
            "a: b: c",
            "? [x]\n: 1\n",
            "a: \"b\u{1}\"",
            "a: b\u{7f}",
            "a: [.nan]",
            "a: -.inf",
        ] {
            let (node, report) = read(text);
            assert!(node.is_none() && report.mistakes[0].at.is_some(), "{text}");
        }
    }

    #[test]
    fn no_value_is_deeper_than_the_limit() {
        let nested = |depth: usize| format!("{}x{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nested(64)).0.is_some());
        let aliased = format!("- &a {}\n- {}\n", nested(40), nested(40).replace('x', "*a"));
        for text in [nested(65), aliased] {
            let (node, report) = read(&text);
            assert!(node.is_none() && report.mistakes[0].message.contains("deep"));
        }
    }

    #[test]
    fn aliases_copy_no_more_than_the_limit() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..6 {
            let last = n - 1;
            text += &format!(
                "a{n}: &a{n} [*a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}]\n"
            );
        }
        let (node, report) = read(&text);
        assert!(node.is_none());
        assert!(report.mistakes[0].message.contains("copy more than"));
    }
}
