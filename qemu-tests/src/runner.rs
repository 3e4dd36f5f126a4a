//! Runs promises one after the other, selected by name as libtest does.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use crate::lab::Lab;

#[cfg(test)]
mod tests;

/// Lines of a console that are shown with a failure.
const TAIL: usize = 50;
/// Message of the guest's kernel about a processor whose timer does not fire any more. QEMU's software emulation loses
/// a timer in about one boot of a hundred on a loaded host, before our code runs, so the promise is tried again.
const LOST_TIMER: &str = "Possible timer handling issue on cpu=";
/// QEMU's last words when its software emulation looked a device up by an entry of the translation table that the other
/// processor had replaced meanwhile: seen once, in a second boot of a control plane on a loaded host.
const ASSERTION: &str = ": iotlb_to_section: Assertion `";
/// The prefix of our init's messages in the kernel's log.
const INIT: &str = "slipway-init: ";

/// A promise and its proof.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Its name, `module::function`.
    pub name: &'static str,
    /// Fails if the promise does not hold.
    pub prove: fn(&mut Lab) -> Result<()>,
}

/// The command line: the options of libtest that apply here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    list: bool,
    exact: bool,
    ignored: bool,
    all: bool,
    names: Vec<String>,
    skip: Vec<String>,
}

impl Arguments {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut parsed = Self::default();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => parsed.list = true,
                "--exact" => parsed.exact = true,
                "--ignored" => parsed.ignored = true,
                "--include-ignored" => parsed.all = true,
                "--skip" => parsed.skip.extend(arguments.next()),
                // Options of libtest that take a value and have no effect here.
                "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => {
                    arguments.next();
                }
                flag if flag.starts_with('-') => {}
                _ => parsed.names.push(argument),
            }
        }
        parsed
    }

    fn selects(&self, name: &str) -> bool {
        let hit = |wanted: &String| {
            if self.exact {
                name == wanted
            } else {
                name.contains(wanted.as_str())
            }
        };
        (self.names.is_empty() || self.names.iter().any(hit)) && !self.skip.iter().any(hit)
    }
}

/// Runs the selected promises and prints the result. A failure shows the end of each console; the complete consoles are
/// written to files.
///
/// `long` is the part that only `--ignored` (alone) and `--include-ignored` (too) run, as with libtest's ignored tests.
pub fn main(promises: &[Promise], long: &[Promise]) -> ExitCode {
    let parsed = Arguments::parse(std::env::args().skip(1));
    let usual = promises.iter().filter(|_| !parsed.ignored);
    let long = long.iter().filter(|_| parsed.ignored || parsed.all);
    let promises: Vec<&Promise> = usual.chain(long).collect();
    let wanted: Vec<&Promise> = promises
        .iter()
        .copied()
        .filter(|promise| parsed.selects(promise.name))
        .collect();
    if parsed.list {
        for promise in wanted {
            print(&format!("{}: test\n", promise.name));
        }
        return ExitCode::SUCCESS;
    }
    // A misspelled name would prove nothing and look like success.
    if wanted.is_empty() && !parsed.names.is_empty() {
        print(&format!(
            "no promise is called {}; --list prints all names\n",
            parsed.names.join(" or ")
        ));
        return ExitCode::FAILURE;
    }
    // Before any thread is started.
    if !wanted.is_empty()
        && let Err(error) = slipway::host::sandbox::become_root_of_namespace()
    {
        print(&format!(
            "tests in virtual machines cannot run here: {error:#}\n"
        ));
        return ExitCode::FAILURE;
    }
    print(&format!("\nproving {} promises\n", wanted.len()));
    let (mut failed, mut retried) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    let mut lab = None;
    for promise in &wanted {
        match prove(promise, &mut lab) {
            Ok(Proof::AtOnce) => {}
            Ok(Proof::Retried) => retried.push(promise.name),
            Err(error) => {
                let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
                let why = chain.join("\n  because ");
                print(&format!("\n{why}\n\n"));
                failed.push((promise.name, why));
            }
        }
    }
    // Once more, since other promises have printed behind them.
    for (_, why) in &failed {
        print(&format!("\n{why}\n"));
    }
    print(&format!(
        "\npromise result: {}. {} proven, {} of them at a second attempt; {} failed; {} filtered out; finished in {:.1} s\n\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        wanted.len() - failed.len(),
        retried.len(),
        failed.len(),
        promises.len() - wanted.len(),
        begin.elapsed().as_secs_f64(),
    ));
    for name in &retried {
        print(&format!("    retried: {name}\n"));
    }
    for (name, _) in &failed {
        print(&format!("    failed: {name}\n"));
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// How a promise was proven.
enum Proof {
    AtOnce,
    /// After an attempt that the emulator spoilt.
    Retried,
}

/// Whether the emulator lost a processor's timer: the kernel says so before our init runs, or, later too, twice of one processor with the
/// same count of its timer's interrupts, so that it had none in the 20 s between. No program can take them away.
fn lost_timer(console: &str) -> bool {
    let before = console
        .split_once(INIT)
        .map_or(console, |(before, _)| before);
    let mut seen = BTreeSet::new();
    let said = |line: &str| Some(line.split_once(LOST_TIMER)?.1.trim().to_owned());
    let twice = console
        .lines()
        .filter_map(said)
        .any(|said| !seen.insert(said));
    before.contains(LOST_TIMER) || twice
}

/// What the emulator did that spoilt an attempt, if it did, by what the guests and QEMU itself said.
fn emulators_fault(consoles: &[String], complaints: &[String]) -> Option<&'static str> {
    if complaints.iter().any(|text| text.contains(ASSERTION)) {
        return Some("an assertion of QEMU's own failed");
    }
    let lost = consoles.iter().any(|text| lost_timer(text));
    lost.then_some("QEMU lost a processor's timer")
}

fn prove(promise: &Promise, lab: &mut Option<Lab>) -> Result<Proof> {
    print(&format!("promise {} ... ", promise.name));
    let begin = Instant::now();
    let lab = match lab {
        Some(lab) => lab,
        None => {
            print("building the image ... ");
            match Lab::open() {
                Ok(open) => lab.insert(open),
                Err(error) => {
                    print("FAILED\n");
                    return Err(error.context("building the image that is tested"));
                }
            }
        }
    };
    let mut result = attempt(promise, lab);
    let mut proof = Proof::AtOnce;
    if result.is_err()
        && let Some(fault) = emulators_fault(&lab.consoles(), &lab.complaints())
    {
        print(&format!("{fault}, trying again ... "));
        keep_consoles(lab, &format!("{}-emulator", promise.name))?;
        lab.abandon();
        proof = Proof::Retried;
        result = attempt(promise, lab);
    }
    let took = begin.elapsed().as_secs_f64();
    match result {
        Ok(()) => {
            print(&format!("ok ({took:.1} s)\n"));
            Ok(proof)
        }
        Err(error) => {
            print(&format!("FAILED ({took:.1} s)\n"));
            let console = keep_consoles(lab, promise.name)
                .unwrap_or_else(|error| format!("the console was not kept: {error:#}"));
            lab.abandon();
            Err(error.context(format!("{}\n{console}", promise.name)))
        }
    }
}

fn attempt(promise: &Promise, lab: &mut Lab) -> Result<()> {
    lab.begin()?;
    catch_unwind(AssertUnwindSafe(|| (promise.prove)(lab)))
        .unwrap_or_else(|panic| Err(anyhow!("a panic: {}", said(&*panic))))
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

fn keep_consoles(lab: &Lab, name: &str) -> Result<String> {
    let mut shown = String::new();
    let folder = lab.folder().join("consoles");
    std::fs::create_dir_all(&folder)?;
    for (number, console) in lab.consoles().iter().enumerate() {
        let file = folder.join(format!("{}-{}.log", name.replace("::", "-"), number + 1));
        keep(&file, console)?;
        let lines: Vec<&str> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  | ");
        shown += &format!(
            "console {} ends so, all of it is in {}:\n  | {tail}\n",
            number + 1,
            file.display()
        );
    }
    Ok(shown)
}

fn keep(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// Prints a line that a promise says about itself, as the seed of its random numbers.
pub fn note(text: &str) {
    print(&format!("\n    {text}"));
}

#[allow(clippy::print_stdout, reason = "a test runner prints its results")]
fn print(text: &str) {
    use std::io::Write;
    print!("{text}");
    std::io::stdout().flush().ok();
}
