//! Our side of the builds: the base recipe without its kubelet, in a cache for the benchmark alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use slipway::host::cache::{self, Cache};
use slipway::host::progress::{Kind, Progress};
use slipway::host::session::Session;
use slipway::lock::{self, LockedRecipe, Mode};
use slipway::pipeline::{self, Request};
use slipway::recipe::{self, SET_KERNEL, SET_ROOT, SET_TOOLS_BUILD};

/// The recipe with the packages, files and units of both builds.
const BASE: &str = "node.toml";
/// Tables without an equivalent in mkosi.
const LEFT_OUT: &[&str] = &["kubernetes", "containers"];
/// The overlay and its only file.
pub(crate) const OVERLAY: &str = "overlay";
const CHANGED: &str = "etc/bench";
/// The package sets of a build.
const SETS: &[&str] = &[SET_TOOLS_BUILD, SET_ROOT, SET_KERNEL];

/// Our builds.
#[derive(Debug)]
pub(crate) struct Ours {
    /// The recipe with a fresh lock.
    pub(crate) locked: LockedRecipe,
    folder: PathBuf,
    downloads: PathBuf,
}

/// Seconds of a build, and of its steps.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    /// Wall-clock time from the request to the finished folder.
    pub(crate) seconds: f64,
    /// Name and seconds of the steps that were not cached.
    pub(crate) steps: Vec<(String, f64)>,
}

impl Ours {
    /// Writes the recipe to `folder`, renews its lock, and fetches its packages.
    pub(crate) fn prepare(session: &Session, folder: &Path, base: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join("bench.toml");
        let text = fs::read_to_string(base.join(BASE)).context("reading the base recipe")?;
        fs::write(&path, derived(&text)?)?;
        change(folder, "first")?;
        let recipe = recipe::load(&path)?;
        // mkosi installs the archive's current packages; ours must be the same.
        let locked = lock::pin(session, recipe, Mode::Renew)?;
        let downloads = session.cache.root().join("downloads");
        for set in SETS {
            locked.fetch(session, set)?;
        }
        Ok(Self {
            locked,
            folder: folder.to_owned(),
            downloads,
        })
    }

    fn cache_folder(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// Empties the cache except for the downloads.
    pub(crate) fn make_cold(&self) -> Result<()> {
        cache::remove(&self.cache_folder())?;
        cache::remove(&self.folder.join("out"))?;
        let cache = Cache::at(self.cache_folder())?;
        let packages = SETS
            .iter()
            .filter_map(|set| self.locked.lock.sets.get(*set));
        for package in packages.flatten() {
            let to = cache.object(&package.sha256);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            let from = self
                .downloads
                .join(&package.sha256[..2])
                .join(&package.sha256);
            match fs::hard_link(&from, &to) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("linking {}", from.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes `word` to the overlay's file.
    pub(crate) fn change(&self, word: &str) -> Result<()> {
        change(&self.folder, word)
    }

    /// Builds with the cache as it is.
    pub(crate) fn build(&self) -> Result<Timed> {
        let request = Request {
            recipe: self.locked.recipe.path.clone(),
            output: self.folder.join("out"),
            lock: Mode::Locked,
        };
        let begin = Instant::now();
        let cache = Cache::at(self.cache_folder())?;
        let session = Session::new(cache, Progress::new(Kind::Quiet));
        pipeline::build(&session, &request)?;
        let seconds = begin.elapsed().as_secs_f64();
        let steps = session
            .progress
            .records()
            .into_iter()
            .filter(|step| step.outcome == slipway::host::progress::Outcome::Made)
            .map(|step| (step.name, step.seconds))
            .collect();
        Ok(Timed { seconds, steps })
    }
}

/// The base recipe under the name `bench`, with an overlay and without the tables of `LEFT_OUT`.
fn derived(base: &str) -> Result<String> {
    let mut recipe: toml::Table = base.parse().context("reading the base recipe")?;
    for key in LEFT_OUT {
        recipe.remove(*key);
    }
    let image = recipe
        .get_mut("image")
        .and_then(toml::Value::as_table_mut)
        .context("the base recipe has no [image]")?;
    image.insert("name".into(), "bench".into());
    let trees = toml::Table::from_iter([("trees".to_owned(), vec![OVERLAY].into())]);
    recipe.insert("overlay".into(), trees.into());
    Ok(recipe.to_string())
}

fn change(folder: &Path, word: &str) -> Result<()> {
    let path = folder.join(OVERLAY).join(CHANGED);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&path, format!("{word}\n")).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_derived_recipe_is_the_base_without_its_kubelet() {
        let folder = tempfile::tempdir().unwrap();
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
        let text = fs::read_to_string(base.join(BASE)).unwrap();
        let path = folder.path().join("bench.toml");
        fs::write(&path, derived(&text).unwrap()).unwrap();
        change(folder.path(), "one").unwrap();
        let (base, derived) = (
            recipe::load(&base.join(BASE)).unwrap(),
            recipe::load(&path).unwrap(),
        );
        assert!(base.kubernetes.is_some() && derived.kubernetes.is_none());
        assert_eq!(derived.debian.packages, base.debian.packages);
        assert_eq!(derived.units, base.units);
        assert_eq!(derived.files.len(), base.files.len() + 1);
        assert_eq!(derived.image.name, "bench");
    }
}
