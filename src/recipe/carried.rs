//! The recipes that the program carries, so that one binary is all that a user needs.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::host::atomic_file;
use crate::host::cache::Cache;

/// The carried recipes: (file name, text). The demo and what it extends, and the one for tools alone.
const RECIPES: [(&str, &str); 3] = [
    (DEMO, include_str!("../../recipes/demo.toml")),
    ("node.toml", include_str!("../../recipes/node.toml")),
    (TOOLS, include_str!("carried/tools.toml")),
];
const DEMO: &str = "demo.toml";
const TOOLS: &str = "tools.toml";

/// The demo's recipe: the one below the present folder if this is a checkout of the repository, else the carried one,
/// written to the cache with its parent, where its lock then stands as well.
///
/// # Errors
/// If the cache cannot be written.
pub fn demo(cache: &Cache) -> Result<PathBuf> {
    let here = PathBuf::from("recipes/demo.toml");
    if here.is_file() {
        return Ok(here);
    }
    Ok(write(cache)?.join(DEMO))
}

/// A recipe for the tools trees alone: locking it asks for no kubelet.
///
/// # Errors
/// If the cache cannot be written.
pub fn tools(cache: &Cache) -> Result<PathBuf> {
    Ok(write(cache)?.join(TOOLS))
}

/// Writes the carried recipes to the cache.
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
    fn the_carried_recipes_are_complete() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in RECIPES {
            fs::write(folder.path().join(name), text).unwrap();
        }
        for name in [DEMO, TOOLS] {
            let recipe = crate::recipe::load(&folder.path().join(name))
                .unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)));
            // A tool that only wants QEMU must not compile a kubelet for it.
            assert_eq!(recipe.kubernetes.is_none(), name == TOOLS);
        }
    }
}
