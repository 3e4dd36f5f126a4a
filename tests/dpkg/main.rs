//! The installation of packages against Debian's: each set is installed twice from the same files, by the build and by
//! real dpkg as debootstrap and apt run it, and the two trees are compared before anything is cleaned.
//!
//! By default the small sets in which packages divert and replace each other's files and ask for the host's name;
//! `--ignored` runs the others, `--include-ignored` all. An argument selects sets by a part of their name.
//!
//! Without the standard test harness, since an ordinary user becomes root of a namespace before the first thread
//! starts.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic and talks to who runs it"
)]

mod compare;
mod made;
mod reference;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use slipway::debian::pinned::Deb;
use slipway::host::progress::Kind;
use slipway::host::sandbox::become_root_of_namespace;
use slipway::host::session::Session;
use slipway::install::{self, Options};
use slipway::lock;
use slipway::recipe::{Recipe, SET_ROOT, SetRequest, load};

use reference::Reference;

/// A set of packages of the test.
struct Set {
    name: &'static str,
    packages: &'static [&'static str],
    /// Whether it takes too long for every run.
    long: bool,
    /// Whether the build keeps the documentation; scripts must work without.
    docs: bool,
}

const fn short(name: &'static str, packages: &'static [&'static str]) -> Set {
    Set {
        name,
        packages,
        long: false,
        docs: true,
    }
}

const fn long(name: &'static str, packages: &'static [&'static str]) -> Set {
    Set {
        name,
        packages,
        long: true,
        docs: true,
    }
}

/// The set of packages that the test makes, beside the essential ones.
const MADE: &str = "made";

const SETS: &[Set] = &[
    short(MADE, &["dpkg"]),
    // Divert files of systemd-sysv and of gzip.
    short("molly-guard", &["molly-guard", "systemd-sysv"]),
    short("zutils", &["zutils"]),
    // Its script of 1,400 programs does not run in ours.
    short("ca-certificates", &["ca-certificates"]),
    // Writes the host's name into its configuration.
    short("postfix", &["postfix"]),
    long("postgresql", &["postgresql"]),
    long("nginx-php", &["nginx", "php-fpm"]),
    long("docker", &["docker.io", "systemd-sysv"]),
    long("podman", &["podman", "systemd-sysv"]),
    long("python", &["python3", "python3-venv"]),
    // Its alternatives have manual pages as slaves.
    Set {
        docs: false,
        ..long("java", &["default-jre-headless"])
    },
    long("mariadb", &["mariadb-server"]),
    long("iscsi", &["open-iscsi", "multipath-tools", "systemd-sysv"]),
    long("ceph", &["ceph-mon", "ceph-osd"]),
    long("frr", &["frr"]),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    let (all, ignored) = (given("--include-ignored"), given("--ignored"));
    let filters: Vec<&String> = arguments
        .iter()
        .filter(|word| !word.starts_with('-'))
        .collect();
    let wanted = |name: &str, long: bool| {
        (all || long == ignored)
            && (filters.is_empty() || filters.iter().any(|part| test_name(name).contains(*part)))
    };
    become_root_of_namespace()?;
    let session = Session::open(Kind::Quiet)?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let base = recipe(&folder.join("recipes/node.toml"))?;
    let mut asked = vec![Reference::tools()];
    for set in SETS.iter().filter(|set| wanted(set.name, set.long)) {
        asked.push(request(set));
    }
    let recipes = match wanted("recipes", true) {
        true => recipes(folder)?,
        false => Vec::new(),
    };
    if asked.len() == 1 && recipes.is_empty() {
        println!("every set is filtered out");
        return Ok(());
    }
    let locked = lock::resolve(&session, &base, &asked)?;
    let reference = Reference::new(&session, &locked)?;
    let mut failed = Vec::new();
    for set in &asked[1..] {
        let docs = SETS
            .iter()
            .any(|other| other.name == set.name && other.docs);
        let mut debs = locked.fetch(&session, &set.name)?;
        let folder = tempfile::tempdir()?;
        if set.name == MADE {
            let odd = made::at_odds(&reference.tools, folder.path())?;
            refused(
                &session,
                &reference,
                &[debs.as_slice(), odd.as_slice()].concat(),
            )?;
            debs.extend(made::peaceful(&reference.tools, folder.path())?);
        }
        let which = (&*set.name, docs, locked.lock.epoch);
        check(&session, &reference, &debs, which, &mut failed)?;
    }
    for (name, recipe, request) in recipes {
        let locked = lock::resolve(&session, &recipe, &[request])?;
        let debs = locked.fetch(&session, SET_ROOT)?;
        let which = (name.as_str(), true, locked.lock.epoch);
        check(&session, &reference, &debs, which, &mut failed)?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("not as dpkg has it: {}", failed.join(", "))
}

fn test_name(name: &str) -> String {
    format!("{name}_is_installed_as_by_dpkg")
}

fn recipe(path: &Path) -> Result<Recipe> {
    load(path).map_err(|mistakes| anyhow::anyhow!("{mistakes}"))
}

fn request(set: &Set) -> SetRequest {
    SetRequest {
        name: set.name.into(),
        packages: set.packages.iter().map(|&name| name.to_owned()).collect(),
        dependencies: true,
        essential: true,
        recommends: false,
        backports: Vec::new(),
    }
}

/// The recipes here with distinct roots.
fn recipes(folder: &Path) -> Result<Vec<(String, Recipe, SetRequest)>> {
    let mut found: Vec<(String, Recipe, SetRequest)> = Vec::new();
    let mut paths: Vec<_> = fs::read_dir(folder.join("recipes"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    for path in paths {
        let recipe = recipe(&path)?;
        let sets = recipe.sets();
        let root = sets.into_iter().find(|set| set.name == SET_ROOT);
        let root = root.with_context(|| format!("{} has no root", path.display()))?;
        if found.iter().all(|(_, _, other)| *other != root) {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            found.push((format!("recipes/{name}"), recipe, root));
        }
    }
    Ok(found)
}

/// Two packages that have one path, of which neither may have it, are refused by both.
fn refused(session: &Session, reference: &Reference, debs: &[Deb]) -> Result<()> {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let options = Options {
        docs: true,
        ..Options::default()
    };
    let ours = install::install_only(session, debs, &place.path().join("ours"), &options);
    let theirs = reference.install(debs, &place.path().join("dpkg"), 0);
    for (result, text) in [
        (
            ours,
            "/usr/share/odd is in two packages, odd-a 1 and odd-b 1",
        ),
        (
            theirs,
            "trying to overwrite '/usr/share/odd', which is also in package odd-",
        ),
    ] {
        let error = format!(
            "{:#}",
            result.expect_err("one path of two packages is accepted")
        );
        ensure!(
            error.contains(text),
            "another refusal than {text:?}: {error}"
        );
    }
    println!("test one_path_of_two_packages_is_refused_as_by_dpkg ... ok");
    Ok(())
}

/// Installs a set twice and compares; a difference is printed, and its name kept.
fn check(
    session: &Session,
    reference: &Reference,
    debs: &[Deb],
    (name, docs, epoch): (&str, bool, u64),
    failed: &mut Vec<String>,
) -> Result<()> {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let (ours, theirs) = (place.path().join("ours"), place.path().join("dpkg"));
    let begin = Instant::now();
    let options = Options {
        epoch,
        docs,
        ..Options::default()
    };
    let installed = install::install_only(session, debs, &ours, &options);
    installed.with_context(|| format!("installing {name}"))?;
    let after = begin.elapsed();
    reference
        .install(debs, &theirs, options.epoch)
        .with_context(|| format!("installing {name} by dpkg"))?;
    let found = compare::trees(&ours, &theirs, docs)?;
    let times = format!(
        "{} packages, {:.1} s by the build, {:.1} s by dpkg, {} paths",
        debs.len(),
        after.as_secs_f32(),
        (begin.elapsed() - after).as_secs_f32(),
        found.paths
    );
    if std::env::var_os("SLIPWAY_KEEP_TREES").is_some() {
        println!("kept: {}", place.keep().display());
    }
    if found.differences.is_empty() {
        println!("test {} ... ok ({times})", test_name(name));
        return Ok(());
    }
    println!("test {} ... FAILED ({times})", test_name(name));
    for difference in &found.differences {
        println!("    {difference}");
    }
    failed.push(name.to_owned());
    Ok(())
}
