//! `slipway ignition`: configs in both languages, and the program for other systems.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::{slipway, stderr, stdout};

/// A config of specification 2 that has an equal in 3.
const SPEC_2: &str = "{\"ignition\": {\"version\": \"2.3.0\"},
 \"storage\": {\"files\": [
  {\"filesystem\": \"root\", \"path\": \"/etc/a\", \"mode\": 420, \"contents\": {\"source\": \"data:,A\"}}]}}";

/// Starts the program with this text on its standard input.
fn given(words: &[&str], text: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_config_may_come_from_stdin() {
    let output = given(&["ignition", "validate", "-"], "{\"ignition\": 3}");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stdout(&output).starts_with("stdin:1:"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn ignition_configs_are_checked_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ign");
    std::fs::write(
        &path,
        "{\"ignition\": {\"version\": \"3.4.0\"},\n \"storage\": {\"files\": [{\"path\": \"a\"}]}}",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let output = slipway(&["ignition", "validate", path]);
    assert_eq!(output.status.code(), Some(2));
    let wanted = format!("{path}:2:33: error: $.storage.files.0.path: path not absolute\n");
    assert_eq!(stdout(&output), wanted);
    assert_eq!(slipway(&["ignition", "merge", path]).status.code(), Some(2));
}

#[test]
fn a_config_of_specification_2_is_translated_and_one_that_cannot_be_is_refused_with_its_place() {
    let validate = ["ignition", "validate", "-"];
    let output = given(&validate, SPEC_2);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "")
    );
    let output = given(&[&["--json"][..], &validate].concat(), SPEC_2);
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = &verdict["translated"]["storage"]["files"][0];
    // Specification 2 replaces a file that is there.
    assert_eq!(
        (&file["path"], &file["overwrite"]),
        (&json!("/etc/a"), &json!(true))
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("parent.ign");
    let parent = "{\"ignition\": {\"version\": \"3.4.0\"}, \"storage\": {\"files\": [{\"path\": \"/etc/b\"}]}}";
    std::fs::write(&path, parent).unwrap();
    let merge = ["ignition", "merge", path.to_str().unwrap(), "-"];
    let output = given(&merge, SPEC_2);
    assert!(output.status.success(), "{}", stderr(&output));
    let merged: Value = serde_json::from_slice(&output.stdout).unwrap();
    let files = merged["storage"]["files"].as_array().unwrap();
    let paths: Vec<&Value> = files.iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["/etc/b", "/etc/a"]);
    assert_eq!(files[1]["contents"]["source"], "data:,A");

    let unknown = SPEC_2.replace("\"root\"", "\"data\"");
    let finding = "stdin:3:18: error: $.storage.files.0.filesystem: found \"data\"; expected \"root\" or the name of an entry of storage.filesystems\n";
    let output = given(&validate, &unknown);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(2), finding)
    );
    let output = given(&merge, &unknown);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains(finding), "{}", stderr(&output));
}

#[test]
fn the_program_ignition_is_written_whole_and_executable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ignition");
    // An existing file is replaced, not written into.
    std::fs::write(&path, "an older one").unwrap();
    let output = slipway(&["ignition", "program", "-o", path.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(std::fs::read(&path).unwrap() == slipway::IGNITION_PROGRAM);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o700, 0o700);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let output = slipway(&["ignition", "program", "-o", "/nowhere/ignition"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("writing /nowhere/ignition"),
        "{output:?}"
    );
}

#[test]
fn butane_is_taken_wherever_ignition_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let butane = "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: /etc/a\n      mode: 644\n      contents:\n        local: a.txt\n";
    std::fs::write(at("a.bu"), butane).unwrap();
    std::fs::write(at("a.txt"), "A").unwrap();
    std::fs::write(at("b.ign"), "{\"ignition\": {\"version\": \"3.0.0\"}}").unwrap();
    // Local files are read only from a folder named on the command line.
    let output = slipway(&["ignition", "validate", &at("a.bu")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stdout(&output).contains("a.bu:8:16: error: $.storage.files.0.contents.local: "),
        "{output:?}"
    );
    let local = ["--files-dir", folder.path().to_str().unwrap()];
    let output = slipway(&["ignition", "validate", &at("a.bu"), local[0], local[1]]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stdout(&output).contains("a.bu:6:13: warning: $.storage.files.0.mode: "),
        "{output:?}"
    );
    let output = slipway(&[
        "ignition",
        "merge",
        &at("b.ign"),
        &at("a.bu"),
        local[0],
        local[1],
    ]);
    assert!(
        stdout(&output).contains("\"source\": \"data:,A\""),
        "{output:?}"
    );
    // The translation is on stdout, the findings are on stderr.
    let words = ["ignition", "from-butane", &at("a.bu"), local[0], local[1]];
    let output = slipway(&words);
    assert_eq!(
        stdout(&output),
        "{\"ignition\":{\"version\":\"3.4.0\"},\"storage\":{\"files\":[{\"contents\":{\"compression\":\"\",\"source\":\"data:,A\"},\"mode\":644,\"path\":\"/etc/a\"}]}}\n"
    );
    assert!(
        stderr(&output).contains("warning: $.storage.files.0.mode: found 644 in decimal"),
        "{output:?}"
    );
    let output = slipway(&[&words[..], &["--strict"]].concat());
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(2), "")
    );
    let output = slipway(&[&words[..], &["--pretty", "-q", "-o", &at("out.ign")]].concat());
    assert_eq!(
        (stdout(&output).as_str(), stderr(&output).as_str()),
        ("", "")
    );
    assert!(
        std::fs::read_to_string(at("out.ign"))
            .unwrap()
            .starts_with("{\n  \"ignition\"")
    );
    let output = slipway(&["ignition", "from-butane", &at("b.ign")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("this is Ignition JSON already"),
        "{output:?}"
    );
}
