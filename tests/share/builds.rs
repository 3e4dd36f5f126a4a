//! Two machines that build one lock: the second one makes no step again, and its image has the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use slipway::host::cache::Cache;
use slipway::share::keys::SecretKey;

use crate::{Bench, s3};

/// A node without a kubelet, whose program would take minutes to compile.
pub(crate) const RECIPE: &str = r#"
[image]
name = "small"
version = "1.0"
architecture = "x86-64"

[debian]
suite = "trixie"
components = ["main"]
packages = ["ca-certificates", "containerd", "dbus", "e2fsprogs", "kmod", "mount", "openssh-server", "passwd",
            "systemd", "systemd-resolved", "systemd-sysv", "udev"]

[kernel]
package = "linux-image-cloud-amd64"
platforms = ["qemu"]
cmdline = ["console=ttyS0"]
"#;

/// What the second machine's build may take, as in docs/benchmarks.md, besides the transfer.
const SECOND: f64 = 3.0;
/// What it may take of the first one's time on a slow machine, the transfer included: a fifth was measured, and making the steps anew
/// takes nearly all of it.
const PART: f64 = 0.5;

/// What a build writes anew for every output folder: no result of these is kept in a cache.
const ALWAYS: &[&str] = &["lock", "disk", "sums", "publish", "remote cache"];

/// A store, and how it is asked.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) url: &'a str,
    /// The server of S3's protocol.
    pub(crate) endpoint: &'a str,
    /// The secret key that it is asked with.
    pub(crate) secret: &'a str,
}

pub(crate) fn on_two_machines(bench: &Bench, access: Access<'_>) -> Result<()> {
    let url = access.url;
    let place = first_machine(bench)?;
    let made = build(bench, place.path(), "first", (access, true))?;
    made.is_quiet()?;
    ensure!(made.outcomes["rootfs"] == "made" && made.outcomes["root"] == "made");
    let second = build(bench, place.path(), "second", (access, false))?;
    second.is_quiet()?;
    for (name, outcome) in &second.outcomes {
        let expected = !ALWAYS.contains(&name.as_str());
        ensure!(
            !expected || outcome == "hit",
            "the second machine: step {name} is {outcome}"
        );
        ensure!(!name.starts_with("fetch "), "{name} on the second machine");
    }
    ensure!(second.sums == made.sums, "other bytes");
    let downloads = slipway::host::tree::walk(&place.path().join("second/downloads"))?;
    ensure!(
        downloads.iter().all(|item| item.meta.is_dir()),
        "packages were fetched"
    );
    println!(
        "  {url}: first {:.1} s, second {:.1} s from an empty cache; {}",
        made.seconds,
        second.seconds,
        second.results()
    );
    let most = SECOND.max(PART * made.seconds);
    ensure!(
        second.seconds <= most,
        "the second machine took {:.1} s, the first one {:.1} s: expected at most {most:.1} s",
        second.seconds,
        made.seconds
    );
    Ok(())
}

/// A build whose store does not answer as it should; gives what it said.
pub(crate) fn alone(bench: &Bench, access: Access<'_>) -> Result<String> {
    let place = first_machine(bench)?;
    let made = build(bench, place.path(), "first", (access, true))?;
    ensure!(made.outcomes["rootfs"] == "made" && made.outcomes["root"] == "made");
    Ok(made.said)
}

/// A folder with the recipe, and the cache of the machine `first`, which has made nothing yet.
fn first_machine(bench: &Bench) -> Result<tempfile::TempDir> {
    let place = bench.folder()?;
    fs::write(place.path().join("small.toml"), RECIPE)?;
    // Downloads are verified at each use, so a shared folder hides no error: the first machine fetches none anew.
    let first = Cache::at(place.path().join("first"))?;
    let shared = Cache::open()?.root().join("downloads");
    fs::create_dir_all(&shared)?;
    fs::remove_dir_all(first.root().join("downloads"))?;
    std::os::unix::fs::symlink(shared, first.root().join("downloads"))?;
    Ok(place)
}

struct Built {
    sums: String,
    outcomes: BTreeMap<String, String>,
    seconds: f64,
    said: String,
}

impl Built {
    fn is_quiet(&self) -> Result<()> {
        let said = &self.said;
        ensure!(!said.contains("warning"), "{said}");
        Ok(())
    }

    /// What the build said of the remote cache.
    fn results(&self) -> String {
        let said = self.said.lines().filter(|line| line.contains("results"));
        said.collect::<Vec<_>>().join(" ")
    }
}

fn build(
    bench: &Bench,
    place: &Path,
    name: &str,
    (access, signs): (Access<'_>, bool),
) -> Result<Built> {
    let public = SecretKey::read(&bench.key())?.public()?;
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command
        .args(["build", "small.toml", "--json", "-o"])
        .arg(format!("out-{name}"))
        .args(["--remote-cache", access.url])
        .current_dir(place)
        .env("SLIPWAY_CACHE", place.join(name))
        .env("SLIPWAY_REMOTE_CACHE_KEYS", public.to_string())
        .env("AWS_ACCESS_KEY_ID", s3::KEY)
        .env("AWS_SECRET_ACCESS_KEY", access.secret)
        .env("AWS_ENDPOINT_URL_S3", access.endpoint)
        .env("AWS_REGION", s3::REGION)
        .stdin(Stdio::null());
    if signs {
        command.env("SLIPWAY_REMOTE_CACHE_SIGNING_KEY", bench.key());
    }
    let began = Instant::now();
    let output = command.output()?;
    let seconds = began.elapsed().as_secs_f64();
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{said}");
    ensure!(
        !said.contains(access.secret) && !said.contains(s3::KEY),
        "credentials in {said}"
    );
    let result: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let steps = result["steps"].as_array().context("no steps")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut outcomes = BTreeMap::new();
    for step in steps {
        let (name, outcome) = (text(&step["name"]), text(&step["outcome"]));
        let before = outcomes.insert(name.clone(), outcome);
        ensure!(before.is_none(), "two steps {name}");
    }
    let out = place.join(format!("out-{name}/small-1.0"));
    Ok(Built {
        sums: fs::read_to_string(out.join("SHA256SUMS"))?,
        outcomes,
        seconds,
        said,
    })
}
