//! What the program says and does without a request: a dry run of a locked recipe, a lock that fits, and how soon; what needs QEMU,
//! once that is in the cache.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use image::guid::Guid;
use image::layout::{LABEL_STATE, MIB, SectorSize, TYPE_LINUX};
use image::paths::STATE_TIMELINES;
use linux::host::is_root;
use slipway::format::gpt::{Partition, Table};
use slipway::format::sparse;
use slipway::host::progress::Kind;
use slipway::host::session::Session;
use slipway::install::tools::Tools;
use slipway::lock::{self, Mode};
use slipway::{pipeline, recipe};

use super::{stderr, stdout};

/// An address where nothing listens: a request is an error that names it.
const DEAD: &str = "127.0.0.1:9";
/// The bound of `--help` and of what only reads.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Runs of which one has to be within the bound: the machine may be at other work.
const RUNS: u32 = 40;

/// A folder with the recipe of all nodes, its lock, and no cache.
fn locked() -> tempfile::TempDir {
    static LOCK: OnceLock<String> = OnceLock::new();
    let folder = tempfile::tempdir().unwrap();
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/node.toml");
    std::fs::copy(recipe, folder.path().join("node.toml")).unwrap();
    // With the mirror and the cache of this host.
    let lock = LOCK.get_or_init(|| {
        let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(["lock", "node.toml"])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read_to_string(folder.path().join("node.lock")).unwrap()
    });
    std::fs::write(folder.path().join("node.lock"), lock).unwrap();
    folder
}

fn run(folder: &Path, words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(words)
        .current_dir(folder)
        .env("SLIPWAY_CACHE", folder.join("cache"))
        .env("SLIPWAY_DEBIAN_MIRROR", format!("http://{DEAD}/debian"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    output
}

#[test]
fn a_dry_run_names_files_steps_and_the_kubelet() {
    let folder = locked();
    let output = run(folder.path(), &["build", "node.toml", "--dry-run"]);
    let text = stdout(&output);
    let line = |start: &str| {
        let mut found = text.lines().filter_map(|line| line.strip_prefix(start));
        let line = found
            .next()
            .unwrap_or_else(|| panic!("no {start:?}: {text}"));
        assert_eq!(found.next(), None, "{text}");
        line.to_owned()
    };
    assert_eq!(line("out/node-0.1.0: "), "disk.raw");
    assert!(text.contains(" files to fetch, "), "{text}");
    for name in ["kubelet v1.", "systemd "] {
        let size = line(&format!("  {name}"));
        assert!(size.ends_with(" MiB"), "{name}: {text}");
    }
    // The first steps need files that are not here; all others need those steps.
    let steps =
        |start: &str| -> Vec<String> { line(start).split(", ").map(str::to_owned).collect() };
    let (runs, follow) = (steps("would run: "), steps("follow from these: "));
    assert!(runs.iter().any(|step| step == "fetch root"), "{text}");
    for step in ["rootfs", "root", "initramfs", "bootable", "publish"] {
        assert!(follow.iter().any(|name| name == step), "{step}: {text}");
    }
    assert!(!runs.iter().any(|step| follow.contains(step)), "{text}");
    assert!(!text.contains("in the cache: "), "{text}");
    let output = run(
        folder.path(),
        &["--json", "build", "node.toml", "--dry-run"],
    );
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // In the same order.
    for (key, names) in [("run", &runs), ("follow", &follow)] {
        let told: Vec<String> = serde_json::from_value(told["steps"][key].clone()).unwrap();
        assert_eq!(&told, names, "{key}");
    }
    assert!(!folder.path().join("out").exists());
}

#[test]
fn help_check_and_a_lock_that_fits_are_there_at_once() {
    let folder = locked();
    for words in [&["--help"][..], &["check"], &["lock", "--offline"]] {
        // The first one makes the cache's folders.
        let mut least = Duration::MAX;
        for _ in 0..RUNS {
            let began = Instant::now();
            run(folder.path(), words);
            least = least.min(began.elapsed());
            if least <= AT_ONCE {
                break;
            }
        }
        assert!(least <= AT_ONCE, "{words:?}: {} ms", least.as_millis());
    }
}

/// Runs the program with this host's cache; `offline` with mirrors and a proxy that are dead.
fn with_cache(folder: &Path, words: &[&str], offline: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(words).current_dir(folder);
    if offline {
        let dead = format!("http://{DEAD}");
        for name in ["SLIPWAY_DEBIAN_MIRROR", "SLIPWAY_DEBIAN_SECURITY_MIRROR"] {
            command.env(name, format!("{dead}/debian"));
        }
        for name in ["http_proxy", "https_proxy"] {
            command.env(name, &dead).env_remove(name.to_uppercase());
        }
    }
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert!(!said.contains(DEAD), "{words:?}: {said}");
    output
}

/// The first run pins, fetches and unpacks QEMU, its firmware and e2fsprogs, unless this host's cache has them.
#[test]
fn tools_that_are_in_the_cache_are_used_without_a_request() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("image")).unwrap();
    for name in ["image/disk.raw", "image/node.efi"] {
        File::create(at(name)).unwrap();
    }
    let run = [
        "run", "image", "--memory", "512", "--accel", "tcg", "--direct",
    ];
    for offline in [false, true] {
        let output = with_cache(folder.path(), &run, offline);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        // The firmware's variables were copied from the tools before.
        let expected = "reading section .linux of image/node.efi";
        assert!(said.contains(expected), "{said}");
    }
    let output = with_cache(folder.path(), &["doctor"], true);
    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let missing: Vec<&str> = (said.lines())
        .filter(|line| line.starts_with("missing"))
        .collect();
    let [mirror] = missing[..] else {
        panic!("{said}")
    };
    assert!(
        mirror.contains("Debian mirror") && mirror.contains(DEAD),
        "{said}"
    );
}

/// The timelines of a node's disk are read by programs of the tools.
#[test]
fn a_node_s_timeline_is_read_without_a_request_once_the_tools_are_there() {
    // The disk is made by programs of the same tools.
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("node");
    std::fs::create_dir(&node).unwrap();
    write_disk(&own_tools(), &node.join("system.raw"));
    for offline in [false, true] {
        let output = with_cache(folder.path(), &["timeline", "node"], offline);
        let said = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(
            said.contains("verity") && said.contains("2.000 s"),
            "{said}"
        );
    }
}

/// The tools that the program takes for what is about no recipe, in this host's cache.
fn own_tools() -> Tools {
    let session = Session::open(Kind::Quiet).unwrap();
    let path = recipe::carried::tools(&session.cache).unwrap();
    let recipe =
        recipe::load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)));
    let locked = lock::pin(&session, recipe, Mode::Make).unwrap();
    pipeline::tools_run(&session, &locked).unwrap()
}

/// Writes the disk of a node that has booted once, as far as its timeline needs it.
fn write_disk(tools: &Tools, path: &Path) {
    let made = tempfile::tempdir().unwrap();
    let timelines = made.path().join("tree").join(STATE_TIMELINES);
    std::fs::create_dir_all(&timelines).unwrap();
    let line = "{\"source\":\"init\",\"name\":\"verity\",\"start\":1000000,\"end\":3000000}\n";
    std::fs::write(timelines.join("1.jsonl"), line).unwrap();
    tools
        .sandbox()
        .bind(made.path(), "/run/state")
        .command("/usr/sbin/mke2fs")
        .args(["-q", "-t", "ext4", "-d", "/run/state/tree"])
        .args(["/run/state/state", "8M"])
        .run()
        .unwrap();
    let table = Table {
        disk: Guid::constant("11111111-2222-3333-4444-555555555555"),
        sector: SectorSize::default(),
        partitions: vec![Partition {
            number: 1,
            label: LABEL_STATE.to_owned(),
            kind: TYPE_LINUX,
            guid: Guid::constant("11111111-2222-3333-4444-666666666666"),
            offset: MIB,
            size: 8 * MIB,
            attributes: 0,
        }],
    };
    let mut disk = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    disk.set_len(table.disk_size(MIB)).unwrap();
    table.write(&mut disk).unwrap();
    sparse::copy(&made.path().join("state"), &disk, MIB).unwrap();
}
