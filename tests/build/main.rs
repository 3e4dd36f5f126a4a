//! Complete builds by the program: the same bytes on every host, and after any earlier kill.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod content;
mod full;
mod images;
mod kernels;
mod mistakes;
mod pins;
mod private;
mod run;
mod servers;
mod sources;
mod user;
mod variants;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, umask};
use slipway::host::cache::Cache;
use slipway::publish::page::Page;
use slipway::publish::sbom;

/// A node without a kubelet, whose program would take minutes to compile: its hash is in the lock, so a build checks it.
/// The packages are those whose scripts make keys, users, caches and links.
const RECIPE: &str = r#"
[image]
name = "small"
version = "1.0"
architecture = "x86-64"

[debian]
suite = "trixie"
components = ["main"]
packages = ["ca-certificates", "containerd", "dbus", "e2fsprogs", "kmod", "mount", "openssh-server", "passwd",
            "systemd", "systemd-resolved", "systemd-sysv", "tzdata", "udev"]

[kernel]
package = "linux-image-cloud-amd64"
platforms = ["qemu"]
cmdline = ["console=ttyS0"]

[files."/etc/motd"]
content = "small\n"

[units]
enable = ["containerd.service"]

[[artifacts]]
kind = "qcow2"

[[artifacts]]
kind = "gce"
"#;
/// The command that makes its lock, or mends it.
const LOCK: [&str; 2] = ["lock", "recipes/small.toml"];

/// Number of kills of a build. Issue and README promise ten.
const KILLS: u32 = 10;

/// A place to build in: a recipe with its lock, a cache with downloads only, an output folder.
struct Place {
    folder: PathBuf,
    _held: tempfile::TempDir,
}

impl Place {
    fn new(deep: &str, lock: Option<&str>) -> Self {
        let held = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = held.path().join(deep);
        fs::create_dir_all(folder.join("recipes")).unwrap();
        fs::write(folder.join("recipes/small.toml"), RECIPE).unwrap();
        if let Some(lock) = lock {
            fs::write(folder.join("recipes/small.lock"), lock).unwrap();
        }
        // Downloads are verified at each use, so a shared folder hides no error.
        let cache = folder.join("cache");
        Cache::at(cache.clone()).unwrap();
        let shared = Cache::open().unwrap().root().join("downloads");
        fs::create_dir_all(&shared).unwrap();
        fs::remove_dir_all(cache.join("downloads")).ok();
        std::os::unix::fs::symlink(shared, cache.join("downloads")).unwrap();
        Self {
            folder,
            _held: held,
        }
    }

    fn build(&self) -> Command {
        #[allow(clippy::disallowed_methods, reason = "the program under test")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command
            .args(["build", "recipes/small.toml", "-o", "out"])
            .current_dir(&self.folder)
            .env("SLIPWAY_CACHE", self.folder.join("cache"))
            .stdin(Stdio::null());
        command
    }

    fn sums(&self) -> String {
        fs::read_to_string(self.folder.join("out/small-1.0/SHA256SUMS")).unwrap()
    }
}

/// A program inherits this process's umask, which one test changes for a moment.
static UMASK: Mutex<()> = Mutex::new(());

fn spawn(command: &mut Command) -> Child {
    let _held = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

fn finish(mut command: Command) {
    let child = spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    succeed(child);
}

fn succeed(child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

struct Reference {
    sums: String,
    lock: String,
    took: Duration,
}

fn reference() -> &'static Reference {
    static REFERENCE: OnceLock<Reference> = OnceLock::new();
    REFERENCE.get_or_init(|| {
        let place = Place::new("a", None);
        finish(place.build());
        let lock = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
        // A build from the lock alone measures the time over which the kills are spread.
        let timed = Place::new("timed", Some(&lock));
        let began = Instant::now();
        finish(timed.build());
        assert_eq!(timed.sums(), place.sums());
        Reference {
            sums: place.sums(),
            lock,
            took: began.elapsed(),
        }
    })
}

#[test]
fn another_folder_umask_zone_and_locale_give_the_same_bytes() {
    let reference = reference();
    assert!(
        reference.sums.contains("disk.raw") && reference.sums.lines().count() >= 6,
        "{}",
        reference.sums
    );
    // Locked by another program, which no byte and no key depends on.
    let mut lines = reference.lock.lines();
    let builder = lines.find(|line| line.starts_with("builder = ")).unwrap();
    let other = "builder = { code = \"0123\", version = \"9.9.9\" }";
    let lock = reference.lock.replace(builder, other);
    assert_ne!(lock, reference.lock);
    let place = Place::new("another/much/deeper/folder", Some(&lock));
    let mut command = place.build();
    command
        .env("TZ", "Pacific/Kiritimati")
        .env("LANG", "de_DE.UTF-8")
        .env("LC_ALL", "tr_TR.UTF-8")
        .env("HOME", &place.folder)
        .env("USER", "somebody")
        .env("LOGNAME", "somebody")
        .env("SOURCE_DATE_EPOCH", "12345");
    let child = {
        let _held = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
        let before = umask(Mode::from_bits_truncate(0o077));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        umask(before);
        child.unwrap()
    };
    succeed(child);
    assert_eq!(place.sums(), reference.sums);
    let kept = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    assert_eq!(kept, lock);
    // The report names the program that built, as the lock does the one that wrote it.
    let report = fs::read(place.folder.join("out/small-1.0/build-report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let written: toml::Table = toml::from_str(&reference.lock).unwrap();
    let written = serde_json::to_value(&written["builder"]).unwrap();
    assert_eq!(report["builder"], written);
}

#[test]
fn ten_kills_at_random_moments_do_not_poison_the_cache() {
    let reference = reference();
    let place = Place::new("killed", Some(&reference.lock));
    let mut random = seed();
    let mut killed = 0;
    while killed < KILLS {
        let mut child = spawn(place.build().stdout(Stdio::null()).stderr(Stdio::null()));
        // Finished steps stay in the cache, so later builds are shorter: most kills come early, some late.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let share = f64::from(u32::try_from(random >> 40).unwrap()) / f64::from(1 << 24);
        std::thread::sleep(reference.took.mul_f64(share * share));
        if is_over(&mut child) {
            // The build finished before the kill: without its steps and its output, the next build has work to
            // interrupt.
            fs::remove_dir_all(place.folder.join("cache/steps")).ok();
            fs::remove_dir_all(place.folder.join("out")).ok();
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
    }
    finish(place.build());
    assert_eq!(place.sums(), reference.sums);
    let left: Vec<_> = fs::read_dir(place.folder.join("cache/tmp"))
        .unwrap()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_second_build_does_nothing_and_notices_a_touched_output() {
    let reference = reference();
    let place = Place::new("again", Some(&reference.lock));
    finish(place.build());
    let out = place.folder.join("out/small-1.0");
    let made = |name: &str| fs::metadata(out.join(name)).unwrap().modified().unwrap();
    let before = made("disk.raw");
    let began = Instant::now();
    finish(place.build());
    let took = began.elapsed();
    assert_eq!(made("disk.raw"), before);
    // The benchmark's figure is 0.2 s; this bound only distinguishes an unchanged build from a full one.
    assert!(took < reference.took / 2, "{took:?} for nothing");
    fs::write(out.join("manifest.json"), "{}").unwrap();
    finish(place.build());
    assert_eq!(place.sums(), reference.sums);
    assert_ne!(fs::read_to_string(out.join("manifest.json")).unwrap(), "{}");
    shows_the_image(&out);
}

/// The page of a build has the image's data, and what is removed apart from what is there.
fn shows_the_image(out: &Path) {
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let page = Page::read(&page).unwrap();
    let largest = &page.usage.parts[0];
    assert_eq!(
        (page.title.as_str(), largest.name.as_str()),
        ("small-1.0", "usr")
    );
    assert!(largest.bytes > 100 << 20 && largest.bytes <= page.usage.bytes);
    let parts = page.partitions.iter();
    let parts: Vec<&str> = parts.map(|part| part.label.as_str()).collect();
    assert_eq!(parts, ["ESP", "root-a", "verity-a"]);
    assert!(
        page.partitions
            .iter()
            .all(|part| 0 < part.used && part.used <= part.size)
    );
    assert!(
        page.components
            .iter()
            .any(|row| row.name == "openssh-server")
    );
    assert!(page.steps.iter().any(|step| step.name == "root"));
    for (at, step) in page.steps.iter().enumerate() {
        let mut others = page.steps[..at].iter();
        assert!(
            others.all(|other| other.name != step.name),
            "two steps {}",
            step.name
        );
    }
    let components = fs::read_to_string(out.join("sbom.cdx.json")).unwrap();
    let components = sbom::components(&components).unwrap();
    let there = components.iter().filter(|found| !found.is_removed());
    let there: Vec<_> = there.map(|found| &found.name).collect();
    let shown: Vec<_> = page.components.iter().map(|row| &row.name).collect();
    assert_eq!(shown, there);
    // Headings have spaces, what is said of a package stands below it, and other lines are paths.
    let removed = fs::read_to_string(out.join("removed.txt")).unwrap();
    let packages = removed
        .lines()
        .filter(|line| !line.is_empty() && !line.contains([' ', '/']));
    let shown: Vec<_> = page.removed.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(shown, packages.collect::<Vec<_>>());
    assert!(!shown.is_empty(), "{removed}");
    for missed in page.removed.iter().flat_map(|row| &row.missed_by) {
        let line = format!("  may be missed by {missed}\n");
        assert!(removed.contains(&line), "{line}{removed}");
    }
    let sums = fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    assert_eq!(page.files.len(), sums.lines().count());
    assert!(page.files.iter().all(|file| sums.contains(&file.sha256)));
}

fn is_over(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

/// The seed is printed, so that a failure can be repeated with `SLIPWAY_SEED`.
fn seed() -> u64 {
    let seed = std::env::var("SLIPWAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            u64::from(now.subsec_nanos())
        });
    eprintln!("SLIPWAY_SEED={seed}");
    seed
}
