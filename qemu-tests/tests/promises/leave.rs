//! Leaving a machine.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use qemu_tests::lab::Lab;
use std::io::Write;

/// How long the tool may take to end.
const LEAVING: Duration = Duration::from_secs(30);
/// How long the machine may take to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(120);

/// `slipway run` ends by Ctrl-A X, by Ctrl-C and by SIGTERM; no process of its session and no file of it is left.
pub(crate) fn running_leaves_no_process_and_no_disk(lab: &mut Lab) -> Result<()> {
    let tests = std::env::current_exe()?;
    let program = tests
        .ancestors()
        .map(|folder| folder.join("slipway"))
        .find(|path| path.is_file())
        .context(
            "finding the program slipway beside the tests; `cargo test --workspace` builds it",
        )?;
    let before = scratch(lab.cache().root())?;
    for way in [
        Way::Keys,
        Way::Signal(Signal::SIGINT),
        Way::Signal(Signal::SIGTERM),
    ] {
        let said = lab.folder().join("run.console");
        let mut child = start(&program, &lab.image.out, &said)?;
        let result = leave(&mut child, &way, &said);
        if result.is_err() {
            child.kill().ok();
            child.wait().ok();
        }
        result.with_context(|| format!("leaving by {way:?}"))?;
        let left = processes(&lab.image.out)?;
        ensure!(left.is_empty(), "after {way:?} these still run: {left:?}");
        let after = scratch(lab.cache().root())?;
        ensure!(
            after == before,
            "after {way:?} the cache's scratch folders are {after:?}; before {before:?}"
        );
    }
    Ok(())
}

#[derive(Debug)]
enum Way {
    Keys,
    Signal(Signal),
}

#[allow(
    clippy::disallowed_methods,
    reason = "the tool itself is what is tested here, as a user starts it"
)]
fn start(program: &Path, out: &Path, said: &Path) -> Result<Child> {
    Command::new(program)
        .arg("run")
        .arg(out)
        .args(["--accel", "tcg", "--direct"])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(said)?)
        .stderr(fs::File::create(said.with_extension("stderr"))?)
        .spawn()
        .context("starting slipway run")
}

fn leave(child: &mut Child, way: &Way, said: &Path) -> Result<()> {
    let until = Instant::now() + FIRST_WORD;
    while fs::metadata(said)?.len() == 0 {
        if let Some(status) = child.try_wait()? {
            let stderr = fs::read_to_string(said.with_extension("stderr"))?;
            anyhow::bail!("slipway run ended with {status}: {stderr}");
        }
        ensure!(Instant::now() < until, "the machine says nothing");
        std::thread::sleep(Duration::from_millis(100));
    }
    match way {
        Way::Keys => {
            let stdin = child.stdin.as_mut().context("taking its input")?;
            stdin.write_all(b"\x01x")?;
        }
        Way::Signal(signal) => kill(Pid::from_raw(i32::try_from(child.id())?), *signal)?,
    }
    let until = Instant::now() + LEAVING;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        ensure!(
            Instant::now() < until,
            "it still runs {} s later",
            LEAVING.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    let expected = match way {
        Way::Keys => 0,
        Way::Signal(_) => 130,
    };
    ensure!(
        status.code() == Some(expected),
        "it ended with {status}; expected exit code {expected}"
    );
    Ok(())
}

/// Processes whose command line names the machine of this image or the image.
fn processes(out: &Path) -> Result<Vec<String>> {
    let own = std::process::id().to_string();
    let out = out.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let id = entry.file_name().to_string_lossy().into_owned();
        if id == own || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process may end while it is looked at.
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&out) || (line.contains("qemu-system") && line.contains("slipway")) {
            found.push(line);
        }
    }
    Ok(found)
}

/// The scratch folders of the cache.
fn scratch(cache: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(cache.join("tmp"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
