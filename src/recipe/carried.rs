//! The recipes that are embedded in the program, so that a user needs no other file.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::host::atomic_file;
use crate::host::cache::Cache;

/// The embedded recipes: (file name, text). Those of this repository, and one for tools only.
const RECIPES: [(&str, &str); 8] = [
    ("aws.toml", include_str!("../../recipes/aws.toml")),
    ("capi.toml", include_str!("../../recipes/capi.toml")),
    (CLUSTER, include_str!("../../recipes/cluster.toml")),
    (DEMO, include_str!("../../recipes/demo.toml")),
    ("gce.toml", include_str!("../../recipes/gce.toml")),
    ("metal.toml", include_str!("../../recipes/metal.toml")),
    ("node.toml", include_str!("../../recipes/node.toml")),
    (TOOLS, include_str!("carried/tools.toml")),
];
/// What stands before the name of an embedded recipe in `extends`.
const PREFIX: &str = "slipway:";
/// The recipe that `slipway new` writes.
const NEW: &str = include_str!("carried/new.toml");
const CLUSTER: &str = "cluster.toml";
const DEMO: &str = "demo.toml";
const TOOLS: &str = "tools.toml";

/// The names by which a recipe may extend embedded ones, as `node` for `slipway:node`.
pub fn names() -> impl Iterator<Item = &'static str> {
    let names = RECIPES.iter().filter(|(name, _)| *name != TOOLS);
    names.filter_map(|(name, _)| name.strip_suffix(".toml"))
}

/// The name of an embedded recipe in a path that `extends` leads to.
pub(super) fn name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(PREFIX)
}

/// The text of an embedded recipe.
pub(super) fn text(name: &str) -> Option<&'static str> {
    let known = names().any(|known| known == name);
    let file = format!("{name}.toml");
    let mut recipes = RECIPES.iter().filter(|_| known);
    let found = recipes.find(|(recipe, _)| *recipe == file);
    found.map(|(_, text)| *text)
}

/// Where `extends` in the recipe at `path` leads to.
pub(super) fn parent(path: &Path, extends: &str) -> PathBuf {
    if extends.starts_with(PREFIX) {
        return extends.into();
    }
    match name(path) {
        // Beside an embedded recipe there are embedded ones.
        Some(_) => format!("{PREFIX}{}", extends.trim_end_matches(".toml")).into(),
        None => path.parent().unwrap_or(Path::new("")).join(extends),
    }
}

/// A recipe to begin with, of this image, that extends an embedded one.
#[must_use]
pub fn beginning(image: &str, from: &str) -> String {
    NEW.replace("@IMAGE@", image)
        .replace("@FROM@", &format!("{PREFIX}{from}"))
}

/// The demo's recipe: the one below the current folder in a checkout of the repository, else the embedded one,
/// written to the cache with its parent, where its lock is stored too.
///
/// # Errors
/// If the cache cannot be written.
pub fn demo(cache: &Cache) -> Result<PathBuf> {
    here_or_written(cache, DEMO)
}

/// The recipe of a cluster's nodes, found as the demo's.
///
/// # Errors
/// If the cache cannot be written.
pub fn cluster(cache: &Cache) -> Result<PathBuf> {
    here_or_written(cache, CLUSTER)
}

fn here_or_written(cache: &Cache, name: &str) -> Result<PathBuf> {
    let here = Path::new("recipes").join(name);
    if here.is_file() {
        return Ok(here);
    }
    Ok(write(cache)?.join(name))
}

/// A recipe for the tools trees only: its lock has no kubelet.
///
/// # Errors
/// If the cache cannot be written.
pub fn tools(cache: &Cache) -> Result<PathBuf> {
    Ok(write(cache)?.join(TOOLS))
}

/// Writes the embedded recipes to the cache.
fn write(cache: &Cache) -> Result<PathBuf> {
    let folder = cache.root().join("recipes");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for (name, text) in RECIPES {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|written| written == text) {
            continue;
        }
        atomic_file::write(&path, 0o644, |file| Ok(file.write_all(text.as_bytes())?))?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_recipe_is_right_on_every_carried_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        for from in names() {
            fs::write(&path, beginning("mine", from)).unwrap();
            let recipe = crate::recipe::load(&path)
                .unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)));
            assert_eq!(recipe.image.name, "mine");
        }
        for (wrong, expected) in [
            ("slipway:nod", "did you mean `slipway:node`?"),
            (
                "slipway:tools",
                "aws, capi, cluster, demo, gce, metal, node",
            ),
            ("node.toml", "reading the recipe"),
        ] {
            fs::write(&path, format!("extends = {wrong:?}\n")).unwrap();
            let mistakes = crate::recipe::load(&path).unwrap_err().render(false);
            assert!(mistakes.contains(expected), "{mistakes}");
        }
    }

    #[test]
    fn the_carried_recipes_are_complete() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in RECIPES {
            fs::write(folder.path().join(name), text).unwrap();
        }
        for name in [CLUSTER, DEMO, TOOLS] {
            let recipe = crate::recipe::load(&folder.path().join(name))
                .unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)));
            // A command that needs only QEMU must not compile a kubelet.
            assert_eq!(recipe.kubernetes.is_none(), name == TOOLS);
        }
    }
}
