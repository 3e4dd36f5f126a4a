//! Reads a recipe and its parents, and turns them into one checked [`Recipe`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::mistakes::{Mistake, Mistakes, Place, nearest};
use super::tree::{self, Entry, Node};
use super::{Recipe, carried, check, lock_path, schema, setting};

/// Maximum length of a chain of recipes that extend each other.
const DEEPEST: usize = 16;

/// What is wanted of a recipe's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// One of its variants.
    pub variant: Option<String>,
    /// Values in place of its own, as `image.version=1.4`.
    pub settings: Vec<String>,
}

/// Reads the recipe at `path`, which has no variants.
///
/// # Errors
/// Every mistake in it and in its parents.
pub fn load(path: &Path) -> Result<Recipe, Mistakes> {
    load_as(path, &Choice::default())
}

/// Reads what is wanted of the recipe at `path`.
///
/// # Errors
/// Every mistake in it, in its parents and in what is wanted.
pub fn load_as(path: &Path, choice: &Choice) -> Result<Recipe, Mistakes> {
    let mut mistakes = Mistakes::default();
    let variant = choice.variant.as_deref();
    let read = read_all(path, variant, &mut mistakes);
    // After syntax errors, further checks would report false mistakes.
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut gone = Vec::new();
    let (mut parts, mut chosen, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for mut part in read {
        gone.extend(schema::check(&mut part.tree, &mut mistakes));
        let variants = part.tree.take("variants");
        for (name, node) in variants.into_iter().flat_map(|entry| entry.node.entries()) {
            if names_variant(&name, &node, &mut mistakes) && variant == Some(name.as_str()) {
                chosen.push(node.node);
            }
            names.insert(name);
        }
        parts.push(part);
    }
    if let Some(mistake) = not_chosen(path, variant, &names) {
        mistakes.add(mistake);
    } else if let Some(mistake) = same_lock(path, variant, &mistakes) {
        mistakes.add(mistake);
    }
    if let Some(variant) = variant {
        let within = format!("variants.{variant}.");
        let inside: Vec<String> = gone
            .iter()
            .filter_map(|path| path.strip_prefix(&within))
            .map(str::to_owned)
            .collect();
        gone.extend(inside);
    }
    let named = chosen
        .iter()
        .any(|tree| tree.at(&["image", "name"]).is_some());
    let all: BTreeSet<usize> = (0..mistakes.files().count()).collect();
    let mut merged = None;
    for Part { tree, extended } in parts {
        merged = Some(tree::merge(merged, tree, &extended, &mut mistakes));
    }
    for tree in chosen {
        merged = Some(tree::merge(merged, tree, &all, &mut mistakes));
    }
    if let (Some(variant), Some(tree), false) = (variant, &mut merged, named) {
        tree.append_to_text(&["image", "name"], &format!("-{variant}"));
    }
    for setting in &choice.settings {
        if let Some(mut tree) = setting::tree(setting, &mut mistakes) {
            if let Some(mistake) = setting::of_files_alone(&tree) {
                mistakes.add(mistake);
                continue;
            }
            gone.extend(schema::check(&mut tree, &mut mistakes));
            merged = Some(tree::merge(merged, tree, &all, &mut mistakes));
        }
    }
    let Some(tree) = merged else {
        return Err(mistakes);
    };
    let variant = choice.variant.clone();
    let recipe = check::recipe(path, variant, &tree, &gone, &mut mistakes);
    match recipe {
        Some(recipe) if mistakes.is_empty() => Ok(recipe),
        _ => Err(mistakes),
    }
}

/// The only recipe among the files of a folder, whose name ends in `.toml`: one that says `extends`, or has a table `[image]`.
///
/// # Errors
/// If there is none; or several, with their names.
pub fn only_one(folder: &Path) -> Result<PathBuf, Mistakes> {
    let mut names = recipes_beside(&folder.join("a.toml"));
    names.retain(|name| is_recipe(&folder.join(name)));
    let mistake = match names.as_slice() {
        // Without the folder of `.`, as people write it.
        [only] if folder == Path::new(".") => return Ok(only.into()),
        [only] => return Ok(folder.join(only)),
        [] => Mistake::nowhere("no recipe is given, and this folder has none")
            .help("`slipway new NAME` writes one"),
        [first, ..] => Mistake::nowhere(format!(
            "no recipe is given, and this folder has several: {}",
            names.join(", ")
        ))
        .help(format!("name one, as {first}")),
    };
    let mut mistakes = Mistakes::default();
    mistakes.add(mistake);
    Err(mistakes)
}

/// The error of a command that takes one recipe and was given several.
#[must_use]
pub fn several_given(paths: &[PathBuf]) -> Mistakes {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let mut mistakes = Mistakes::default();
    let found = format!("several recipes are given: {}", paths.join(", "));
    mistakes.add(Mistake::nowhere(found).help("name one; each has a lock of its own"));
    mistakes
}

/// Whether a file looks as a recipe; one with errors of syntax may.
fn is_recipe(path: &Path) -> bool {
    let Ok(text) = fs::read_to_string(path) else {
        return false;
    };
    let mut mistakes = Mistakes::default();
    let file = mistakes.file(path.to_owned(), text);
    let tree = tree::parse(file, &mut mistakes);
    ["extends", "image"]
        .iter()
        .any(|key| tree.entry(key).is_some())
}

/// The names of the variants of the recipe at `path` and of what it extends, sorted; none if it is one recipe.
///
/// # Errors
/// What keeps the files from being read.
pub fn variants(path: &Path) -> Result<Vec<String>, Mistakes> {
    let mut mistakes = Mistakes::default();
    let parts = read_all(path, None, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let tables = parts
        .into_iter()
        .filter_map(|mut part| part.tree.take("variants"));
    let names: BTreeSet<String> = tables
        .flat_map(|entry| entry.node.entries())
        .map(|(name, _)| name)
        .collect();
    Ok(names.into_iter().collect())
}

/// A file, and the files that it extends.
struct Part {
    tree: Node,
    extended: BTreeSet<usize>,
}

/// Reads a recipe and what it extends, each file once, what is extended before that which extends it.
fn read_all(path: &Path, variant: Option<&str>, mistakes: &mut Mistakes) -> Vec<Part> {
    let mut reading = Reading {
        variant,
        mistakes,
        open: Vec::new(),
        parts: Vec::new(),
    };
    reading.read(path, None);
    reading.parts
}

struct Reading<'a> {
    variant: Option<&'a str>,
    mistakes: &'a mut Mistakes,
    /// The files whose parents are being read.
    open: Vec<usize>,
    parts: Vec<Part>,
}

impl Reading<'_> {
    /// Reads one file after its parents. `from` is the position of the word that leads to it. Gives its number.
    fn read(&mut self, path: &Path, from: Option<&Place>) -> Option<usize> {
        let text = self.text(path, from)?;
        let real = real(path);
        if let Some(place) = from {
            let before = self
                .mistakes
                .files()
                .position(|file| self::real(file) == real);
            match before {
                Some(file) if self.open.contains(&file) => {
                    let circle = self.circle(file, path, place);
                    self.mistakes.add(circle);
                    return None;
                }
                Some(file) => return Some(file),
                None => {}
            }
            if self.open.len() >= DEEPEST {
                let found = format!("more than {DEEPEST} recipes extend each other");
                self.mistakes.add(Mistake::at(place, found, ""));
                return None;
            }
        }
        let file = self.mistakes.file(path.to_owned(), text);
        let tree = tree::parse(file, self.mistakes);
        self.open.push(file);
        let mut extended = BTreeSet::new();
        for (place, name) in parents(&tree, self.variant) {
            let parent = carried::parent(path, &name);
            if let Some(file) = self.read(&parent, Some(&place)) {
                extended.insert(file);
                let of_parent = |part: &&Part| part.tree.place.file == file;
                let further = self.parts.iter().find(of_parent);
                extended.extend(further.into_iter().flat_map(|part| &part.extended));
            }
        }
        self.open.pop();
        self.parts.push(Part { tree, extended });
        Some(file)
    }

    fn text(&mut self, path: &Path, from: Option<&Place>) -> Option<String> {
        // The word of a recipe that the program carries is no file.
        let carried = from.and(carried::name(path));
        let text = match (carried, carried.and_then(carried::text)) {
            (Some(name), None) => {
                self.mistakes.add(not_carried(name, from));
                return None;
            }
            (_, Some(text)) => Ok(text.to_owned()),
            (None, None) => fs::read_to_string(path),
        };
        match text {
            Ok(text) => Some(text),
            Err(error) => {
                self.mistakes.add(unreadable(path, from, &error));
                None
            }
        }
    }

    fn circle(&self, file: usize, path: &Path, place: &Place) -> Mistake {
        let files = self.open.iter().filter(|open| **open >= file);
        let files = files.map(|open| self.mistakes.path(*open));
        let circle: Vec<String> = files
            .chain([path])
            .map(|file| file.display().to_string())
            .collect();
        Mistake::at(
            place,
            format!("the recipes extend each other: {}", circle.join(" → ")),
            "expected a recipe that does not lead back here",
        )
    }
}

/// What a file extends, and what the wanted variant in it extends besides.
fn parents(tree: &Node, variant: Option<&str>) -> Vec<(Place, String)> {
    let of_variant = variant.and_then(|variant| tree.at(&["variants", variant, "extends"]));
    [tree.at(&["extends"]), of_variant]
        .into_iter()
        .flatten()
        .flat_map(|node| match node.items() {
            [] => std::slice::from_ref(node),
            items => items,
        })
        .filter(|node| node.place.end > node.place.start)
        .filter_map(|node| Some((node.place.clone(), node.text()?.to_owned())))
        .collect()
}

/// Checks a variant's name, and that it has no variants. Tells whether it can be one.
fn names_variant(name: &str, variant: &Entry, mistakes: &mut Mistakes) -> bool {
    if let Some(inner) = variant.node.entry("variants") {
        let expected = "expected all variants in one [variants]";
        let found = format!("the variant `{name}` has variants");
        mistakes.add(Mistake::at(&inner.key, found, expected));
        return false;
    }
    if let Some(mistake) = check::variant_name(name, &variant.key) {
        mistakes.add(mistake);
        return false;
    }
    true
}

/// The mistake of a wanted variant that is not there, or of none where there are some.
fn not_chosen(path: &Path, variant: Option<&str>, names: &BTreeSet<String>) -> Option<Mistake> {
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let listed = all.join(", ");
    let path = path.display();
    match variant {
        None if names.is_empty() => None,
        Some(variant) if names.contains(variant) => None,
        None => Some(
            Mistake::nowhere(format!("the recipe {path} has the variants {listed}"))
                .help("choose one by --variant"),
        ),
        Some(variant) if names.is_empty() => Some(Mistake::nowhere(format!(
            "the recipe {path} has no variants, and {variant} is wanted"
        ))),
        Some(variant) => {
            let found = format!("the recipe {path} has no variant {variant}: it has {listed}");
            Some(Mistake::nowhere(found).nearest(variant, all))
        }
    }
}

/// The mistake of two recipes in one folder with the same lock: `fleet.aws.toml`, and the variant `aws` of `fleet.toml`.
fn same_lock(path: &Path, variant: Option<&str>, read: &Mistakes) -> Option<Mistake> {
    let lock = lock_path(path, variant);
    let (found, other) = match variant {
        Some(variant) => {
            let other = lock.with_extension("toml");
            // What this recipe extends may be for it alone.
            if read.files().any(|file| real(file) == real(&other)) || !is_recipe(&other) {
                return None;
            }
            (
                format!("the variant {variant} of {}", path.display()),
                other,
            )
        }
        None => {
            let stem = path.file_stem()?.to_str()?;
            let (family, name) = stem.rsplit_once('.')?;
            let other = path.with_file_name(format!("{family}.toml"));
            let names = variants(&other).ok()?;
            if !names.iter().any(|variant| variant == name) {
                return None;
            }
            let found = format!("the variant {name} of {}", other.display());
            (found, path.to_owned())
        }
    };
    let (lock, other) = (lock.display(), other.display());
    let found = format!("{found} and the recipe {other} have the same lock {lock}");
    Some(Mistake::nowhere(found).help("rename the variant or one of the recipes"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_recipe_of_a_folder_is_found_and_several_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let found = || only_one(folder.path()).map_err(|mistakes| mistakes.render(false));
        write("Cargo.toml", "[package]\nname = 'x'\n");
        write("slipway-releases.toml", "");
        write("a.lock", "[image]\n");
        let none = found().unwrap_err();
        assert!(
            none.contains("has none") && none.contains("slipway new"),
            "{none}"
        );
        // One with a mistake of syntax is the one that is meant.
        write("node.toml", "extends = 'slipway:node'\n[image\n");
        assert_eq!(found().unwrap(), folder.path().join("node.toml"));
        write("b.toml", "[image]\n");
        let several = found().unwrap_err();
        assert!(
            several.contains("has several: b.toml, node.toml"),
            "{several}"
        );
    }
}
