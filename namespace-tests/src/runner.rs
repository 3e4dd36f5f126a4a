//! Runs the tests, selected by name as libtest does, three side by side: a test waits for two thirds of its time. Each one is
//! a process of its own.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::host_settings::HostSettings;
use crate::lab::Lab;

/// Before the name of the only test that a process of its own runs.
const ONE: &str = "--one";
/// Makes the image that all tests share.
const PREPARE: &str = "--prepare";
/// Puts the settings of this host back once its input ends.
const GUARD: &str = "--guard";
/// How many tests run side by side, as libtest has it.
const THREADS: &str = "--test-threads=";
/// The same, unless somebody says so.
const SIDE_BY_SIDE: usize = 3;

/// A test.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Its name, `module::function`.
    pub name: &'static str,
    /// Fails if what the name says is not so.
    pub prove: fn(&mut Lab) -> Result<()>,
}

/// Runs the selected tests and prints the result. `recipe` gives that of the image for a test of this name, and for no name that of
/// most of them. `long` are those that only `--ignored` (alone) and `--include-ignored` (too) run, as with libtest's ignored tests.
pub fn main(recipe: fn(&str) -> &'static str, tests: &[Test], long: &[Test]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [ONE, name] => return one(recipe(name), tests.iter().chain(long), name),
        [PREPARE] => return ended(Lab::beside_others(recipe(""), "prepare").map(drop)),
        [GUARD] => return ended(guard()),
        _ => {}
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let names: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let selected = |test: &&Test| {
        names.is_empty() || names.iter().any(|name| test.name.contains(name.as_str()))
    };
    let usual = tests.iter().filter(|_| !has("--ignored"));
    let long = long
        .iter()
        .filter(|_| has("--ignored") || has("--include-ignored"));
    let wanted: Vec<&Test> = usual.chain(long).filter(selected).collect();
    if has("--list") {
        for test in wanted {
            print(&format!("{}: test\n", test.name));
        }
        return ExitCode::SUCCESS;
    }
    if wanted.is_empty() {
        // A name of another crate's test is no mistake: Cargo gives it to all.
        print("test result: ok. 0 passed; 0 failed\n");
        return ExitCode::SUCCESS;
    }
    let threads = arguments.iter().find_map(|a| a.strip_prefix(THREADS));
    let threads = threads.and_then(|number| number.parse().ok());
    match run(&wanted, threads.unwrap_or(SIDE_BY_SIDE)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            print(&format!("nodes in namespaces cannot run here: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(wanted: &[&Test], threads: usize) -> Result<bool> {
    let begin = Instant::now();
    let _guard = Guard::start()?;
    // A single one makes it itself.
    if wanted.len() > 1 {
        let prepared = this(&[PREPARE])?.status().context("making the image")?;
        ensure!(prepared.success(), "the image is not made");
    }
    print(&format!(
        "\nrunning {} tests on nodes in namespaces\n",
        wanted.len()
    ));
    let left = Mutex::new(wanted.iter());
    let failed = Mutex::new(Vec::new());
    let next = || lock(&left).next().copied();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(test) = next() {
                    let since = Instant::now();
                    let status = this(&[ONE, test.name])
                        .and_then(|mut test| test.status().context("starting it"));
                    let proven = status.as_ref().is_ok_and(|status| status.success());
                    let word = if proven { "ok" } else { "FAILED" };
                    let seconds = since.elapsed().as_secs_f64();
                    let reason = match &status {
                        Ok(status) if proven || status.code() == Some(1) => String::new(),
                        Ok(status) => format!(", {status}"),
                        Err(error) => format!(", {error:#}"),
                    };
                    let name = test.name;
                    print(&format!(
                        "test {name} ... {word} ({seconds:.1} s{reason})\n"
                    ));
                    if !proven {
                        lock(&failed).push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    print(&format!(
        "\ntest result: {}. {} passed; {} failed; finished in {:.1} s\n\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        wanted.len() - failed.len(),
        failed.len(),
        begin.elapsed().as_secs_f64(),
    ));
    for name in &failed {
        print(&format!("    failed: {name}\n"));
    }
    Ok(failed.is_empty())
}

/// The test of this name.
fn one<'a>(recipe: &str, mut tests: impl Iterator<Item = &'a Test>, name: &str) -> ExitCode {
    ended((|| {
        let test = tests.find(|test| test.name == name);
        let test = test.with_context(|| format!("there is no test {name}"))?;
        (test.prove)(&mut Lab::beside_others(recipe, test.name)?)
            .with_context(|| format!("{name} failed"))
    })())
}

/// Prints an error with all that it has to say.
fn ended(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
    // In one piece: another test may print at the same time.
    print(&format!("\n{}\n\n", chain.join("\n  because ")));
    ExitCode::FAILURE
}

/// The process that puts the settings of this host back, whatever ends this one.
struct Guard(Child);

impl Guard {
    fn start() -> Result<Self> {
        // A Ctrl-C is for the group of the tests.
        let mut guard = this(&[GUARD])?;
        let guard = guard.stdin(Stdio::piped()).process_group(0).spawn();
        Ok(Self(guard.context("keeping the settings of this host")?))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            print(&format!("waiting for the settings of this host: {error}\n"));
        }
    }
}

fn guard() -> Result<()> {
    let settings = HostSettings::keep()?;
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing)?;
    drop(settings);
    Ok(())
}

/// This program with other arguments.
#[allow(
    clippy::disallowed_methods,
    reason = "it starts itself, on the host and not in a sandbox"
)]
fn this(arguments: &[&str]) -> Result<Command> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    Ok(command)
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Progress: to stderr, which is shown as it comes.
fn print(text: &str) {
    eprint!("{text}");
}
