//! The module `debian` against Debian's programs: apt chooses the same packages for every recipe here and accepts the
//! same signatures, and the pinned keys are those of Debian's keyring package.
//!
//! Without the standard test harness, since an ordinary user becomes root of a namespace before the first thread
//! starts.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic and talks to who runs it"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use slipway::debian::Mirrors;
use slipway::debian::archive::suites;
use slipway::debian::mirror::{ARCHIVE, Host};
use slipway::host::progress::Kind;
use slipway::host::sandbox::{Sandbox, become_root_of_namespace};
use slipway::host::session::Session;
use slipway::install::tools;
use slipway::lock::{self, Lock};
use slipway::recipe::{Recipe, SET_ROOT, SetRequest, load};

/// apt and the programs that it runs: dpkg for the architecture, gpgv for signatures.
const APT: &[&str] = &["apt", "debian-archive-keyring", "dpkg", "gpgv"];
/// Path of apt's files inside the sandbox.
const PLACE: &str = "/slipway-oracle";

const KEYS_TEST: &str = "the_pinned_keys_are_those_of_debians_keyring_package";
const SETS_TEST: &str = "the_chosen_sets_are_those_of_apt";

fn main() -> Result<()> {
    // The only supported arguments of the standard harness: names that select tests. These two share their set-up and
    // run together.
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let meant = |filter: &String| {
        [KEYS_TEST, SETS_TEST]
            .iter()
            .any(|name| name.contains(filter))
    };
    if !filters.is_empty() && !filters.iter().any(meant) {
        println!("tests {KEYS_TEST}, {SETS_TEST} ... filtered out");
        return Ok(());
    }
    run()
}

fn run() -> Result<()> {
    become_root_of_namespace()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut recipes = Vec::new();
    for entry in fs::read_dir(folder.join("recipes"))? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            recipes.push(load(&path).map_err(|mistakes| anyhow::anyhow!("{mistakes}"))?);
        }
    }
    recipes.sort_by(|a, b| a.path.cmp(&b.path));
    ensure!(!recipes.is_empty(), "there is no recipe to ask apt about");
    let session = Session::open(Kind::Quiet)?;
    let mut oracle = Oracle::new(&session, &recipes[0])?;
    oracle.has_the_pinned_keys(&folder.join("src/debian/keys"))?;
    println!("test {KEYS_TEST} ... ok");
    let mut asked: Vec<SetRequest> = Vec::new();
    for recipe in &recipes {
        // Most sets of tools are the same in every recipe: each distinct one is compared once.
        let mut requests = recipe.sets();
        requests.extend(with_recommended(&requests));
        requests.retain(|request| !asked.contains(request));
        if requests.is_empty() {
            continue;
        }
        if let Err(error) = agree(&session, &oracle, recipe, &requests) {
            // The archive may have been updated between apt's reading and ours: then both read it again, and once is enough.
            println!("{error:#}; the indexes are read again");
            oracle = Oracle::new(&session, recipe)?;
            agree(&session, &oracle, recipe, &requests)?;
        }
        asked.extend(requests);
    }
    println!(
        "test {SETS_TEST} ... ok ({} sets of {} recipes)",
        asked.len(),
        recipes.len()
    );
    Ok(())
}

/// The root's set once more, with what it recommends.
fn with_recommended(requests: &[SetRequest]) -> Option<SetRequest> {
    let root = requests.iter().find(|request| request.name == SET_ROOT)?;
    Some(SetRequest {
        name: "recommended".into(),
        recommends: true,
        ..root.clone()
    })
}

/// Chooses the sets, and asks apt about each.
fn agree(
    session: &Session,
    oracle: &Oracle,
    recipe: &Recipe,
    requests: &[SetRequest],
) -> Result<()> {
    let chosen = lock::resolve(session, recipe, requests)?.lock;
    for request in requests {
        oracle
            .agrees(request, &chosen)
            .with_context(|| format!("set {} of {}", request.name, recipe.path.display()))?;
    }
    Ok(())
}

/// apt in a tools tree, with the recipe's suites and an empty system.
struct Oracle {
    sandbox: Sandbox,
    tree: std::path::PathBuf,
    suite: String,
    _place: tempfile::TempDir,
}

impl Oracle {
    fn new(session: &Session, recipe: &Recipe) -> Result<Self> {
        let request = SetRequest {
            name: "tools-apt".into(),
            packages: APT.iter().map(|name| (*name).to_owned()).collect(),
            dependencies: true,
            essential: false,
            recommends: false,
            backports: Vec::new(),
        };
        let locked = lock::resolve(session, recipe, std::slice::from_ref(&request))?;
        let tools = tools::install(
            session,
            &request.name,
            &locked.fetch(session, &request.name)?,
        )?;
        let place = tempfile::tempdir()?;
        for folder in ["lists/partial", "cache/archives/partial", "etc/parts"] {
            fs::create_dir_all(place.path().join(folder))?;
        }
        fs::write(place.path().join("status"), "")?;
        fs::write(place.path().join("sources.list"), sources(recipe)?)?;
        let sandbox = tools.sandbox().network(true).bind(place.path(), PLACE);
        let oracle = Self {
            sandbox,
            tree: tools.root,
            suite: recipe.debian.suite.clone(),
            _place: place,
        };
        // apt checks the signatures of the same files by gpgv; if it fails, so must this test.
        oracle.apt(&["update", "--error-on=any"])?;
        Ok(oracle)
    }

    fn apt(&self, arguments: &[&str]) -> Result<String> {
        let options = [
            format!("Dir::State={PLACE}"),
            format!("Dir::State::status={PLACE}/status"),
            format!("Dir::State::lists={PLACE}/lists"),
            format!("Dir::Cache={PLACE}/cache"),
            format!("Dir::Etc::sourcelist={PLACE}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::Etc::parts={PLACE}/etc/parts"),
            "Dir::Etc::preferences=-".to_owned(),
            format!("Dir::Etc::preferencesparts={PLACE}/etc/parts"),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        let mut command = self.sandbox.command("apt-get");
        for option in &options {
            command = command.args(["-o", option]);
        }
        Ok(String::from_utf8(command.args(arguments).run()?)?)
    }

    /// Names and versions that apt would install on an empty system.
    fn choice(&self, request: &SetRequest) -> Result<BTreeSet<String>> {
        let recommends = match request.recommends {
            true => "--install-recommends",
            false => "--no-install-recommends",
        };
        let mut arguments = vec!["--simulate", recommends, "install"];
        if request.essential {
            // apt counts itself among the essential packages, although the field `Essential` does not.
            arguments.push("?and(?essential, ?not(?exact-name(apt)))");
        }
        let names: Vec<String> = request
            .packages
            .iter()
            .map(|name| {
                if request.backports.contains(name) {
                    format!("{name}/{}-backports", self.suite)
                } else {
                    name.clone()
                }
            })
            .collect();
        arguments.extend(names.iter().map(String::as_str));
        // `Inst NAME (VERSION SUITE [ARCHITECTURE])`
        Ok(self
            .apt(&arguments)?
            .lines()
            .filter_map(|line| {
                let mut words = line.strip_prefix("Inst ")?.split(' ');
                let name = words.next()?;
                Some(format!("{name} {}", words.next()?.trim_start_matches('(')))
            })
            .collect())
    }

    fn agrees(&self, request: &SetRequest, chosen: &Lock) -> Result<()> {
        let ours: BTreeSet<String> = chosen.sets[&*request.name]
            .iter()
            .map(|package| format!("{} {}", package.name, package.version))
            .collect();
        let apts = self.choice(request)?;
        let only_ours: Vec<&String> = ours.difference(&apts).collect();
        ensure!(only_ours.is_empty(), "apt does not choose {only_ours:?}");
        ensure!(!ours.is_empty(), "nothing was chosen");
        if request.dependencies {
            let only_apts: Vec<&String> = apts.difference(&ours).collect();
            ensure!(only_apts.is_empty(), "only apt chooses {only_apts:?}");
        }
        Ok(())
    }

    fn has_the_pinned_keys(&self, folder: &Path) -> Result<()> {
        let mut keys = 0;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().context("a key has a name")?;
            let debians = self.tree.join("usr/share/keyrings").join(name);
            ensure!(
                fs::read(&path)? == fs::read(&debians)?,
                "{} is not {}",
                path.display(),
                debians.display()
            );
            keys += 1;
        }
        ensure!(keys > 0, "no key is pinned");
        Ok(())
    }
}

/// The suites of the recipe as apt's sources.
fn sources(recipe: &Recipe) -> Result<String> {
    let debian = &recipe.debian;
    let mirrors = Mirrors::find(
        debian.mirror.as_deref(),
        debian.security_mirror.as_deref(),
        &Host::here(),
    )?;
    let mut text = String::new();
    for suite in suites(&debian.suite, true) {
        let base = if suite.archive == ARCHIVE {
            &mirrors.main
        } else {
            &mirrors.security
        };
        text += &format!(
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.pgp] {base} {} {}\n",
            suite.name,
            debian.components.join(" ")
        );
    }
    Ok(text)
}
