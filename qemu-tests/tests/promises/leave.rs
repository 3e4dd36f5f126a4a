//! The end of `slipway run`.

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
/// How long the tool's children may run after it.
const ENDING: Duration = Duration::from_secs(1);
/// How long the machine may take to print its first byte.
const FIRST_WORD: Duration = Duration::from_secs(120);

/// `slipway run` ends by Ctrl-A X, by Ctrl-C and by SIGTERM; no process and no file of it remains.
pub(crate) fn slipway_run_leaves_no_process_and_no_disk(lab: &mut Lab) -> Result<()> {
    let tests = std::env::current_exe()?;
    let program = tests
        .ancestors()
        .map(|folder| folder.join("slipway"))
        .find(|path| path.is_file())
        .context(
            "finding the program slipway beside the tests; `cargo test --workspace` builds it",
        )?;
    let before = scratch(lab.session().cache.root())?;
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
        let had = result.with_context(|| format!("leaving by {way:?}"))?;
        ensure!(
            had.iter()
                .any(|process| process.line.contains("qemu-system")),
            "no emulator ran: {had:?}"
        );
        let until = Instant::now() + ENDING;
        let mut left = still_running(&had)?;
        while !left.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            left = still_running(&had)?;
        }
        ensure!(left.is_empty(), "after {way:?} these still run: {left:?}");
        let after = scratch(lab.session().cache.root())?;
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

/// Waits for output of the machine and ends the tool; returns its processes.
fn leave(child: &mut Child, way: &Way, said: &Path) -> Result<Vec<Process>> {
    let until = Instant::now() + FIRST_WORD;
    while fs::metadata(said)?.len() == 0 {
        if let Some(status) = child.try_wait()? {
            let stderr = fs::read_to_string(said.with_extension("stderr"))?;
            anyhow::bail!("slipway run ended with {status}: {stderr}");
        }
        ensure!(Instant::now() < until, "the machine printed nothing");
        std::thread::sleep(Duration::from_millis(100));
    }
    let had = descendants(child.id())?;
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
    Ok(had)
}

/// A process. Its start time distinguishes it from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    /// Clock ticks since the host's boot.
    started: u64,
    line: String,
}

/// All running processes that are visible here. A process in state `Z` has ended and waits for the host's process 1 to
/// reap it, which some do only every two seconds; it does not count.
fn processes() -> Result<Vec<Process>> {
    let entries = fs::read_dir("/proc")?.collect::<Result<Vec<_>, _>>()?;
    // A process may end while it is read.
    Ok(entries
        .iter()
        .filter_map(|entry| process(&entry.path()))
        .collect())
}

/// Reads the fields of proc_pid_stat(5) after the closing bracket of the name.
fn process(folder: &Path) -> Option<Process> {
    let id = folder.file_name()?.to_str()?.parse().ok()?;
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    let line = fs::read(folder.join("cmdline")).ok()?;
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        line: String::from_utf8_lossy(&line).replace('\0', " "),
    })
}

/// A process's children, theirs, and so on.
fn descendants(of: u32) -> Result<Vec<Process>> {
    let all = processes()?;
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        for child in all.iter().filter(|process| process.parent == parent) {
            parents.push(child.id);
            found.push(child.clone());
        }
    }
    Ok(found)
}

/// The processes among them that still run.
fn still_running(of: &[Process]) -> Result<Vec<String>> {
    let now = processes()?;
    let runs = |old: &&Process| {
        now.iter()
            .any(|p| (p.id, p.started) == (old.id, old.started))
    };
    Ok(of.iter().filter(runs).map(|old| old.line.clone()).collect())
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
