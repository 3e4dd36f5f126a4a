//! Programs of a node: scripts that end, and services that are started anew as by their units.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::namespace::{Program, Space};

/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Lines of a failed script's output that are part of its error.
const TAIL: usize = 30;

/// Runs a script of bash to its end and gives what it printed; a command of it that fails ends it.
///
/// # Errors
/// If it fails or takes too long, with the end of what it printed.
pub(crate) fn run(space: &Space, script: &str, patience: Duration) -> Result<String> {
    let mut output = tempfile()?;
    let arguments = ["-euc".to_owned(), script.to_owned()];
    let mut child = space.spawn(&Program {
        program: "/bin/bash",
        arguments: &arguments,
        stdout: output.try_clone()?,
        stderr: output.try_clone()?,
    })?;
    let status = wait(&mut child, patience)?;
    output.rewind()?;
    let mut text = Vec::new();
    output
        .read_to_end(&mut text)
        .context("reading what a script printed")?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => bail!("{script}: {status}\n{}", tail(&text)),
        None => bail!(
            "{script}: not ended after {} s\n{}",
            patience.as_secs(),
            tail(&text)
        ),
    }
}

/// A file without a name, for output that may be longer than a pipe.
fn tempfile() -> Result<File> {
    let folder = std::env::temp_dir();
    let options =
        nix::fcntl::OFlag::O_TMPFILE | nix::fcntl::OFlag::O_RDWR | nix::fcntl::OFlag::O_CLOEXEC;
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    let file = nix::fcntl::open(&folder, options, mode)
        .with_context(|| format!("making a file in {}", folder.display()))?;
    Ok(File::from(file))
}

fn wait(child: &mut Child, patience: Duration) -> Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a program")? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill().context("ending a program")?;
            child.wait().context("waiting for a program")?;
            return Ok(None);
        }
        sleep(LOOK_EVERY);
    }
}

/// The last lines of a text.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

/// What a unit does.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// Its name, also that of its log.
    pub(crate) name: &'static str,
    /// What it runs before each start, one after the other; a failure is a failed start.
    pub(crate) before: Vec<String>,
    /// Its program.
    pub(crate) start: String,
    /// What it runs once that has succeeded.
    pub(crate) after: Option<String>,
    /// After which pause it is started anew, and whether only if it failed.
    pub(crate) restart: Restart,
}

/// When a service is started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Whenever it ends, after this pause.
    Always(Duration),
    /// When it fails.
    OnFailure(Duration),
    /// Again and again after this pause, as by a timer.
    Every(Duration),
}

/// A service that runs in a thread of its own, until it is dropped or its node ends.
#[derive(Debug)]
pub(crate) struct Service {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts it; its log is `folder/NAME.log`.
    pub(crate) fn start(space: Arc<Space>, unit: Unit, folder: &Path) -> Self {
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let log = folder.join(format!("{}.log", unit.name));
        let thread = {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || serve(&space, &unit, &log, &stop, &done))
        };
        Self {
            stop,
            done,
            thread: Some(thread),
        }
    }

    /// Whether a service that runs once has succeeded.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Tells it that it is not started anew.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn serve(space: &Space, unit: &Unit, log: &Path, stop: &AtomicBool, done: &AtomicBool) {
    let stopped = || stop.load(Ordering::Acquire);
    while !stopped() {
        let succeeded = once(space, unit, log, stop).unwrap_or_else(|error| {
            // The node may have ended meanwhile: its log says so then too.
            drop(fs::write(
                log.with_extension("error"),
                format!("{error:#}\n"),
            ));
            false
        });
        let pause = match unit.restart {
            Restart::OnFailure(_) if succeeded => {
                done.store(true, Ordering::Release);
                return;
            }
            Restart::Always(pause) | Restart::OnFailure(pause) | Restart::Every(pause) => pause,
        };
        let until = Instant::now() + pause;
        while !stopped() && Instant::now() < until {
            sleep(LOOK_EVERY);
        }
    }
}

/// Runs the unit's commands; whether all of them succeeded.
fn once(space: &Space, unit: &Unit, log: &Path, stop: &AtomicBool) -> Result<bool> {
    let open = || {
        let mut options = OpenOptions::new();
        options.create(true).append(true).open(log)
    };
    for line in unit.before.iter().chain([&unit.start]).chain(&unit.after) {
        let (ignored, line) = match line.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, line.as_str()),
        };
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let [program, arguments @ ..] = arguments.as_slice() else {
            continue;
        };
        let mut child = space.spawn(&Program {
            program,
            arguments,
            stdout: open()?,
            stderr: open()?,
        })?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if stop.load(Ordering::Acquire) {
                child.kill()?;
            }
            sleep(LOOK_EVERY);
        };
        if !status.success() && !ignored {
            return Ok(false);
        }
    }
    Ok(true)
}
