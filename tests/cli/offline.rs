//! What the program says and does of a locked recipe without a request: a dry run, a lock that fits, and how soon.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{stderr, stdout};

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
        // Nothing listens there: a request is an error.
        .env("SLIPWAY_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")
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
