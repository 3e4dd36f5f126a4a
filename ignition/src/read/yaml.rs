//! YAML 1.2 as the tree of [`crate::read::json`], every value with its line and column.
//!
//! Merge keys are read as go-yaml, Butane's reader, reads them. Scalars without quotes stay text: the schema decides
//! their type ([`crate::tree::scalar`]). Depth, and the amount that aliases may copy, are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use crate::read::json::{Json, Value};
use crate::report::{Position, Report};

/// Deeper nesting is refused. Butane itself needs ten levels.
const DEEPEST: usize = 64;
/// The most values that aliases may copy, all together.
const COPIED: usize = 100_000;
/// The most text that aliases may copy, all together, bytes.
const COPIED_TEXT: usize = 16 << 20;
/// The prefix of YAML's standard tags.
const CORE: &str = "tag:yaml.org,2002:";

/// Reads one YAML document; `source` is its name in messages.
///
/// # Errors
/// A report with the position of the syntax error.
pub fn parse(text: &[u8], source: &str) -> Result<Json, Report> {
    let source: Arc<str> = source.into();
    let fail = |(line, column): (u32, u32), message: String| {
        let at = Position {
            source: source.clone(),
            line,
            column,
        };
        let mut report = Report::default();
        report.error("$", Some(&at), message);
        report
    };
    let text = decoded(text).map_err(|(place, message)| fail(place, message))?;
    let mut builder = Builder::new(source.clone());
    for event in Parser::new_from_str(text) {
        let read = event.map_err(|error| wrong(&error));
        let taken = read.and_then(|(event, span)| builder.take(event, span));
        taken.map_err(|Wrong { place, message }| fail(place, message))?;
    }
    Ok(builder.root.unwrap_or(Json {
        at: Position {
            source: source.clone(),
            line: 1,
            column: 1,
        },
        value: Value::Null,
    }))
}

/// Whether a scalar without quotes is null.
#[must_use]
pub fn is_null(plain: &str) -> bool {
    matches!(plain, "" | "~" | "null" | "Null" | "NULL")
}

/// A position: line and column from 1.
type Place = (u32, u32);

/// An error and its position.
struct Wrong {
    place: Place,
    message: String,
}

fn place(line: usize, column: usize) -> Place {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (number(line), number(column.saturating_add(1)))
}

fn wrong(error: &ScanError) -> Wrong {
    let marker = error.marker();
    Wrong {
        place: place(marker.line(), marker.col()),
        message: match error.info() {
            "recursion limit exceeded" => format!("nested more than {DEEPEST} deep"),
            info => format!("not valid YAML: {info}"),
        },
    }
}

/// The text without its byte order mark, if it is UTF-8 and holds no control characters.
fn decoded(text: &[u8]) -> Result<&str, (Place, String)> {
    if text.starts_with(&[0xff, 0xfe]) || text.starts_with(&[0xfe, 0xff]) {
        return Err(((1, 1), "the text is UTF-16; expected UTF-8".into()));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        let before = String::from_utf8_lossy(&text[..error.valid_up_to()]);
        (end_of(&before), "the text is not UTF-8 here".to_owned())
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let control = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    match text.find(control) {
        Some(i) => Err((
            end_of(&text[..i]),
            "a control character; YAML has none".into(),
        )),
        None => Ok(text),
    }
}

/// The position after this text.
fn end_of(text: &str) -> Place {
    let line = text.matches('\n').count() + 1;
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count();
    place(line, column)
}

/// A list or mapping whose end was not read yet.
enum Open {
    List {
        at: Position,
        anchor: usize,
        items: Vec<Json>,
    },
    Map {
        at: Position,
        anchor: usize,
        entries: Vec<(String, Position, Json)>,
        names: BTreeSet<String>,
        merged: Vec<Json>,
        key: Option<Key>,
    },
}

/// A key whose value was not read yet.
enum Key {
    /// `<<`
    Merge,
    /// Any other.
    Name(String, Position),
}

struct Builder {
    source: Arc<str>,
    root: Option<Json>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Json>,
    copied: usize,
    copied_text: usize,
}

impl Builder {
    fn new(source: Arc<str>) -> Self {
        Self {
            source,
            root: None,
            open: Vec::new(),
            anchors: BTreeMap::new(),
            copied: 0,
            copied_text: 0,
        }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Wrong> {
        let (line, column) = place(span.start.line(), span.start.col());
        let at = Position {
            source: self.source.clone(),
            line,
            column,
        };
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(wrong_at(&at, "a second document; expected one"))
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
            Event::Alias(anchor) => {
                let Some(json) = self.anchors.get(&anchor).cloned() else {
                    return Err(wrong_at(&at, "an alias inside the value that it refers to"));
                };
                let depth = self.charge(&json, &at)?;
                if self.open.len() + depth > DEEPEST {
                    return Err(deep(&at));
                }
                self.put(json, 0)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(text.into_owned(), style, tag.as_deref(), &at)?;
                self.put(Json { at, value }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                collection(tag.as_deref(), "seq", &at)?;
                let items = Vec::new();
                self.begin(Open::List { at, anchor, items })
            }
            Event::MappingStart(anchor, tag) => {
                collection(tag.as_deref(), "map", &at)?;
                self.begin(Open::Map {
                    at,
                    anchor,
                    entries: Vec::new(),
                    names: BTreeSet::new(),
                    merged: Vec::new(),
                    key: None,
                })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
        }
    }

    fn begin(&mut self, open: Open) -> Result<(), Wrong> {
        let (Open::List { at, .. } | Open::Map { at, .. }) = &open;
        if self.open.len() >= DEEPEST {
            return Err(deep(at));
        }
        self.open.push(open);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Wrong> {
        let (json, anchor) = match self.open.pop() {
            Some(Open::List { at, anchor, items }) => {
                let value = Value::List(items);
                (Json { at, value }, anchor)
            }
            Some(Open::Map {
                at,
                anchor,
                mut entries,
                mut names,
                merged,
                ..
            }) => {
                for json in merged {
                    merge(json, &mut entries, &mut names)?;
                }
                let value = Value::Object(entries);
                (Json { at, value }, anchor)
            }
            None => return Ok(()),
        };
        self.put(json, anchor)
    }

    /// Adds a value to the innermost open list or mapping; without one it is the document.
    fn put(&mut self, json: Json, anchor: usize) -> Result<(), Wrong> {
        if anchor != 0 {
            self.charge(&json, &json.at)?;
            self.anchors.insert(anchor, json.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(json),
            Some(Open::List { items, .. }) => items.push(json),
            Some(Open::Map {
                entries,
                names,
                merged,
                key,
                ..
            }) => match key.take() {
                None => *key = Some(name(json, names)?),
                Some(Key::Merge) => merged.push(json),
                Some(Key::Name(name, at)) => entries.push((name, at, json)),
            },
        }
        Ok(())
    }

    /// Counts a copy against the limits, and returns its depth.
    fn charge(&mut self, json: &Json, at: &Position) -> Result<usize, Wrong> {
        let (values, text, depth) = weigh(json);
        self.copied += values;
        self.copied_text += text;
        if self.copied > COPIED || self.copied_text > COPIED_TEXT {
            let text = COPIED_TEXT >> 20;
            let message =
                format!("anchors and aliases copy more than {COPIED} values or {text} MiB of text");
            return Err(wrong_at(at, &message));
        }
        Ok(depth)
    }
}

fn deep(at: &Position) -> Wrong {
    wrong_at(at, &format!("nested more than {DEEPEST} deep"))
}

fn wrong_at(at: &Position, message: &str) -> Wrong {
    Wrong {
        place: (at.line, at.column),
        message: message.to_owned(),
    }
}

/// Values, bytes of text and depth.
fn weigh(json: &Json) -> (usize, usize, usize) {
    let mut sum = (1, 0, 1);
    let mut add = |(values, text, depth): (usize, usize, usize)| {
        sum = (sum.0 + values, sum.1 + text, sum.2.max(depth + 1));
    };
    match &json.value {
        Value::Text(text) | Value::Plain(text) | Value::Number(text) => sum.1 = text.len(),
        Value::Null | Value::Bool(_) => {}
        Value::List(items) => items.iter().for_each(|item| add(weigh(item))),
        Value::Object(entries) => {
            for (key, _, value) in entries {
                let (values, text, depth) = weigh(value);
                add((values, text + key.len(), depth));
            }
        }
    }
    sum
}

/// The key of a mapping: a scalar, each once.
fn name(json: Json, names: &mut BTreeSet<String>) -> Result<Key, Wrong> {
    let name = match json.value {
        Value::Plain(text) if text == "<<" => return Ok(Key::Merge),
        Value::Plain(text) if !is_null(&text) => text,
        Value::Text(text) => text,
        _ => return Err(wrong_at(&json.at, "expected a string as the key")),
    };
    if !names.insert(name.clone()) {
        let message = format!("duplicate key {name:?} in one mapping");
        return Err(wrong_at(&json.at, &message));
    }
    Ok(Key::Name(name, json.at))
}

/// Merges the value of a merge key: adds the entries whose keys are not there yet.
fn merge(
    json: Json,
    entries: &mut Vec<(String, Position, Json)>,
    names: &mut BTreeSet<String>,
) -> Result<(), Wrong> {
    let all = match json.value {
        Value::List(items) => items,
        _ => vec![json],
    };
    for json in all {
        let Value::Object(more) = json.value else {
            return Err(wrong_at(
                &json.at,
                "expected a mapping, or a list of them, after <<",
            ));
        };
        for (name, at, value) in more {
            if names.insert(name.clone()) {
                entries.push((name, at, value));
            }
        }
    }
    Ok(())
}

fn scalar(
    text: String,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: &Position,
) -> Result<Value, Wrong> {
    let plain = match tag.map(|tag| (tag.handle.as_str(), tag.suffix.as_str())) {
        None => style == ScalarStyle::Plain,
        Some((CORE, "str") | ("!", "")) => false,
        Some((CORE, "int" | "bool" | "null" | "float")) => true,
        Some((CORE, "binary")) => {
            let message = "binary data is not taken here; give a data URL as the source";
            return Err(wrong_at(at, message));
        }
        Some(_) => return Err(unknown_tag(at)),
    };
    Ok(if plain {
        Value::Plain(text)
    } else {
        Value::Text(text)
    })
}

fn collection(tag: Option<&Tag>, wanted: &str, at: &Position) -> Result<(), Wrong> {
    match tag.map(|tag| (tag.handle.as_str(), tag.suffix.as_str())) {
        None | Some(("!", "")) => Ok(()),
        Some((CORE, suffix)) if suffix == wanted => Ok(()),
        Some(_) => Err(unknown_tag(at)),
    }
}

fn unknown_tag(at: &Position) -> Wrong {
    wrong_at(
        at,
        "a tag that is not known here; expected none, or !!str, !!int, !!bool, !!null",
    )
}

#[cfg(test)]
mod tests;
