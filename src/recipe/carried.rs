//! The recipes that are embedded in the program, so that a user needs no other file.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::host::atomic_file;
use crate::host::cache::Cache;

/// The embedded recipes: (file name, text). The demo with its parent, the nodes of a cluster, and a recipe for tools only.
const RECIPES: [(&str, &str); 4] = [
    (CLUSTER, include_str!("../../recipes/cluster.toml")),
    (DEMO, include_str!("../../recipes/demo.toml")),
    ("node.toml", include_str!("../../recipes/node.toml")),
    (TOOLS, include_str!("carried/tools.toml")),
];
const CLUSTER: &str = "cluster.toml";
const DEMO: &str = "demo.toml";
const TOOLS: &str = "tools.toml";

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
