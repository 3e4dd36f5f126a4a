//! What machines share, through real stores on loopback: Debian's docker-registry, a server of S3's protocol that checks every
//! signature, and versitygw, an S3 server of another project. Results of steps, whole builds, and the files of locks.
//!
//! Whole builds and versitygw, which is compiled, are left out of CI, since they take minutes: `cargo test --test share -- --ignored`.
//! Without the standard harness, since an ordinary user becomes root of a namespace before the first thread starts.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic and talks to who runs it"
)]

mod builds;
mod farm;
mod parts;
mod registry;
mod s3;
mod server;
mod versitygw;

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fetch::{Credentials, Endpoints};
use slipway::host::cache::{Cache, Key};
use slipway::host::interrupt::Interrupt;
use slipway::host::progress::{Kind, Progress};
use slipway::host::sandbox::become_root_of_namespace;
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::lock::{self, LockedRecipe};
use slipway::recipe::{SetRequest, load};
use slipway::share::keys::SecretKey;
use slipway::share::remote::RemoteCache;
use slipway::share::settings::Remote;

use builds::Access;
use s3::{Fault, S3};
use server::Server;
use versitygw::Versitygw;

/// The set of the packages.
const SET: &str = "tools-share";

type Test = fn(&Bench) -> Result<()>;

const TESTS: &[(&str, Test)] = &[
    ("results_go_through_a_registry", |bench| {
        shared_through(bench, (&bench.registry("results"), &bench.options()))
    }),
    ("results_go_through_a_bucket", results_go_through_a_bucket),
    (
        "large_objects_go_in_parts",
        parts::large_objects_go_in_parts,
    ),
    ("a_bucket_that_fails_ends_no_build", a_bucket_that_fails),
    ("files_of_a_lock_are_in_a_registry", |bench| {
        files_of_a_lock(bench, &bench.registry("files"))
    }),
    ("jobs_are_those_of_the_api", farm::jobs_are_those_of_the_api),
    ("files_of_a_lock_are_in_a_bucket", |bench| {
        files_of_a_lock(bench, "s3://bucket/files/of/locks")
    }),
];

const LONG: &[(&str, Test)] = &[
    (
        "the_second_machine_makes_no_step_through_a_registry",
        |bench| builds::on_two_machines(bench, bench.access(&bench.registry("builds"))),
    ),
    (
        "the_second_machine_makes_no_step_through_a_bucket",
        |bench| builds::on_two_machines(bench, bench.access("s3://bucket/builds")),
    ),
    ("results_go_through_versitygw", versitygw::results),
    (
        "large_objects_go_in_parts_to_versitygw",
        versitygw::large_objects,
    ),
    ("what_versitygw_refuses_ends_no_build", versitygw::refusals),
    (
        "the_second_machine_makes_no_step_through_versitygw",
        versitygw::on_two_machines,
    ),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let long = arguments.iter().any(|argument| argument == "--ignored");
    let filters: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let meant = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(*f));
    let chosen = if long { LONG } else { TESTS };
    let chosen: Vec<_> = chosen.iter().filter(|(name, _)| meant(name)).collect();
    if !long {
        for (name, _) in LONG.iter().filter(|(name, _)| meant(name)) {
            println!("test {name} ... ignored");
        }
    }
    if chosen.is_empty() {
        return Ok(());
    }
    become_root_of_namespace()?;
    let session = Session::open(Kind::Quiet)?;
    let bench = Bench::new(&session)?;
    for (name, test) in chosen {
        let began = Instant::now();
        test(&bench)?;
        println!("test {name} ... ok, {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Debian's packages of these tests: one set, since each choice of packages reads all of the archive's lists.
const PACKAGES: [&str; 4] = ["catatonit", "docker-registry", "kubectl", "libc6"];

/// The servers, and the key of the machines.
pub(crate) struct Bench {
    /// The packages, which are also the files of a lock.
    locked: LockedRecipe,
    pub(crate) tools: Tools,
    registry: Server,
    pub(crate) s3: S3,
    /// Started by the first test that asks for it; its folder is below `place`.
    versitygw: OnceCell<Versitygw>,
    place: tempfile::TempDir,
}

impl Bench {
    fn new(session: &Session) -> Result<Self> {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        SecretKey::create("builders", &place.path().join("key"))?;
        let recipe = place.path().join("small.toml");
        fs::write(&recipe, builds::RECIPE)?;
        let request = SetRequest {
            name: SET.into(),
            packages: PACKAGES.map(str::to_owned).into(),
            dependencies: false,
            essential: false,
            recommends: false,
            backports: Vec::new(),
        };
        let recipe = load(&recipe)?;
        let locked = lock::resolve(session, &recipe, std::slice::from_ref(&request))?;
        let tools = tools::install(session, SET, &locked.fetch(session, SET)?)?;
        Ok(Self {
            registry: registry::start(&tools)?,
            locked,
            tools,
            s3: S3::serve(),
            versitygw: OnceCell::new(),
            place,
        })
    }

    fn registry(&self, name: &str) -> String {
        format!("oci://{}/slipway/{name}", self.registry.host)
    }

    fn versitygw(&self) -> Result<&Versitygw> {
        if let Some(server) = self.versitygw.get() {
            return Ok(server);
        }
        let server = Versitygw::start(&self.locked, &self.tools, self.place.path())?;
        Ok(self.versitygw.get_or_init(|| server))
    }

    /// How a store is asked that is a registry or in a bucket of our own server.
    fn access<'a>(&'a self, url: &'a str) -> Access<'a> {
        Access {
            url,
            endpoint: &self.s3.url,
            secret: s3::SECRET,
        }
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.place.path().join("key")
    }

    /// A folder of a test's own.
    pub(crate) fn folder(&self) -> Result<tempfile::TempDir> {
        Ok(tempfile::tempdir_in(self.place.path())?)
    }

    fn options(&self) -> fetch::Options {
        options(&self.s3.url, s3::SECRET)
    }

    /// The cache of a machine that shares results by a store, and signs them or only reads.
    fn machine(
        &self,
        folder: &Path,
        (url, options): (&str, &fetch::Options),
        signs: bool,
    ) -> Result<Cache> {
        let mut cache = Cache::at(folder.to_owned())?;
        let secret = SecretKey::read(&self.key())?;
        let remote = Remote {
            url: url.to_owned(),
            trusted: vec![secret.public()?],
            secret: signs.then_some(secret),
        };
        let progress = Progress::new(Kind::Quiet);
        let shared = RemoteCache::open(remote, options, &progress, folder, &Interrupt::default())?;
        cache.share(Some(Arc::new(shared)));
        Ok(cache)
    }
}

/// How clients ask the server of S3's protocol at a URL.
fn options(url: &str, secret: &str) -> fetch::Options {
    fetch::Options {
        credentials: Some(Credentials {
            key: s3::KEY.to_owned(),
            secret: secret.to_owned(),
            token: None,
        }),
        endpoints: Endpoints {
            s3: Some(url.to_owned()),
            s3_region: Some(s3::REGION.to_owned()),
            ..Endpoints::default()
        },
        ..fetch::Options::default()
    }
}

fn key(name: &str) -> Key {
    Key::of_data("share", 1).text("name", name).finish()
}

/// Makes a result of some size; whether it was there.
fn made(cache: &Cache, name: &str) -> Result<bool> {
    let content = name.repeat(100_000);
    let made = cache.step("share", &key(name), |folder| {
        Ok(fs::write(folder.join("file"), &content)?)
    })?;
    ensure!(fs::read_to_string(made.path.join("file"))? == content);
    Ok(made.hit)
}

fn shared_through(bench: &Bench, store: (&str, &fetch::Options)) -> Result<()> {
    let folder = bench.folder()?;
    let first = bench.machine(&folder.path().join("first"), store, true)?;
    for name in ["a", "b"] {
        ensure!(!made(&first, name)?, "{name} was there");
    }
    finish(&first);
    let second = bench.machine(&folder.path().join("second"), store, false)?;
    for name in ["a", "b"] {
        ensure!(made(&second, name)?, "{name} was made again");
    }
    ensure!(!made(&second, "c")?);
    finish(&second);
    let third = bench.machine(&folder.path().join("third"), store, true)?;
    ensure!(
        !made(&third, "c")?,
        "a machine without a key has sent something"
    );
    finish(&third);
    Ok(())
}

fn finish(cache: &Cache) {
    cache.shared().unwrap().finish();
}

fn results_go_through_a_bucket(bench: &Bench) -> Result<()> {
    shared_through(bench, ("s3://bucket/results", &bench.options()))?;
    ensure!(bench.s3.refused().is_empty(), "{:?}", bench.s3.refused());
    ensure!(bench.s3.objects() == 6, "{}", bench.s3.objects());
    Ok(())
}

fn a_bucket_that_fails(bench: &Bench) -> Result<()> {
    let store = ("s3://bucket/faults", &bench.options());
    let folder = bench.folder()?;
    let names = ["a", "b", "d", "e", "f"];
    let first = bench.machine(&folder.path().join("first"), store, true)?;
    for name in names {
        made(&first, name)?;
    }
    finish(&first);
    for (at, fault) in [
        Fault::Denied,
        Fault::Internal,
        Fault::SlowDown,
        Fault::CutOff,
        Fault::Sometimes,
    ]
    .into_iter()
    .enumerate()
    {
        bench.s3.fail(Some(fault));
        bench.s3.asked();
        let began = Instant::now();
        let second = bench.machine(&folder.path().join(at.to_string()), store, true)?;
        let hits: Vec<bool> = names
            .iter()
            .map(|name| made(&second, name))
            .collect::<Result<_>>()?;
        finish(&second);
        let (took, asked) = (began.elapsed(), bench.s3.asked().len());
        bench.s3.fail(None);
        // A request that fails is asked for once more, and after three failures there are no others.
        let expected = fault == Fault::Sometimes;
        ensure!(
            hits.iter().all(|hit| *hit == expected),
            "{fault:?}: {hits:?}"
        );
        ensure!(took < Duration::from_secs(9), "{fault:?}: {took:?}");
        ensure!(expected || asked <= 12, "{fault:?}: {asked} requests");
    }
    Ok(())
}

/// Files of a lock in a store, when the archive is gone.
fn files_of_a_lock(bench: &Bench, url: &str) -> Result<()> {
    let folder = bench.folder()?;
    let recipe = folder.path().join("small.toml");
    let text = builds::RECIPE.replace("[debian]", "[debian]\nmirror = \"http://127.0.0.1:1\"");
    let mut session = Session::open(Kind::Quiet)?;
    session.site = bench.options();
    let mut locked = bench.locked.clone();
    fs::write(&recipe, builds::RECIPE)?;
    locked.recipe = load(&recipe)?;
    let (count, size) = lock::vendor::write(&session, &mut locked, Path::new(url))?;
    ensure!(
        count == PACKAGES.len() && size > 1 << 20,
        "{count} files of {size}"
    );
    ensure!(locked.lock.vendor.as_deref() == Some(url));
    // Nothing is sent twice.
    bench.s3.asked();
    lock::vendor::write(&session, &mut locked, Path::new(url))?;
    let again = bench.s3.asked();
    let sent = again.iter().filter(|asked| asked.starts_with("PUT"));
    ensure!(
        sent.filter(|asked| !asked.contains("/notes/")).count() == 0,
        "{again:?}"
    );

    fs::write(&recipe, text)?;
    locked.recipe = load(&recipe)?;
    let mut other = Session::new(
        Cache::at(folder.path().join("other"))?,
        Progress::new(Kind::Quiet),
    );
    other.site = bench.options();
    for deb in locked.fetch(&other, SET)? {
        let sum = slipway::format::digest::sha256(&deb.path)?;
        ensure!(sum == deb.package.sha256, "{}", deb.package.name);
    }
    // A store without a file is no error while a server has it, and here none has.
    locked.lock.vendor = Some(format!("{url}/nothing"));
    let mut third = Session::new(
        Cache::at(folder.path().join("third"))?,
        Progress::new(Kind::Quiet),
    );
    third.site = bench.options();
    let error = locked.fetch(&third, SET).unwrap_err();
    ensure!(format!("{error:#}").contains("catatonit"), "{error:#}");
    Ok(())
}
