//! The program's interface: exit codes, the streams of its output, and errors printed once.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "these tests start the program itself, and fail by panicking"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

#[path = "cli/cluster.rs"]
mod cluster;
#[path = "cli/farm.rs"]
mod farm;
#[path = "cli/ignition.rs"]
mod ignition;
#[path = "cli/jobs.rs"]
mod jobs;
#[path = "cli/logins.rs"]
mod logins;
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/offline.rs"]
mod offline;
#[path = "cli/page.rs"]
mod page;
#[path = "cli/pxe.rs"]
mod pxe;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/terminal.rs"]
mod terminal;

fn slipway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_wrong_command_line_ends_with_2_and_the_nearest_word() {
    let output = slipway(&["docter"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("'doctor'"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

#[test]
fn the_help_names_every_variable_and_the_exit_codes() {
    let help = stdout(&slipway(&["--help"]));
    for variable in variables() {
        assert!(help.contains(&variable), "{variable} is not in {help}");
    }
    assert!(help.contains("130  interrupted"), "{help}");
}

/// The variables whose names stand in the sources of the program.
fn variables() -> std::collections::BTreeSet<String> {
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = std::collections::BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                let pieces: Vec<&str> = text.split('"').collect();
                let words = pieces.windows(2).filter(|pair| {
                    let (before, word) = (pair[0].trim_end(), pair[1]);
                    word.starts_with("SLIPWAY_")
                        // Of the compilation: the build script sets them, or a distributor.
                        && !before.ends_with("env!(")
                        && word.bytes().all(|b| b == b'_' || b.is_ascii_uppercase())
                });
                found.extend(words.map(|pair| pair[1].to_owned()));
            }
        }
    }
    assert!(found.len() > 4, "{found:?}");
    found
}

#[test]
fn a_wrong_recipe_ends_with_2_and_each_mistake_once() {
    let output = slipway(&["check", "src/recipe/tests/wrong.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let report = stderr(&output);
    assert_eq!(
        report.matches("unknown key `pakages`").count(),
        1,
        "{report}"
    );
    assert!(
        report.contains("src/recipe/tests/wrong.toml:2:1"),
        "{report}"
    );
    assert_eq!(stdout(&output), "");
}

#[test]
fn errors_are_one_json_object_when_json_is_asked_for() {
    let output = slipway(&["--json", "check", "src/recipe/tests/wrong.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let event: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(event["event"], "error");
    assert!(event["chain"][0].as_str().unwrap().contains("pakages"));
    let mistake = &event["mistakes"][0];
    assert_eq!(mistake["file"], "src/recipe/tests/wrong.toml");
    assert_eq!(
        (&mistake["line"], &mistake["column"]),
        (&2.into(), &1.into())
    );
    assert!(
        mistake["found"].as_str().unwrap().contains("pakages"),
        "{mistake}"
    );
    assert!(
        mistake["suggestion"].as_str().unwrap().contains("packages"),
        "{mistake}"
    );
}

#[test]
fn traces_are_json_objects_too_when_json_is_asked_for() {
    let output = slipway(&["--json", "-vv", "schema"]);
    let said = stderr(&output);
    assert!(said.contains("unpack, hash and compress"), "{said}");
    for line in said.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["event"], "trace", "{line}");
    }
}

#[test]
fn a_path_that_is_not_utf8_is_in_json_as_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join(OsStr::from_bytes(b"cache-\xff"));
    let name = "a".repeat(64);
    std::fs::create_dir_all(cache.join("downloads/aa")).unwrap();
    std::fs::write(cache.join("downloads/aa").join(&name), "x").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["--json", "cache", "show", "--cache"])
        .arg(&cache)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for path in [&shown["folder"], &shown["entries"][0]["path"]] {
        let path = path.as_str().unwrap();
        assert!(path.contains("/cache-\u{fffd}"), "{path}");
    }
}

#[test]
fn the_only_recipe_of_the_folder_is_taken_and_several_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(arguments)
            .current_dir(folder.path())
            .env("SLIPWAY_CACHE", folder.path().join("cache"))
            .output()
            .unwrap()
    };
    let copy = |name: &str| {
        std::fs::copy("src/recipe/tests/small.toml", folder.path().join(name)).unwrap();
    };
    let none = run(&["build"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("slipway new"), "{none:?}");
    copy("a.toml");
    let checked = run(&["check"]);
    assert!(checked.status.success(), "{checked:?}");
    assert!(stdout(&checked).contains("from a.toml"), "{checked:?}");
    let locked = run(&["lock", "--locked"]);
    assert!(stderr(&locked).contains("a.lock is missing"), "{locked:?}");
    copy("b.toml");
    for command in ["build", "check", "lock", "run"] {
        let several = run(&[command]);
        assert_eq!(several.status.code(), Some(2), "{command}");
        assert!(stderr(&several).contains("a.toml, b.toml"), "{several:?}");
    }
    let named = run(&["check", "b.toml"]);
    assert!(named.status.success(), "{named:?}");
}

#[test]
fn the_schema_is_printed_as_it_is_checked_in() {
    let output = slipway(&["schema"]);
    assert!(output.status.success());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/schema.json");
    assert_eq!(stdout(&output), std::fs::read_to_string(path).unwrap());
}

#[test]
fn the_schema_of_cluster_objects_is_printed_as_it_is_checked_in() {
    let output = slipway(&["schema", "--cluster"]);
    assert!(output.status.success());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/cluster.schema.json");
    assert_eq!(stdout(&output), std::fs::read_to_string(path).unwrap());
    let both = slipway(&["schema", "--cluster", "--markdown"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn every_shell_has_completions_that_know_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = slipway(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(stdout(&output).contains("doctor"), "{shell}");
    }
}

#[test]
fn a_lock_that_is_missing_is_an_error_when_it_may_not_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = folder.path().join("a.toml");
    std::fs::copy("src/recipe/tests/small.toml", &recipe).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["lock", "--locked"])
        .arg(&recipe)
        .env("SLIPWAY_CACHE", folder.path().join("cache"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = stderr(&output);
    assert_eq!(report.matches("error:").count(), 1, "{report}");
    assert!(report.contains("a.lock is missing"), "{report}");
}

/// A lock of a later format may be read by the program that wrote it.
#[test]
fn a_lock_that_cannot_be_read_names_the_program_that_wrote_it() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = folder.path().join("a.toml");
    std::fs::copy("src/recipe/tests/small.toml", &recipe).unwrap();
    let lock = folder.path().join("a.lock");
    let text = "version = 2\nbuilder = { code = \"0123\", version = \"9.9.9\" }\n";
    std::fs::write(&lock, text).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(arguments)
            .arg(&recipe)
            .env("SLIPWAY_CACHE", folder.path().join("cache"))
            .output()
            .unwrap()
    };
    let difference = ["lock", "--locked", "--diff", lock.to_str().unwrap()];
    for arguments in [&difference[..2], &difference] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let report = stderr(&output);
        let words = format!(
            "a.lock (written by slipway 9.9.9, this is {})",
            env!("CARGO_PKG_VERSION")
        );
        assert!(report.contains(&words), "{report}");
        assert!(report.contains("it is of version 2"), "{report}");
    }
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), text);
}

/// Nothing listens at the mirror: without any request the lists that are missing are named at once.
#[test]
fn a_lock_offline_names_what_is_missing_and_the_cache_is_where_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = folder.path().join("a.toml");
    let text = "image = { name = 'a', version = '1' }\n\
                kernel = { package = 'linux-image-amd64', platforms = ['qemu'] }\n\
                debian = { mirror = 'http://127.0.0.1:9/debian', security-mirror = 'http://127.0.0.1:9/security' }\n";
    std::fs::write(&recipe, text).unwrap();
    let cache = folder.path().join("own cache");
    let begin = Instant::now();
    let output = slipway(&[
        "lock",
        recipe.to_str().unwrap(),
        "--offline",
        "--cache",
        cache.to_str().unwrap(),
        "--jobs=1",
    ]);
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for suite in ["trixie from", "trixie-updates from", "trixie-security from"] {
        assert!(said.contains(&format!("reading {suite}")), "{said}");
    }
    assert!(said.contains("no request is made offline"), "{said}");
    assert!(cache.join("downloads").is_dir());
    assert!(!recipe.with_extension("lock").exists());
}

#[test]
fn colours_are_where_they_are_wanted() {
    let coloured = |when: &str, recipe: &str| {
        let output = slipway(&["check", recipe, "--color", when]);
        stderr(&output).contains("\x1b[")
    };
    let wrong = "src/recipe/tests/wrong.toml";
    assert!(coloured("always", wrong));
    assert!(!coloured("never", wrong));
    // Not a terminal.
    assert!(!coloured("auto", wrong));
    let output = slipway(&["check", wrong, "--color", "sometimes"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn signals_end_the_work_at_once_with_130() {
    use nix::sys::signal::{Signal, kill};
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("small.toml");
        std::fs::copy("src/recipe/tests/small.toml", &copy).unwrap();
        // A mirror that accepts connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mirror = format!("http://{}/debian", silent.local_addr().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .arg("lock")
            .arg(&copy)
            .env("SLIPWAY_CACHE", folder.path().join("cache"))
            .env("SLIPWAY_DEBIAN_MIRROR", mirror)
            .env("no_proxy", "127.0.0.1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The connection shows that the program is at work.
        let (_asked, _) = silent.accept().unwrap();
        let began = Instant::now();
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert!(began.elapsed() < Duration::from_secs(5), "{signal}");
        let said = stderr(&output);
        assert_eq!(
            said.lines().filter(|line| *line == "interrupted").count(),
            1,
            "{said}"
        );
        assert!(!said.contains("error"), "{said}");
        assert!(!folder.path().join("small.lock").exists());
    }
}

#[test]
fn a_machine_that_cannot_be_is_refused_at_once() {
    for (wrong, expected) in [
        (["--cpus", "0"], "0 is not in 1..=255"),
        (["--memory", "128"], "128 is not in 512.."),
        (["--forward", "22"], "expected HOSTPORT:GUESTPORT"),
    ] {
        let output = slipway(&[["run", "image"].as_slice(), &wrong].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let output = slipway(&["run", "image", "--fresh"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("--node <DIR>"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_programs_of_the_node_are_within_their_bounds() {
    const BOUND: u64 = 6 << 20;
    for program in [
        env!("SLIPWAY_INITRD_PROGRAM"),
        env!("SLIPWAY_DROPIN_PROGRAM"),
        env!("SLIPWAY_NODE_PROGRAM"),
    ] {
        let size = std::fs::metadata(program).unwrap().len();
        assert!(size <= BOUND, "{program}: {size} bytes, over {BOUND}");
    }
}

#[test]
fn a_new_recipe_is_checked_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(words)
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        (output.status.code(), said)
    };
    assert_eq!(run(&["new", "mine"]).0, Some(0));
    let (code, said) = run(&["check", "mine.toml"]);
    assert!(code == Some(0) && said.contains("slipway:node"), "{said}");
    let file = folder.path().join("mine.toml");
    // Others may read it as they may any file that is written here.
    let other = folder.path().join("other");
    std::fs::write(&other, "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&file), mode(&other));
    std::fs::remove_file(other).unwrap();
    std::fs::write(&file, "extends = \"slipway:gce\"\n").unwrap();
    let (code, said) = run(&["new", "mine"]);
    assert!(code == Some(1) && said.contains("exists"), "{said}");
    assert_eq!(run(&["new", "cloud", "--from", "gce"]).0, Some(0));
    for (name, expected) in [("../mine", 2), ("a\"b", 2), ("Mine", 2)] {
        let (code, said) = run(&["new", name]);
        assert_eq!(code, Some(expected), "{name}: {said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    let (code, said) = run(&["new", "x", "--from", "nod"]);
    assert!(code == Some(2) && said.contains("'node'"), "{said}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.toml"), "extends = \"slipway:node\"\n").unwrap();
    for words in [
        &["manual"][..],
        &["completions", "bash"],
        &["schema"],
        &["release", "list"],
        &["--json", "check"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(words)
            .current_dir(folder.path())
            .stdout(writer)
            .output()
            .unwrap();
        let said = stderr(&output);
        assert_eq!(
            (output.status.code(), said.as_str()),
            (Some(0), ""),
            "{words:?}"
        );
    }
}

#[test]
fn a_signing_key_is_made_in_a_folder_that_is_missing() {
    let place = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let make = |file: &Path| slipway(&["cache", "keygen", file.to_str().unwrap(), "--name", "ci"]);
    let folder = place.path().join("etc/slipway");
    let key = folder.join("cache.key");
    let made = make(&key);
    assert!(made.status.success(), "{}", stderr(&made));
    assert!(stdout(&made).starts_with("ci:"), "{}", stdout(&made));
    assert_eq!((mode(&folder), mode(&key)), (0o700, 0o600));
    // One that is there keeps its mode, and its key.
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let again = make(&key);
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
    assert_eq!(mode(&folder), 0o755);
    let below_a_file = make(&key.join("x"));
    let said = stderr(&below_a_file);
    assert!(said.contains("making the folder"), "{said}");
}
