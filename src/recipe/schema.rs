//! The JSON Schema of a recipe, generated from the types, and the validation of a recipe's tree.

use serde_json::Value as Json;

use super::check::RawRecipe;
use super::mistakes::{Mistake, Mistakes, nearest};
use super::tree::{Node, Value, join};

/// The schema's text, the same as in the repository's `recipes/`.
///
/// # Panics
/// Never: every schema can be expressed in JSON.
#[must_use]
pub fn text() -> String {
    let mut text =
        serde_json::to_string_pretty(&value()).unwrap_or_else(|error| unreachable!("{error}"));
    text.push('\n');
    text
}

pub(super) fn value() -> Json {
    schemars::schema_for!(RawRecipe).to_value()
}

/// Validates a tree against the schema: unknown keys and values of the wrong kind are added to `mistakes` and
/// removed from the tree, so that the rest can be checked further. Gives the paths of the removed values.
pub(super) fn check(tree: &mut Node, mistakes: &mut Mistakes) -> Vec<String> {
    let root = value();
    let mut walk = Walk {
        root: &root,
        mistakes,
        gone: Vec::new(),
    };
    walk.node(&root, tree, "");
    walk.gone
}

struct Walk<'a> {
    root: &'a Json,
    mistakes: &'a mut Mistakes,
    gone: Vec<String>,
}

impl<'a> Walk<'a> {
    /// Checks a node; gives whether it may stay.
    fn node(&mut self, schema: &'a Json, node: &mut Node, path: &str) -> bool {
        let schema = resolve(self.root, schema);
        if let Some(words) = words(schema) {
            return self.word(&words, node, path);
        }
        let fits = match &node.value {
            Value::Text(_) => allows(schema, "string"),
            Value::Integer { .. } => allows(schema, "integer"),
            Value::Boolean(_) => allows(schema, "boolean"),
            Value::List(_) => allows(schema, "array"),
            Value::Table(_) => allows(schema, "object"),
            Value::Float(_) | Value::Date(_) => false,
        };
        if !fits {
            self.wrong_kind(schema, node, path);
            return false;
        }
        if let Value::Integer { text, radix } = &node.value
            && let Some(expected) = out_of_range(schema, text, *radix)
        {
            self.wrong_number(schema, node, path, expected);
            return false;
        }
        match &mut node.value {
            Value::List(items) => {
                let items_schema = &schema["items"];
                let inner = format!("{path}[]");
                let before = items.len();
                items.retain_mut(|item| self.node(items_schema, item, &inner));
                if items.len() < before {
                    self.gone.push(inner);
                }
            }
            Value::Table(_) => self.table(schema, node, path),
            _ => {}
        }
        true
    }

    fn table(&mut self, schema: &'a Json, node: &mut Node, path: &str) {
        let Value::Table(table) = &mut node.value else {
            return;
        };
        let properties = schema["properties"].as_object();
        let others = schema
            .get("additionalProperties")
            .filter(|other| other.is_object());
        table.retain(|key, entry| {
            let inner = join(path, key);
            let known = properties
                .and_then(|properties| properties.get(key))
                .or(others);
            let stays = match known {
                Some(schema) => self.node(schema, &mut entry.node, &inner),
                None => {
                    let valid: Vec<&str> = properties
                        .map(|p| p.keys().map(String::as_str).collect())
                        .unwrap_or_default();
                    let mistake = Mistake::at(
                        &entry.key,
                        format!("unknown key `{key}` in {}", place_name(path)),
                        format!("expected {}", one_of(&valid)),
                    )
                    .nearest(key, valid);
                    let mistake = match home(self.root, key) {
                        Some((near, table)) if near == key => {
                            mistake.or_help(format!("`{key}` belongs in {table}"))
                        }
                        Some((near, table)) => {
                            mistake.or_help(format!("did you mean `{near}` in {table}?"))
                        }
                        None => mistake,
                    };
                    self.mistakes.add(mistake);
                    false
                }
            };
            if !stays {
                self.gone.push(inner);
            }
            stays
        });
    }

    fn word(&mut self, words: &[&str], node: &Node, path: &str) -> bool {
        let expected = format!("expected {}", one_of(words));
        let mistake = match node.text() {
            Some(word) if words.contains(&word) => return true,
            Some(word) => Mistake::at(
                &node.place,
                format!("{} cannot be `{word}`", value_name(path)),
                expected,
            )
            .nearest(word, words.iter().copied()),
            None => Mistake::at(
                &node.place,
                format!("{} cannot be {}", value_name(path), node.describe()),
                expected,
            ),
        };
        self.mistakes.add(mistake);
        false
    }

    fn wrong_number(&mut self, schema: &Json, node: &Node, path: &str, expected: String) {
        let found = format!("{} cannot be {}", value_name(path), node.describe());
        let mistake = Mistake::at(&node.place, found, expected);
        // A setting of the kernel may be any text.
        self.mistakes.add(match &node.value {
            Value::Integer { text, radix: 10 } if allows(schema, "object") => {
                mistake.help(format!("write it in quotes: \"{text}\""))
            }
            _ => mistake,
        });
    }

    fn wrong_kind(&mut self, schema: &Json, node: &Node, path: &str) {
        let expected: Vec<&str> = [
            ("string", "a text in quotes"),
            ("integer", "a whole number"),
            ("boolean", "true or false"),
            ("array", "a list"),
            ("object", "a table"),
        ]
        .into_iter()
        .filter(|(kind, _)| allows(schema, kind))
        .map(|(_, text)| text)
        .collect();
        let mut mistake = Mistake::at(
            &node.place,
            format!("{} cannot be {}", value_name(path), node.describe()),
            format!("expected {}", expected.join(" or ")),
        );
        match &node.value {
            Value::Integer { text, .. } | Value::Float(text) | Value::Date(text)
                if allows(schema, "string") =>
            {
                mistake = mistake.help(format!("write it in quotes: \"{text}\""));
            }
            Value::Text(text) if allows(schema, "array") => {
                mistake = mistake.help(format!("write it as a list: [{text:?}]"));
            }
            Value::Text(text) if allows(schema, "boolean") => {
                if let "true" | "false" = text.as_str() {
                    mistake = mistake.help(format!("write it without quotes: {text}"));
                }
            }
            _ => {}
        }
        self.mistakes.add(mistake);
    }
}

/// Follows references, and selects the branch of an optional value that is not `null`.
pub(super) fn resolve<'a>(root: &'a Json, mut schema: &'a Json) -> &'a Json {
    loop {
        let inner = if let Some(reference) = schema["$ref"].as_str() {
            root.pointer(reference.trim_start_matches('#'))
        } else if let Some(branches) = schema["anyOf"].as_array() {
            branches.iter().find(|branch| branch["type"] != "null")
        } else {
            None
        };
        match inner {
            Some(inner) => schema = inner,
            None => return schema,
        }
    }
}

/// The valid words of a value, if it is limited to some.
pub(super) fn words(schema: &Json) -> Option<Vec<&str>> {
    if let Some(words) = schema["enum"].as_array() {
        return Some(words.iter().filter_map(Json::as_str).collect());
    }
    let branches = schema["oneOf"].as_array()?;
    Some(
        branches
            .iter()
            .flat_map(|branch| match (&branch["const"], &branch["enum"]) {
                (Json::String(word), _) => vec![word.as_str()],
                (_, Json::Array(words)) => words.iter().filter_map(Json::as_str).collect(),
                _ => Vec::new(),
            })
            .collect(),
    )
}

pub(super) fn allows(schema: &Json, kind: &str) -> bool {
    match &schema["type"] {
        Json::String(only) => only == kind,
        Json::Array(kinds) => kinds.iter().any(|allowed| allowed == kind),
        _ => false,
    }
}

/// What a whole number has to be, if it is not that. JSON has none of more than 64 bits: it would count as not given.
fn out_of_range(schema: &Json, text: &str, radix: u32) -> Option<String> {
    // What may be a text too is a size, permission bits or an account's number.
    let is_both = allows(schema, "string") && !allows(schema, "object");
    let least = schema["minimum"].as_i64().or(is_both.then_some(0));
    let most = match schema["format"].as_str() {
        Some("uint32") => i64::from(u32::MAX),
        _ => i64::MAX,
    };
    let range = least.unwrap_or(i64::MIN)..=most;
    let fits = i64::from_str_radix(text, radix).is_ok_and(|number| range.contains(&number));
    (!fits).then(|| {
        format!(
            "expected a whole number from {} to {}",
            range.start(),
            range.end()
        )
    })
}

fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [] => "no key".to_owned(),
        [only] => only.clone(),
        [a, b] => format!("{a} or {b}"),
        many => format!("one of {}", many.join(", ")),
    }
}

/// A table's name in TOML syntax: `[debian]`, `[files."/etc/x"]`.
fn place_name(path: &str) -> String {
    if path.is_empty() {
        return "the recipe".to_owned();
    }
    match path.strip_prefix("files.") {
        Some(file) => format!("[files.{file:?}]"),
        None => format!("[{}]", path.replace("[]", "")),
    }
}

fn value_name(path: &str) -> String {
    match path.strip_suffix("[]") {
        Some(list) => format!("an item of `{list}`"),
        None => format!("`{path}`"),
    }
}

/// The key of any table that is nearest to a word, and its table.
fn home<'a>(root: &'a Json, word: &str) -> Option<(&'a str, String)> {
    let tables = root["properties"].as_object()?;
    let top = ("the top of the recipe".to_owned(), root);
    let named = tables
        .iter()
        .map(|(name, table)| (format!("[{name}]"), resolve(root, table)));
    let known: Vec<(&str, String)> = [top]
        .into_iter()
        .chain(named)
        .filter_map(|(name, table)| Some((name, table["properties"].as_object()?)))
        .flat_map(|(name, keys)| keys.keys().map(move |key| (key.as_str(), name.clone())))
        .collect();
    let near = nearest(word, known.iter().map(|(key, _)| *key))?;
    known.into_iter().find(|(key, _)| *key == near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::tree::{APPENDED, WHOLE};

    /// Regenerate the file with `slipway schema > recipes/schema.json` after a change of the types.
    #[test]
    fn the_schema_that_is_checked_in_is_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/schema.json");
        let checked_in = std::fs::read_to_string(path).unwrap();
        assert!(
            checked_in == text(),
            "recipes/schema.json is not what the types give: run `slipway schema > recipes/schema.json`"
        );
    }

    #[test]
    fn the_tables_of_merge_rules_name_what_exists() {
        let root = value();
        for path in APPENDED.iter().chain(WHOLE) {
            let mut schema = &root;
            for key in path.split('.') {
                schema = resolve(&root, schema);
                let inner = match key {
                    "*" => &schema["additionalProperties"],
                    key => &schema["properties"][key],
                };
                assert!(!inner.is_null(), "{path} is in no recipe");
                schema = inner;
            }
            let schema = resolve(&root, schema);
            let kind = if APPENDED.contains(path) {
                "array"
            } else {
                "object"
            };
            assert!(allows(schema, kind), "{path} is not a {kind}");
            if kind == "array" {
                let items = resolve(&root, &schema["items"]);
                assert!(
                    words(items).is_none(),
                    "{path}: `-name` would not be a valid word"
                );
            }
        }
    }

    #[test]
    fn every_key_is_described() {
        let root = value();
        let tables = root["$defs"].as_object().unwrap().values();
        for table in tables.chain([&root]) {
            for (key, property) in table["properties"].as_object().into_iter().flatten() {
                assert!(
                    property["description"].is_string(),
                    "{key} has no description"
                );
            }
        }
    }
}
