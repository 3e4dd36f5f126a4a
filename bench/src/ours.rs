//! Our side of the builds: the base recipe without its kubelet, built by the program itself, in a cache for the benchmark
//! alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use slipway::host::cache::{self, Cache};
use slipway::host::session::Session;
use slipway::lock::{self, LockedRecipe, Mode};
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
    /// The program `slipway`.
    program: PathBuf,
}

/// Seconds of a build, and of its steps.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    /// Wall-clock time from the program's start to its end.
    pub(crate) seconds: f64,
    /// Name and seconds of the steps that were not cached.
    pub(crate) steps: Vec<(String, f64)>,
}

impl Ours {
    /// Compiles the program, writes the recipe to `folder`, and builds it once, which fills the cache with the packages and
    /// the archive's indexes.
    pub(crate) fn prepare(session: &Session, folder: &Path, base: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join("bench.toml");
        let text = fs::read_to_string(base.join(BASE)).context("reading the base recipe")?;
        fs::write(&path, derived(&text)?)?;
        change(folder, "first")?;
        let recipe = recipe::load(&path)?;
        // mkosi installs the archive's current packages; ours must be the same.
        let locked = lock::pin(session, recipe, Mode::Renew)?;
        for set in SETS {
            locked.fetch(session, set)?;
        }
        let ours = Self {
            locked,
            folder: folder.to_owned(),
            program: program()?,
        };
        ours.link_packages(&session.cache)?;
        ours.build()?;
        Ok(ours)
    }

    fn cache_folder(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// Links the packages, which are fetched already, into the benchmark's cache.
    fn link_packages(&self, from: &Cache) -> Result<()> {
        let cache = Cache::at(self.cache_folder())?;
        let packages = SETS
            .iter()
            .filter_map(|set| self.locked.lock.sets.get(*set));
        for package in packages.flatten() {
            let to = cache.object(&package.sha256);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            let from = from.object(&package.sha256);
            match fs::hard_link(&from, &to) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("linking {}", from.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Empties the cache except for the downloads, and removes the output and the lock: the next build chooses the packages
    /// anew, as mkosi's apt does.
    pub(crate) fn make_cold(&self) -> Result<()> {
        for name in names(&self.cache_folder())? {
            if name != "downloads" {
                cache::remove(&self.cache_folder().join(name))?;
            }
        }
        cache::remove(&self.folder.join("out"))?;
        let lock = self.locked.recipe.lock_path();
        match fs::remove_file(&lock) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", lock.display()))
            }
            _ => Ok(()),
        }
    }

    /// Writes `word` to the overlay's file.
    pub(crate) fn change(&self, word: &str) -> Result<()> {
        change(&self.folder, word)
    }

    /// Builds with the cache as it is, as a user does: by the program, whose start and end count.
    pub(crate) fn build(&self) -> Result<Timed> {
        self.build_with(&[])
    }

    /// Builds a variant of the recipe: the same packages in an image of another version.
    pub(crate) fn variant(&self, number: usize) -> Result<Timed> {
        self.build_with(&["--set", &format!("image.version=9.{number}")])
    }

    /// Builds the recipe with a package more, which is locked first; then recipe and lock are as before.
    pub(crate) fn with_package(&self, package: &str) -> Result<Timed> {
        let (recipe, lock) = (&self.locked.recipe.path, self.locked.recipe.lock_path());
        let text = fs::read_to_string(recipe).context("reading the recipe")?;
        let locked = fs::read(&lock).context("reading the lock")?;
        fs::write(recipe, with_package(&text, package)?)?;
        let built = self.build();
        fs::write(recipe, text)?;
        fs::write(lock, locked)?;
        built
    }

    /// Builds this many variants of the recipe in one run of the program, none of which was built before; gives the seconds of all.
    pub(crate) fn variants(&self, number: u16) -> Result<f64> {
        let folder = self.folder.join("variants");
        cache::remove(&folder)?;
        fs::create_dir_all(&folder)?;
        let recipe = folder.join("variants.toml");
        fs::write(&recipe, variants(&self.locked.recipe.path, number))?;
        let out = folder.join("out");
        let seconds = self.start(&recipe, &out, &[])?.seconds;
        let built = names(&out)?.into_iter();
        let built = built.filter(|name| out.join(name).join("SHA256SUMS").is_file());
        let built = built.count();
        ensure!(
            built == usize::from(number),
            "{built} of {number} variants were built"
        );
        cache::remove(&folder)?;
        Ok(seconds)
    }

    fn build_with(&self, arguments: &[&str]) -> Result<Timed> {
        let recipe = &self.locked.recipe.path;
        self.start(recipe, &self.folder.join("out"), arguments)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "the tool itself is what is measured, as a user starts it"
    )]
    fn start(&self, recipe: &Path, output: &Path, arguments: &[&str]) -> Result<Timed> {
        let begin = Instant::now();
        let done = Command::new(&self.program)
            .args(["--json", "build"])
            .args(arguments)
            .arg(recipe)
            .arg("--output")
            .arg(output)
            .env("SLIPWAY_CACHE", self.cache_folder())
            .output()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let seconds = begin.elapsed().as_secs_f64();
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "slipway build failed: {said}");
        Ok(Timed {
            seconds,
            steps: made_steps(&said),
        })
    }
}

/// Name and seconds of the steps that were made, from the events that the program prints with `--json`.
fn made_steps(said: &str) -> Vec<(String, f64)> {
    let events = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let made = events.filter(|event| event["event"] == "end" && event["outcome"] == "made");
    let steps = made.filter_map(|event| {
        let name = event["step"].as_str()?.to_owned();
        Some((name, event["seconds"].as_f64()?))
    });
    steps.collect()
}

/// The names in a folder.
fn names(folder: &Path) -> Result<Vec<std::ffi::OsString>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name()));
    names.collect()
}

/// Compiles the program `slipway` as it is shipped; gives its path.
#[allow(
    clippy::disallowed_methods,
    reason = "Cargo compiles what is measured, with the compiler that compiled the benchmark"
)]
fn program() -> Result<PathBuf> {
    let done = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--package", "slipway"])
        .args([
            "--bin",
            "slipway",
            "--message-format",
            "json-render-diagnostics",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("starting Cargo")?;
    ensure!(done.status.success(), "slipway does not compile");
    let text = String::from_utf8_lossy(&done.stdout);
    match executable(&text) {
        Some(path) => Ok(path),
        None => bail!("Cargo names no program slipway"),
    }
}

/// The program in Cargo's messages
/// (<https://doc.rust-lang.org/cargo/reference/external-tools.html#artifact-messages>).
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["name"] == "slipway")
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
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

/// A recipe with a package more.
fn with_package(recipe: &str, package: &str) -> Result<String> {
    let mut recipe: toml::Table = recipe.parse().context("reading the recipe")?;
    let packages = recipe
        .get_mut("debian")
        .and_then(|debian| debian.get_mut("packages"))
        .and_then(toml::Value::as_array_mut)
        .context("the recipe has no packages")?;
    packages.push(package.into());
    Ok(recipe.to_string())
}

/// A recipe of variants of another one: each has another version, every second one a file more.
fn variants(base: &Path, number: u16) -> String {
    let base = base.display();
    let mut text = format!("extends = \"{base}\"\n");
    for variant in 1..=number {
        text += &format!("[variants.v{variant}.image]\nversion = \"1.{variant}\"\n");
        if variant % 2 == 0 {
            text += &format!(
                "[variants.v{variant}.files.\"/etc/variant\"]\ncontent = \"{variant}\\n\"\n"
            );
        }
    }
    text
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_steps_and_the_program_are_read_from_what_is_printed() {
        let said = r#"{"event":"begin","step":"lock"}
{"event":"end","step":"lock","outcome":"made","seconds":1.5,"bytes":7}
{"event":"end","step":"tools","outcome":"hit","seconds":0.1,"bytes":null}
a warning
{"event":"end","step":"root","outcome":"made","seconds":2,"bytes":null}"#;
        let steps = [("lock".to_owned(), 1.5), ("root".to_owned(), 2.0)];
        assert_eq!(made_steps(said), steps);
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"image"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"slipway"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"slipway"},"executable":"/t/release/slipway"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some("/t/release/slipway".into()));
        assert_eq!(executable("{}"), None);
    }

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

    #[test]
    fn thirty_variants_are_of_one_recipe_and_a_package_more_changes_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
        let text = fs::read_to_string(base.join(BASE)).unwrap();
        let path = folder.path().join("bench.toml");
        let text = derived(&text).unwrap();
        fs::write(&path, &text).unwrap();
        change(folder.path(), "one").unwrap();
        let base = recipe::load(&path).unwrap();
        fs::create_dir(folder.path().join("variants")).unwrap();
        let several = folder.path().join("variants/variants.toml");
        fs::write(&several, variants(&path, 30)).unwrap();
        let names = recipe::variants(&several).unwrap();
        assert_eq!(names.len(), 30);
        let (mut versions, mut files) = (BTreeSet::new(), 0);
        for name in names {
            let choice = recipe::Choice {
                variant: Some(name.clone()),
                ..recipe::Choice::default()
            };
            let one = recipe::load_as(&several, &choice).unwrap();
            assert_eq!(one.image.name, format!("bench-{name}"));
            assert_eq!(one.debian.packages, base.debian.packages);
            files += one.files.len() - base.files.len();
            versions.insert(one.image.version);
        }
        assert_eq!((versions.len(), files), (30, 15));
        fs::write(&path, with_package(&text, "jq").unwrap()).unwrap();
        let more = recipe::load(&path).unwrap();
        let added = more.debian.packages.iter();
        let added = added.filter(|name| !base.debian.packages.contains(name));
        assert_eq!(added.collect::<Vec<_>>(), ["jq"]);
        assert_eq!(more.files.len(), base.files.len());
    }
}
