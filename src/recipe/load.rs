//! Reads a recipe and its parents, and turns them into one checked [`Recipe`].

use std::fs;
use std::path::{Path, PathBuf};

use super::mistakes::{Mistake, Mistakes, Place, nearest};
use super::tree::{self, Node};
use super::{Recipe, carried, check, schema};

/// Maximum length of a chain of recipes that extend each other.
const DEEPEST: usize = 16;

/// Reads the recipe at `path`.
///
/// # Errors
/// Every mistake in it and in its parents.
pub fn load(path: &Path) -> Result<Recipe, Mistakes> {
    let mut mistakes = Mistakes::default();
    let mut chain = Vec::new();
    read(path, None, &mut chain, &mut mistakes);
    // After syntax errors, further checks would report false mistakes.
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut gone = Vec::new();
    let mut merged = None;
    for mut tree in chain.into_iter().rev() {
        gone.extend(schema::check(&mut tree, &mut mistakes));
        merged = Some(tree::merge(merged, tree, &mut mistakes));
    }
    let Some(tree) = merged else {
        return Err(mistakes);
    };
    let parts = mistakes.files().cloned().collect();
    let recipe = check::recipe(path, parts, &tree, &gone, &mut mistakes);
    match recipe {
        Some(recipe) if mistakes.is_empty() => Ok(recipe),
        _ => Err(mistakes),
    }
}

/// Reads one file and then its parent. `from` is the position of its `extends`.
fn read(path: &Path, from: Option<&Place>, chain: &mut Vec<Node>, mistakes: &mut Mistakes) {
    // The word of a recipe that the program carries is no file.
    let carried = from.and(carried::name(path));
    let text = match (carried, carried.and_then(carried::text)) {
        (Some(name), None) => {
            mistakes.add(not_carried(name, from));
            return;
        }
        (_, Some(text)) => Ok(text.to_owned()),
        (None, None) => fs::read_to_string(path),
    };
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            mistakes.add(unreadable(path, from, &error));
            return;
        }
    };
    let real = real(path);
    if let Some(place) = from {
        let before = mistakes.files().position(|file| self::real(file) == real);
        if let Some(file) = before {
            let circle: Vec<String> = mistakes
                .files()
                .skip(file)
                .map(|file| file.display().to_string())
                .chain([path.display().to_string()])
                .collect();
            mistakes.add(Mistake::at(
                place,
                format!("the recipes extend each other: {}", circle.join(" → ")),
                "expected a recipe that does not lead back here",
            ));
            return;
        }
        if chain.len() >= DEEPEST {
            mistakes.add(Mistake::at(
                place,
                format!("more than {DEEPEST} recipes extend each other"),
                "",
            ));
            return;
        }
    }
    let file = mistakes.file(path.to_owned(), text);
    let tree = tree::parse(file, mistakes);
    let parent = tree
        .at(&["extends"])
        .and_then(|node| Some((node.place.clone(), node.text()?.to_owned())))
        .filter(|(place, _)| place.end > place.start);
    chain.push(tree);
    if let Some((place, name)) = parent {
        let parent = carried::parent(path, &name);
        read(&parent, Some(&place), chain, mistakes);
    }
}

fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn not_carried(name: &str, from: Option<&Place>) -> Mistake {
    let all: Vec<&str> = carried::names().collect();
    let found = format!("Slipway carries no recipe {name}");
    let expected = format!("expected one of {}", all.join(", "));
    let mistake = match from {
        Some(place) => Mistake::at(place, found, &expected),
        None => Mistake::nowhere(found),
    };
    match nearest(name, all.iter().copied()) {
        Some(near) => mistake.help(format!("did you mean `slipway:{near}`?")),
        None => mistake,
    }
}

fn unreadable(path: &Path, from: Option<&Place>, error: &std::io::Error) -> Mistake {
    let found = format!("reading the recipe {} failed: {error}", path.display());
    let mistake = match from {
        Some(place) => Mistake::at(
            place,
            found,
            "expected the path of a recipe, relative to this file",
        ),
        None => Mistake::nowhere(found),
    };
    let neighbours = recipes_beside(path);
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let near = name.and_then(|name| {
        let near = nearest(&name, neighbours.iter().map(String::as_str))?;
        Some(path.with_file_name(near).display().to_string())
    });
    match near {
        Some(near) => mistake.help(format!("did you mean `{near}`?")),
        None => mistake,
    }
}

/// The names of the TOML files in the folder of `path`, sorted.
fn recipes_beside(path: &Path) -> Vec<String> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    names.sort();
    names
}
