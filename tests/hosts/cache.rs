//! The cache's limit, by the program: shown, and kept whole when the removal is killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use slipway::host::cache::{Cache, Key};

use crate::host::Host;

/// Steps in the cache, and files of each.
const STEPS: usize = 24;
const FILES: usize = 120;
/// Removals that are killed.
const KILLS: u32 = 8;

fn fill(root: &Path) {
    let cache = Cache::at(root.to_owned()).unwrap();
    for number in 0..STEPS {
        let key = Key::of_data(&number.to_string(), 1).finish();
        let made = cache.step("test", &key, |at| {
            for file in 0..FILES {
                fs::write(at.join(file.to_string()), "content")?;
            }
            Ok(())
        });
        made.unwrap();
    }
}

/// The number of steps, each of which must have all of its files.
fn whole_steps(root: &Path) -> usize {
    let steps = fs::read_dir(root.join("steps/test")).unwrap();
    let mut count = 0;
    for step in steps {
        let files = fs::read_dir(step.unwrap().path()).unwrap().count();
        // The files, and the mark.
        assert_eq!(files, FILES + 1);
        count += 1;
    }
    count
}

#[test]
fn a_removal_that_is_killed_leaves_whole_steps_and_nothing_else() {
    let host = Host::new();
    let root = host.path("cache");
    let mut partly = 0;
    for round in 0..KILLS {
        fill(&root);
        #[allow(clippy::disallowed_methods, reason = "the program under test")]
        let mut child = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(["cache", "prune", "--unused", "0", "--cache"])
            .arg(&root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(round) * 6));
        child.kill().unwrap();
        child.wait().unwrap();
        let left = whole_steps(&root);
        let aside = fs::read_dir(root.join("tmp")).unwrap().count();
        partly += usize::from(left < STEPS || aside > 0);
        host.run(&["cache", "show"]).succeeds();
        assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);
        assert_eq!(whole_steps(&root), left);
    }
    println!("{partly} of {KILLS} were killed while they removed");
}

#[test]
fn the_limit_is_shown_and_read_from_option_and_variable() {
    let mut host = Host::new();
    fill(&host.path("cache"));
    let said = host.run(&["cache", "show"]).succeeds();
    assert!(
        said.contains("test ") && said.contains(" in the cache, of at most "),
        "{said}"
    );
    host.set("SLIPWAY_CACHE_SIZE", "3G");
    let said = host.run(&["cache", "show"]).succeeds();
    assert!(said.contains("of at most 3.0 GiB"), "{said}");
    let said = host
        .run(&["cache", "show", "--cache-size", "none"])
        .succeeds();
    assert!(said.contains("without a limit"), "{said}");
    let said = host.run(&["--json", "cache", "show"]).succeeds();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["limit"], 3_u64 << 30);
    assert_eq!(said["entries"].as_array().unwrap().len(), STEPS);
    host.set("SLIPWAY_CACHE_SIZE", "large");
    host.run(&["cache", "show"])
        .refuses(&["SLIPWAY_CACHE_SIZE", "\"large\" is not a size"]);
}

#[test]
fn the_limit_of_the_settings_counts_where_neither_option_nor_variable_sets_one() {
    let mut host = Host::new();
    let settings = host.path(".config/slipway/settings.toml");
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    let write = |text: &str| fs::write(&settings, text).unwrap();
    // A remote cache without a key is no matter of the cache's limit.
    write("[cache]\nsize = \"5G\"\n[remote-cache]\nurl = \"s3://builds\"\n");
    let shown = |host: &Host, words: &[&str]| {
        let words = [&["cache", "show"], words].concat();
        host.run(&words).succeeds()
    };
    let said = shown(&host, &[]);
    assert!(said.contains("of at most 5.0 GiB"), "{said}");
    let said = shown(&host, &["--cache-size", "4G"]);
    assert!(said.contains("of at most 4.0 GiB"), "{said}");
    write("[cache]\nsize = \"5 gigabytes\"\n");
    let words = ["cache", "show"];
    host.run(&words)
        .refuses(&["settings.toml", "line 2, column 8", "is not a size"]);
    write("[cache]\nsize = \"none\"\n");
    let said = shown(&host, &[]);
    assert!(said.contains("without a limit"), "{said}");
    host.set("SLIPWAY_CACHE_SIZE", "3G");
    let said = shown(&host, &[]);
    assert!(said.contains("of at most 3.0 GiB"), "{said}");
}
