//! This program a second time, in the background.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

/// Starts this program again with the same arguments and further ones, apart from the terminal: Ctrl-C there is not for it,
/// and what it says goes to a file.
///
/// # Errors
/// If it does not start.
#[expect(
    clippy::disallowed_methods,
    reason = "this program itself needs no sandbox: it enters its own namespaces"
)]
pub fn start_again(more: &[&str], log: &File) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .args(more)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .process_group(0);
    command.spawn().context("starting this program again")
}
