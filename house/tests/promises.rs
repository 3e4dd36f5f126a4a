//! `docs/promises.md` names tests that exist, and every test in a virtual machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The numbered promises, each with its lines joined.
fn promises() -> Vec<String> {
    let text = fs::read_to_string(top().join("docs/promises.md")).unwrap();
    let mut promises: Vec<String> = Vec::new();
    for line in text.lines() {
        let number: String = line.chars().take_while(char::is_ascii_digit).collect();
        if line
            .strip_prefix(&number)
            .is_some_and(|rest| rest.starts_with(". "))
            && !number.is_empty()
        {
            promises.push(line.to_owned());
        } else if line.starts_with("   ")
            && let Some(promise) = promises.last_mut()
        {
            *promise += &format!(" {}", line.trim());
        }
    }
    promises
}

/// The texts between backticks.
fn code(promise: &str) -> impl Iterator<Item = &str> {
    promise.split('`').skip(1).step_by(2)
}

/// All Rust files: their paths and texts.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut next = vec![PathBuf::new()];
    while let Some(folder) = next.pop() {
        for entry in fs::read_dir(top().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let (name, path) = (entry.file_name(), folder.join(entry.file_name()));
            if entry.file_type().unwrap().is_dir() {
                if name != "target" && name != "out" && name != ".git" {
                    next.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(top().join(&path)).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

/// Names of the test functions in all Rust files, and those of the tests in a virtual machine or in namespaces as
/// `module::name`.
fn functions() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut all, mut virtual_machine) = (BTreeSet::new(), BTreeSet::new());
    for (path, text) in sources() {
        let mut is_test = false;
        for line in text.lines() {
            let line = line.trim_start();
            is_test |= line == "#[test]";
            if let Some(rest) = line.strip_prefix("fn ") {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = rest[..end.unwrap_or(rest.len())].to_owned();
                // A helper of tests holds no promise.
                if std::mem::take(&mut is_test) {
                    all.insert(name);
                }
            }
            if (path.ends_with("promises/main.rs") || path.ends_with("clusters/main.rs"))
                && line.contains("::")
                // A list of one stands in one line.
                && let Some(name) = line
                    .strip_suffix(',')
                    .or_else(|| Some(line.split_once("tests![")?.1.trim_end_matches([',', ']', ';'])))
                && name
                    .chars()
                    .all(|c| c.is_alphanumeric() || "_:".contains(c))
            {
                virtual_machine.insert(name.to_owned());
            }
        }
    }
    (all, virtual_machine)
}

/// A test that returns early by itself would pass in CI without having checked anything.
#[test]
fn a_test_skips_by_the_one_function_that_fails_in_ci() {
    let prints = ["print!", "println!"].map(|word| format!("{word}(\"skip"));
    let words = [
        prints[0].clone(),
        prints[1].clone(),
        ["stderr(),", "\"skip"].concat(),
        ["if!nix::unistd::geteuid()", ".is_root(){"].concat(),
    ];
    let own: Vec<PathBuf> = sources()
        .into_iter()
        .filter(|(_, text)| {
            let joined: String = text.split_whitespace().collect();
            words.iter().any(|word| joined.contains(word.as_str()))
        })
        .map(|(path, _)| path)
        .collect();
    assert_eq!(own, [Path::new("linux/src/host.rs")]);
}

#[test]
fn every_promise_names_tests_that_exist_or_is_pending() {
    let (functions, virtual_machine) = functions();
    let promises = promises();
    assert!(promises.len() > 30 && virtual_machine.len() > 30);
    let mut mistakes = Vec::new();
    for (number, promise) in promises.iter().enumerate() {
        let head: String = promise.chars().take(60).collect();
        if !promise.starts_with(&format!("{}. ", number + 1)) {
            mistakes.push(format!("{head}: its number should be {}", number + 1));
        }
        let mut tests = 0;
        for name in code(promise) {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            if name.contains("::") {
                tests += 1;
                if !virtual_machine.contains(name) {
                    mistakes.push(format!("{head}: no test {name} in a virtual machine"));
                }
            } else if name.ends_with(".rs") {
                tests += 1;
                if !top().join(name).is_file() {
                    mistakes.push(format!("{head}: no file {name}"));
                }
            } else if name.matches('_').count() > 1 && name.chars().all(is_word) {
                tests += 1;
                if !functions.contains(name) {
                    mistakes.push(format!("{head}: no test {name}"));
                }
            }
        }
        if (tests == 0) != promise.ends_with("*pending*") {
            mistakes.push(format!(
                "{head}: has {tests} tests and must have some or be *pending*"
            ));
        }
    }
    assert!(mistakes.is_empty(), "\n{}", mistakes.join("\n"));
}

#[test]
fn every_test_in_a_virtual_machine_holds_a_promise() {
    let text = promises().join("\n");
    let named: BTreeSet<&str> = code(&text).collect();
    let (_, virtual_machine) = functions();
    let missing: Vec<_> = virtual_machine
        .iter()
        .filter(|name| !named.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "not in docs/promises.md: {missing:?}");
}
