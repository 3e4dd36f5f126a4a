//! The reference of recipes as Markdown, generated from the schema: `docs/recipe.md`.

use serde_json::Value as Json;

use super::schema::{allows, resolve, value, words};
use super::tree::APPENDED;

/// The commented recipe: it determines the order of sections and keys.
const COMMENTED: &str = include_str!("../../recipes/node.toml");

/// The table whose tables are recipes.
const VARIANTS: &str = "variants";

const HEAD: &str = "# Recipes

Made from the types by `slipway schema --markdown > docs/recipe.md`; a test compares. The commented example is
[`recipes/node.toml`](../recipes/node.toml), a first recipe is in [write-a-recipe.md](write-a-recipe.md).

A key without a default may be left out and is then empty or absent. With `extends`, tables are merged key by key and
single values replace inherited ones. Lists of names, marked *added*, are added to the inherited list; `\"-name\"` takes an
inherited name away, `\"-*\"` all of them. Other lists, `[files.\"…\"]` and `[node.etcd]` replace the inherited one.
";

/// The reference's text.
#[must_use]
pub fn markdown() -> String {
    let root = value();
    let mut reference = Reference {
        root: &root,
        text: HEAD.to_owned(),
    };
    reference.table("", &root);
    reference.text
}

struct Reference<'a> {
    root: &'a Json,
    text: String,
}

impl<'a> Reference<'a> {
    /// A table of the recipe: its keys, their valid words, and the tables within it.
    fn table(&mut self, path: &str, schema: &'a Json) {
        let schema = resolve(self.root, schema);
        let mut inner = Vec::new();
        let mut rows = String::new();
        let mut choices = String::new();
        for (key, property) in self.keys(path, schema) {
            let within = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            let resolved = resolve(self.root, property);
            // A variant has the tables of a recipe.
            if within != VARIANTS
                && let Some((path, schema)) = self.inner(&within, resolved)
            {
                let own = property["description"].as_str();
                let listed = allows(resolved, "array") && within.contains('.');
                inner.push((path, schema, own));
                // A table has a section and no row; a list within a table has both.
                if !listed {
                    continue;
                }
            }
            rows += &self.row(&key, &within, property);
            let item = resolve(self.root, &resolved["items"]);
            for list in [resolved, item] {
                choices += &described(&key, list);
            }
        }
        if !rows.is_empty() {
            self.text += "\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n";
            self.text += &rows;
        }
        self.text += &choices;
        for (path, schema, own) in inner {
            let title = title(&path);
            let schema = resolve(self.root, schema);
            let about = about(own.unwrap_or_default(), schema["description"].as_str());
            self.text += &format!("\n## {title}\n\n{about}\n");
            self.table(&path, schema);
        }
    }

    /// A table's keys in the order of the commented recipe.
    fn keys(&self, path: &str, schema: &'a Json) -> Vec<(String, &'a Json)> {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let mut keys: Vec<(String, &Json)> = properties
            .map(|(key, property)| (key.clone(), property))
            .collect();
        let section = match path {
            "" => 0,
            path => {
                let path = path.trim_end_matches("[]");
                COMMENTED.find(&format!("[{path}]")).unwrap_or_default()
            }
        };
        let place = |key: &str| {
            let begins = match path {
                "" => ["[", "[["].map(|bracket| format!("{bracket}{key}")),
                _ => [format!("{key} ="), format!("{key}=")],
            };
            let written = begins
                .iter()
                .flat_map(|begin| [format!("\n{begin}"), format!("\n# {begin}")]);
            let found = written.filter_map(|text| COMMENTED[section..].find(&text));
            found.min().unwrap_or(usize::MAX)
        };
        keys.sort_by_key(|(key, _)| (place(key), key.clone()));
        keys
    }

    /// The table of a key, or of each item of its list.
    fn inner(&self, path: &str, schema: &'a Json) -> Option<(String, &'a Json)> {
        let item = resolve(self.root, &schema["items"]);
        let other = &schema["additionalProperties"];
        if schema["properties"].is_object() {
            Some((path.to_owned(), schema))
        } else if item["properties"].is_object() {
            Some((format!("{path}[]"), item))
        } else if resolve(self.root, other)["properties"].is_object() {
            Some((format!("{path}.*"), other))
        } else {
            None
        }
    }

    fn row(&self, key: &str, path: &str, property: &Json) -> String {
        let about = line(property["description"].as_str().unwrap_or_default());
        let (meaning, default) = match about.rsplit_once(" Default: ") {
            Some((meaning, default)) => (meaning, default.trim_end_matches('.')),
            None => match about.strip_suffix(" Required.") {
                Some(meaning) => (meaning, "**required**"),
                None => (about.as_str(), ""),
            },
        };
        let mut kind = self.kind(resolve(self.root, property));
        if APPENDED.contains(&path) {
            kind += ", *added*";
        }
        format!("| `{key}` | {kind} | {default} | {meaning} |\n")
    }

    fn kind(&self, schema: &Json) -> String {
        if let Some(words) = words(schema) {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            return words.join(", ");
        }
        if allows(schema, "array") {
            let item = resolve(self.root, &schema["items"]);
            if allows(schema, "string") {
                return "string or list of strings".to_owned();
            }
            return match (words(item), item["properties"].is_object()) {
                (Some(_), _) => "list of words, below".to_owned(),
                (None, true) => "list of tables".to_owned(),
                (None, false) => "list of strings".to_owned(),
            };
        }
        let of_table = match schema["additionalProperties"]["type"] == "string" {
            true => "table of strings",
            false => "tables",
        };
        let kinds = [
            ("string", "string"),
            ("integer", "integer"),
            ("boolean", "boolean"),
            ("object", of_table),
        ];
        let allowed = kinds.iter().filter(|(kind, _)| allows(schema, kind));
        let names: Vec<&str> = allowed.map(|(_, name)| *name).collect();
        names.join(" or ")
    }
}

/// The valid words of a key, each with its meaning.
fn described(key: &str, schema: &Json) -> String {
    let Some(branches) = schema["oneOf"].as_array() else {
        return String::new();
    };
    let mut text = format!("\n| `{key}` | Meaning |\n|---|---|\n");
    for branch in branches {
        let meaning = line(branch["description"].as_str().unwrap_or_default());
        for word in words(&serde_json::json!({ "oneOf": [branch] })).unwrap_or_default() {
            text += &format!("| `{word}` | {meaning} |\n");
        }
    }
    text
}

/// The descriptions of a table, from its key and from its type, without repetition.
fn about(key: &str, of_type: Option<&str>) -> String {
    let (key, of_type) = (line(key), line(of_type.unwrap_or_default()));
    let key = key.trim_end_matches(" Required.");
    let begins = |long: &str, short: &str| long.starts_with(short.trim_end_matches('.'));
    if begins(key, &of_type) {
        key.to_owned()
    } else if begins(&of_type, key) {
        of_type
    } else {
        format!("{key} {of_type}")
    }
}

/// A table's name in the syntax of a recipe.
fn title(path: &str) -> String {
    let key = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
    if let Some(list) = path.strip_suffix("[]") {
        let head = format!("[[{list}]]");
        return match list.contains('.') && !COMMENTED.contains(&head) {
            true => format!("An entry of `{}`", key(list)),
            false => format!("`{head}`"),
        };
    }
    match path.strip_suffix(".*") {
        Some("files") => "`[files.\"PATH\"]`".to_owned(),
        Some(table) => format!("`[{table}.NAME]`"),
        None => format!("`[{path}]`"),
    }
}

/// A description on one line of a table.
fn line(text: &str) -> String {
    text.replace('\n', " ")
        .replace('|', "\\|")
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regenerate the file with `slipway schema --markdown > docs/recipe.md` after a change of the types.
    #[test]
    fn the_reference_that_is_checked_in_is_made_from_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipe.md");
        let checked_in = std::fs::read_to_string(path).unwrap();
        assert!(
            checked_in == markdown(),
            "docs/recipe.md is out of date: run `slipway schema --markdown > docs/recipe.md`"
        );
    }

    #[test]
    fn every_key_of_the_schema_has_a_row() {
        let (root, text) = (value(), markdown());
        let tables = root["$defs"].as_object().unwrap().values();
        for table in tables {
            for key in table["properties"].as_object().into_iter().flatten() {
                assert!(
                    text.contains(&format!("| `{}` |", key.0))
                        || text.contains(&format!("{}]`", key.0)),
                    "{} has no row",
                    key.0
                );
            }
        }
    }

    /// The keys of a schema's tables, each with its path, `*` for a name; the variants' own tables are recipes.
    fn keys(reference: &Reference<'_>, path: &str, schema: &Json, found: &mut Vec<String>) {
        let schema = resolve(reference.root, schema);
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let within = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            found.push(within.clone());
            let property = resolve(reference.root, property);
            if within != VARIANTS
                && let Some((path, schema)) = reference.inner(&within, property)
            {
                keys(reference, path.trim_end_matches("[]"), schema, found);
            }
        }
    }

    /// The parts of a dotted key; quoted ones have dots of their own.
    fn parts(key: &str) -> Vec<String> {
        let mut is_quoted = false;
        let parts = key.split(|c: char| {
            is_quoted ^= c == '"';
            c == '.' && !is_quoted
        });
        parts
            .map(|part| part.trim_matches('"').to_owned())
            .collect()
    }

    /// The keys of the commented recipe, in use or in a comment, each with the parts of its path. A key that stands in an inline
    /// table, or as an alternative behind another one, counts on both levels.
    fn commented() -> Vec<Vec<String>> {
        let is_key = |word: &&str| {
            let begins = word.starts_with(|c: char| c.is_ascii_lowercase());
            begins
                && word
                    .bytes()
                    .all(|b| b == b'-' || b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        let (mut table, mut list) = (Vec::new(), Vec::new());
        let mut found = Vec::new();
        for line in COMMENTED.lines() {
            let line = line.trim_start().trim_start_matches("# ").trim_start();
            if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                table = parts(header.0.trim_start_matches('['));
                found.push(table.clone());
                continue;
            }
            let words: Vec<&str> = line.split(|c: char| " {,".contains(c)).collect();
            let assigned = words.iter().zip(words.iter().skip(1));
            let assigned = assigned.filter(|(word, next)| **next == "=" && is_key(word));
            let mut assigned: Vec<&str> = assigned.map(|(word, _)| *word).collect();
            let own = assigned
                .first()
                .copied()
                .filter(|key| line.starts_with(key));
            if let Some(own) = own {
                list = [&table[..], &[own.to_owned()]].concat();
                found.push(list.clone());
                assigned.remove(0);
                let beside = |key: &&str| [&table[..], &[(*key).to_owned()]].concat();
                found.extend(assigned.iter().map(beside));
            } else if !line.starts_with('{') {
                continue;
            }
            let within = |key: &&str| [&list[..], &[(*key).to_owned()]].concat();
            found.extend(assigned.iter().map(within));
        }
        found
    }

    #[test]
    fn the_commented_recipe_has_every_key_of_the_schema() {
        let root = value();
        let reference = Reference {
            root: &root,
            text: String::new(),
        };
        let mut wanted = Vec::new();
        keys(&reference, "", &root, &mut wanted);
        assert!(wanted.len() > 100, "{wanted:?}");
        let written = commented();
        let stands = |path: &String| {
            let path = parts(path);
            written.iter().any(|written| {
                written.len() >= path.len()
                    && (path.iter().zip(written)).all(|(want, part)| want == "*" || want == part)
            })
        };
        let missing: Vec<&String> = wanted.iter().filter(|path| !stands(path)).collect();
        assert!(
            missing.is_empty(),
            "recipes/node.toml has no word of {missing:?}"
        );
    }
}
