//! Real packages whose scripts make secrets, and those whose programs call what only the packaging has: what is in an image of
//! them, and what a node makes of it.
//!
//! Without the standard test harness, since an ordinary user becomes root of a namespace before the first thread starts. A
//! name selects tests; `--ignored` selects those that take minutes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic and talks to who runs it"
)]

mod accounts;
mod first_boot;
mod known;
mod package;
mod refused;
mod runs;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use image::paths::VAR_PACKAGES;
use slipway::host::cache::Cache;
use slipway::host::progress::{Kind, Progress};
use slipway::host::sandbox::{Sandbox, become_root_of_namespace};
use slipway::host::session::Session;
use slipway::install::Rootfs;
use slipway::lock::{self, LockedRecipe, Mode};
use slipway::recipe;
use slipway::steps::rootfs;

/// A test, its name, and whether it takes minutes.
type Test = (&'static str, fn() -> Result<()>, bool);

const TESTS: &[Test] = &[
    (
        "secrets_are_in_no_image_and_made_on_first_boot",
        first_boot::secrets,
        false,
    ),
    (
        "two_installations_of_one_lock_are_the_same_bytes",
        first_boot::same_bytes,
        false,
    ),
    (
        "what_is_known_to_follow_from_packages_does_on_another_day",
        known::another_day,
        false,
    ),
    (
        "postgresql_makes_its_cluster_on_first_boot",
        first_boot::postgresql,
        true,
    ),
    (
        "mariadb_makes_its_data_on_first_boot",
        first_boot::mariadb,
        true,
    ),
    (
        "postfix_makes_its_aliases_on_a_node",
        first_boot::aliases,
        false,
    ),
    (
        "what_scripts_generate_is_refused_unless_the_recipe_takes_it",
        refused::generated,
        false,
    ),
    (
        "numbers_of_accounts_do_not_depend_on_other_packages",
        accounts::numbers,
        true,
    ),
    ("nginx_has_start_stop_daemon", runs::nginx, false),
    ("named_packages_are_whole", runs::named, false),
    (
        "scripts_have_their_interpreters_and_helpers",
        runs::postfix_and_php,
        true,
    ),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let long = arguments.iter().any(|argument| argument == "--ignored");
    let names: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    become_root_of_namespace()?;
    let mut failed = Vec::new();
    for (name, test, is_long) in TESTS {
        let is_meant = names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
        if !is_meant {
            continue;
        }
        if *is_long != long {
            println!("test {name} ... ignored");
            continue;
        }
        match test() {
            Ok(()) => println!("test {name} ... ok"),
            Err(error) => {
                println!("test {name} ... FAILED\n{error:#}");
                failed.push(*name);
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("failed: {}", failed.join(", ")),
    }
}

/// A recipe with its lock, a cache with downloads only, and what is installed from them.
struct Place {
    folder: PathBuf,
    session: Session,
    _held: tempfile::TempDir,
}

impl Place {
    /// A recipe of these packages, with more lines.
    fn new(packages: &[&str], more: &str) -> Self {
        let held = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = held.path().to_owned();
        let names = packages.join("\", \"");
        let recipe = format!(
            "[image]\nname = \"test\"\nversion = \"1\"\narchitecture = \"x86-64\"\n\
             [kernel]\npackage = \"linux-image-cloud-amd64\"\nplatforms = [\"qemu\"]\n\
             [debian]\npackages = [\"{names}\"]\n{more}"
        );
        fs::write(folder.join("test.toml"), recipe).unwrap();
        // Downloads are verified at each use, so a shared folder hides no error.
        let cache = folder.join("cache");
        Cache::at(cache.clone()).unwrap();
        let shared = Cache::open().unwrap().root().join("downloads");
        fs::create_dir_all(&shared).unwrap();
        fs::remove_dir_all(cache.join("downloads")).ok();
        std::os::unix::fs::symlink(shared, cache.join("downloads")).unwrap();
        let session = Session::new(Cache::at(cache).unwrap(), Progress::new(Kind::Quiet));
        Self {
            folder,
            session,
            _held: held,
        }
    }

    /// The same recipe and lock, and nothing made of it yet.
    fn again(&self) -> Self {
        let other = Self::new(&[], "");
        for name in ["test.toml", "test.lock"] {
            fs::copy(self.folder.join(name), other.folder.join(name)).unwrap();
        }
        other
    }

    /// Installs the recipe's packages.
    fn locked(&self) -> Result<LockedRecipe> {
        let recipe = recipe::load(&self.folder.join("test.toml"))?;
        lock::pin(&self.session, recipe, Mode::Make)
    }

    fn install(&self) -> Result<Rootfs> {
        rootfs::install(&self.session, &self.locked()?)
    }

    /// Writes an installed root as a tree, with what systemd-tmpfiles puts into its `/var`.
    fn tree(&self, rootfs: &Rootfs) -> Result<PathBuf> {
        let tree = self.folder.join("tree");
        fs::create_dir(&tree)?;
        let mut archive = tar::Archive::new(fs::File::open(&rootfs.tar)?);
        archive.set_preserve_permissions(true);
        archive.set_preserve_ownerships(true);
        archive.unpack(&tree)?;
        Sandbox::new(&tree)
            .command("systemd-tmpfiles")
            .args(["--create", VAR_PACKAGES])
            .run()?;
        Ok(tree)
    }
}

fn has(rootfs: &Rootfs, path: &str) -> bool {
    rootfs.entries().iter().any(|entry| entry.path == path)
}

/// Runs the program of a unit in a tree, by the unit's own line.
fn start(tree: &Path, unit: &str) -> Result<()> {
    let text = fs::read_to_string(tree.join("usr/lib/systemd/system").join(unit))?;
    let program = text
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    Sandbox::new(tree)
        .hostname("node-1")
        .command(program.unwrap())
        .run()?;
    Ok(())
}
