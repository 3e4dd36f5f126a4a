//! Buckets of versitygw, an S3 server of another project over a folder: what the client sends is judged by code that nobody here wrote.
//! It is compiled from its Go module, whose `go.sum` is beside this file: minutes, the first time.
//!
//! <https://github.com/versity/versitygw/wiki/Global-Options>, <https://github.com/versity/versitygw/wiki/Posix-Backend>

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use data_encoding::HEXLOWER;
use fetch::{Bucket, Content, Digest, Failure, Stop, Want, blocking};
use sha2::{Digest as _, Sha256};
use slipway::host::progress::Kind;
use slipway::host::session::Session;
use slipway::host::tree;
use slipway::install::tools::Tools;
use slipway::lock::kubelet::{ModuleProgram, module_program};
use slipway::lock::{self, LockedRecipe};
use slipway::recipe::{SET_TOOLS_GO, load};
use slipway::store::{Haste, Store};

use crate::builds::{self, Access};
use crate::parts;
use crate::server::Server;
use crate::{Bench, finish, made, options, s3, shared_through};

const PROGRAM: ModuleProgram<'static> = ModuleProgram {
    package: "github.com/versity/versitygw/cmd/versitygw",
    go_mod: include_str!("versitygw/go.mod"),
    go_sum: include_str!("versitygw/go.sum"),
};
/// A recipe whose sources of the kubelet need the Go toolchain.
const RECIPE: &str = "recipes/cluster.toml";
/// Paths inside the sandbox: of the server's folder and of the program.
const PLACE: &str = "/s3";
const AT: &str = "/program/versitygw";
/// The folder of all buckets, below the server's.
const BUCKETS: &str = "buckets";
const BUCKET: &str = "bucket";
/// Where the server keeps the parts of uploads that are not complete, below a bucket.
const PARTS: &str = ".sgwtmp/multipart";
/// A secret key that the server does not have.
const WRONG: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYANOTHERKEY";
/// The size of an object whose upload takes longer than the time after which it is asked whether it is to end.
const LARGE: u64 = 128 << 20;

/// The running server.
#[derive(Debug)]
pub(crate) struct Versitygw(Server);

impl Versitygw {
    /// Compiles the server unless the cache has it, and starts it with a bucket.
    pub(crate) fn start(locked: &LockedRecipe, tools: &Tools, below: &Path) -> Result<Self> {
        let program = compile(locked)?;
        let place = tempfile::tempdir_in(below)?;
        // To this server a folder is a bucket.
        fs::create_dir_all(place.path().join(BUCKETS).join(BUCKET))?;
        let server = Server::start(place, |host, place| {
            Ok(tools
                .sandbox()
                .network(true)
                .bind(place, PLACE)
                .bind_read_only(&program, AT)
                .env("ROOT_ACCESS_KEY_ID", s3::KEY)
                .env("ROOT_SECRET_ACCESS_KEY", s3::SECRET)
                .command(AT)
                .args(["--port", host, "--region", s3::REGION])
                .args(["posix", &format!("{PLACE}/{BUCKETS}")]))
        })?;
        Ok(Self(server))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.host)
    }

    /// A path of the bucket on the host: an object is a file.
    fn path(&self, inside: &str) -> PathBuf {
        self.0.folder().join(BUCKETS).join(BUCKET).join(inside)
    }

    /// The number of files below a folder of the bucket.
    fn objects(&self, inside: &str) -> Result<usize> {
        let items = tree::walk(&self.path(inside))?;
        Ok(items.iter().filter(|item| item.meta.is_file()).count())
    }

    /// How many requests of a method it has answered with this status, whose query has these words.
    fn answered(&self, status: &str, method: &str, query: &str) -> Result<usize> {
        let log = self.0.log()?;
        let meant = log.lines().filter(|line| {
            let mut fields = line.split(" | ").map(str::trim);
            fields.nth(2) == Some(status) && fields.nth(2) == Some(method) && line.contains(query)
        });
        Ok(meant.count())
    }
}

/// The path of the server's program, compiled by the Go that images of today are locked with.
fn compile(locked: &LockedRecipe) -> Result<PathBuf> {
    let session = Session::open(Kind::Quiet)?;
    let sets = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(RECIPE))?.sets();
    let go = sets.into_iter().find(|set| set.name == SET_TOOLS_GO);
    let go = go.with_context(|| format!("{RECIPE} needs no Go toolchain"))?;
    let locked = lock::resolve(&session, &locked.recipe, &[go])?;
    module_program(&session, &locked, PROGRAM)
}

pub(crate) fn results(bench: &Bench) -> Result<()> {
    let server = bench.versitygw()?;
    let mut options = options(&server.url(), s3::SECRET);
    let url = "s3://bucket/results";
    shared_through(bench, (url, &options))?;
    let objects = server.objects("results")?;
    ensure!(objects == 6, "{objects} objects of three results");
    // As of AWS, where the settings have no region, the bucket's is asked for, without a signature.
    options.endpoints.s3_region = None;
    let folder = bench.folder()?;
    let reader = bench.machine(folder.path(), (url, &options), false)?;
    ensure!(made(&reader, "a")?, "its region was not found");
    finish(&reader);
    Ok(())
}

pub(crate) fn on_two_machines(bench: &Bench) -> Result<()> {
    let endpoint = &bench.versitygw()?.url();
    let access = Access {
        url: "s3://bucket/builds",
        endpoint,
        secret: s3::SECRET,
    };
    builds::on_two_machines(bench, access)
}

/// When the server refuses a request, a warning has its reason, and the machine makes the step itself.
pub(crate) fn refusals(bench: &Bench) -> Result<()> {
    let server = bench.versitygw()?;
    let url = "s3://bucket/refused";
    let wrong = options(&server.url(), WRONG);
    let mut elsewhere = options(&server.url(), s3::SECRET);
    elsewhere.endpoints.s3_region = Some("us-west-2".to_owned());
    for (options, expected) in [
        (&wrong, "403 Forbidden; S3 says SignatureDoesNotMatch"),
        (
            &elsewhere,
            "400 Bad Request; S3 says AuthorizationHeaderMalformed",
        ),
    ] {
        let mut store = Store::open(url, options, Haste::Hasty)?;
        let refused = store.note("name").map_err(|failure| failure.to_string());
        let text = format!("{refused:?}");
        ensure!(text.contains(expected), "{text}");
        ensure!(!text.contains(WRONG), "{text}");
    }
    let mut store = Store::open(
        "s3://no-such-bucket/refused",
        &options(&server.url(), s3::SECRET),
        Haste::Hasty,
    )?;
    let missing = store.put_note("name", "text", &[]);
    let text = format!("{missing:?}");
    ensure!(
        text.contains("404 Not Found; S3 says NoSuchBucket"),
        "{text}"
    );

    let folder = bench.folder()?;
    let machine = bench.machine(folder.path(), (url, &wrong), true)?;
    for name in ["a", "b", "d", "e"] {
        ensure!(!made(&machine, name)?, "{name} was there");
    }
    finish(&machine);
    let endpoint = &server.url();
    let access = Access {
        url,
        endpoint,
        secret: WRONG,
    };
    let said = builds::alone(bench, access)?;
    for expected in [
        "the remote cache failed at the step ",
        "403 Forbidden; S3 says SignatureDoesNotMatch",
        "the remote cache s3://bucket/refused is left out for the rest of this run",
    ] {
        ensure!(said.contains(expected), "expected {expected:?} in {said}");
    }
    ensure!(!server.path("refused").exists(), "something was stored");
    Ok(())
}

pub(crate) fn large_objects(bench: &Bench) -> Result<()> {
    let server = bench.versitygw()?;
    let options = options(&server.url(), s3::SECRET);
    let folder = bench.folder()?;
    let file = folder.path().join("file");
    let bytes = parts::content();
    fs::write(&file, &bytes)?;
    let sum = HEXLOWER.encode(&Sha256::digest(&bytes));
    let size = bytes.len() as u64;
    for (at, content) in [Content::File(&file, size), Content::Bytes(&bytes)]
        .into_iter()
        .enumerate()
    {
        let before = server.answered("200", "PUT", "partNumber=")?;
        let url = format!("s3://bucket/parts/{at}");
        parts::put(&options, &url, &sum, content, Stop::default())?;
        let sent = server.answered("200", "PUT", "partNumber=")? - before;
        ensure!(sent == 3, "{sent} parts were sent");
        let stored = server.path(&format!("parts/{at}/{}", parts::OBJECT));
        ensure!(fs::read(stored)? == bytes, "another content is stored");
        let target = folder.path().join("again");
        let url = Bucket::parse(&url).map_err(anyhow::Error::msg)?;
        let digest = Digest::sha256(&sum).context("not a SHA-256")?;
        let url = url.url(parts::OBJECT);
        let want = Want::new(&url, size).digest(digest);
        blocking::Client::new(&options)?.file(&want, &target, &|_| ())?;
        ensure!(fs::read(&target)? == bytes, "another content is fetched");
    }
    // Another hash is found before the object is there, and its parts are taken back.
    let other = HEXLOWER.encode(&Sha256::digest("other"));
    let content = Content::File(&file, size);
    let failure = parts::put(
        &options,
        "s3://bucket/parts/other",
        &other,
        content,
        Stop::default(),
    );
    ensure!(
        matches!(failure, Err(Failure::Digest { .. })),
        "{failure:?}"
    );
    ensure!(!server.path("parts/other").exists());
    let left = server.objects(PARTS)?;
    ensure!(left == 0, "{left} parts are left");
    interrupted(server, &options, folder.path())
}

/// An upload that the user ends once it has begun.
fn interrupted(server: &Versitygw, options: &fetch::Options, folder: &Path) -> Result<()> {
    let file = folder.join("large");
    File::create(&file)?.set_len(LARGE)?;
    // It is interrupted before the hash of all counts.
    let sum = HEXLOWER.encode(&Sha256::digest("unknown"));
    let begun = server.path(PARTS);
    let stop = Stop::when(move || fs::read_dir(&begun).is_ok_and(|mut all| all.next().is_some()));
    let before = server.answered("204", "DELETE", "uploadId=")?;
    let url = "s3://bucket/parts/interrupted";
    let ended = parts::put(options, url, &sum, Content::File(&file, LARGE), stop);
    let text = format!("{ended:?}");
    ensure!(
        ended.is_err_and(|failure| failure.to_string().contains("interrupted")),
        "{text}"
    );
    let deleted = server.answered("204", "DELETE", "uploadId=")? - before;
    ensure!(deleted == 1, "{deleted} uploads were taken back");
    // A part that is on its way at that moment may still be stored, as S3 documents it; the object is not.
    ensure!(!server.path("parts/interrupted").exists());
    Ok(())
}
