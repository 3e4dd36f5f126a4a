//! The command line of `slipway-node`: usage, version and exit codes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::disallowed_methods,
    reason = "the program under test is started here"
)]

use std::process::{Command, Output};

use image::kubelet::{BLESS_COMMAND, GATE_COMMAND, PREPARE_COMMAND};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway-node"));
    command.args(arguments).output().unwrap()
}

#[test]
fn help_and_version_are_printed_to_stdout() {
    for flag in ["--help", "-h"] {
        let output = run(&[flag]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        for command in [GATE_COMMAND, PREPARE_COMMAND, BLESS_COMMAND] {
            assert!(text.contains(&format!("  {command} ")), "{text}");
        }
    }
    let output = run(&["--version"]);
    assert!(output.status.success());
    let expected = format!("slipway-node {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn a_wrong_command_line_ends_with_2_and_the_usage() {
    for arguments in [&[][..], &["reboot"], &[BLESS_COMMAND, "now"], &["--hlep"]] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        assert!(text.contains("expected one command, found"), "{text}");
        assert!(text.contains(GATE_COMMAND), "{text}");
    }
}
