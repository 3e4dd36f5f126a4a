//! Colours on a terminal: a pseudo-terminal is the program's standard error.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// A recipe with mistakes.
const WRONG: &str = "src/recipe/tests/wrong.toml";

/// Whether the report of mistakes has colours, with this value of `NO_COLOR` and these options.
fn coloured(no_color: Option<&str>, options: &[&str]) -> bool {
    let pair = nix::pty::openpty(None, None).unwrap();
    // A program of another test would otherwise hold it open.
    for end in [pair.master.as_fd(), pair.slave.as_fd()] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command
        .args(["check", WRONG])
        .args(options)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(pair.slave);
    if let Some(value) = no_color {
        command.env("NO_COLOR", value);
    }
    let mut child = command.spawn().unwrap();
    // Its own copy of the terminal.
    drop(command);
    let mut said = Vec::new();
    // A terminal that nobody has open any more ends with an error.
    drop(File::from(pair.master).read_to_end(&mut said));
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("pakages"), "{said}");
    said.contains("\x1b[")
}

#[test]
fn a_terminal_has_colours_unless_no_color_is_set() {
    assert!(coloured(None, &[]));
    assert!(!coloured(Some("1"), &[]));
    // An empty one is as none: https://no-color.org.
    assert!(coloured(Some(""), &[]));
    // The option counts over the variable.
    assert!(coloured(Some("1"), &["--color", "always"]));
    assert!(!coloured(None, &["--color", "never"]));
}
