//! A kubelet from another source than the first: a warning that `--quiet` does not hide, or an error.

use std::process::Command;

use super::*;
use crate::host::sandbox::c_program;

/// Set in the process that pins: the one above it reads what it says.
const PINS: &str = "TEST_PINS";

/// Runs a test of this file in a process whose output is not captured; gives what it says.
fn said_by(test: &str) -> String {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    #[allow(clippy::disallowed_methods, reason = "this program, once more")]
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(PINS, "1")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// A recipe whose first source of the kubelet does not answer, and whose second is a program beside it.
fn recipe(bench: &Bench, sources: &str) -> Recipe {
    let source = "#include <stdio.h>\nint main() { puts(\"Kubernetes v1.36.3\"); }\n";
    c_program::compile(source, &bench.folder.path().join("kubelet"));
    let path = bench.recipe("'tool'", "").path;
    let text = fs::read_to_string(&path).unwrap();
    let kubernetes = "[kubernetes]\nversion = '1.36'\n\
         kubelet = [{ release = 'http://127.0.0.1:9/{version}/{program}' }, { file = 'kubelet' }]\n";
    fs::write(&path, format!("{text}{kubernetes}{sources}\n")).unwrap();
    recipe::load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)))
}

#[test]
fn a_fallback_is_a_warning_that_quiet_does_not_hide() {
    if !linux::host::is_root() {
        return linux::host::skipped("a sandbox needs root");
    }
    if std::env::var_os(PINS).is_none() {
        let said = said_by("a_fallback_is_a_warning_that_quiet_does_not_hide");
        let mut lines = said.lines();
        let warning = lines.find(|line| line.starts_with("warning: the kubelet is pinned from"));
        let warning = warning.unwrap_or_else(|| panic!("no warning: {said}"));
        for expected in [
            "the file",
            "since the release server (http://127.0.0.1:9/",
            "connect",
        ] {
            assert!(warning.contains(expected), "{expected}: {warning}");
        }
        return;
    }
    let bench = Bench::new(&[]);
    // A session of `--quiet`.
    let locked = bench.pin(recipe(&bench, ""), Mode::Make, &[]).unwrap();
    let kubelet = locked.lock.kubelet.unwrap();
    assert_eq!(kubelet.version, "v1.36.3");
    assert!(matches!(kubelet.source, file::LockedFrom::File { .. }));
}

#[test]
fn a_fallback_that_is_not_allowed_is_an_error() {
    let bench = Bench::new(&[]);
    let recipe = recipe(&bench, "sources = 'require'");
    let path = recipe.lock_path();
    let error = format!("{:#}", bench.pin(recipe, Mode::Make, &[]).unwrap_err());
    let expected = "no source of ";
    assert!(error.starts_with(expected), "{error}");
    assert!(
        error.contains("the release server (http://127.0.0.1:9/"),
        "{error}"
    );
    assert!(!error.contains("the file"), "{error}");
    assert!(!path.exists());
}
