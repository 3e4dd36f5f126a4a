//! Runs the tests one after the other, selected by name as libtest does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::lab::Lab;

/// A test.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Its name, `module::function`.
    pub name: &'static str,
    /// Fails if what the name says is not so.
    pub prove: fn(&mut Lab) -> Result<()>,
}

/// Runs the selected tests on nodes of the image of `recipe` and prints the result. `long` are those that only `--ignored`
/// (alone) and `--include-ignored` (too) run, as with libtest's ignored tests.
pub fn main(recipe: &str, tests: &[Test], long: &[Test]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
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
    match run(recipe, &wanted) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            print(&format!("nodes in namespaces cannot run here: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(recipe: &str, wanted: &[&Test]) -> Result<bool> {
    let begin = Instant::now();
    let mut lab = Lab::open(recipe)?;
    print(&format!(
        "\nrunning {} tests on nodes in namespaces\n",
        wanted.len()
    ));
    let mut failed = Vec::new();
    for test in wanted {
        let since = Instant::now();
        let proven = catch_unwind(AssertUnwindSafe(|| (test.prove)(&mut lab)))
            .unwrap_or_else(|panic| Err(anyhow!("it panicked: {}", text(&*panic))));
        let word = if proven.is_ok() { "ok" } else { "FAILED" };
        let seconds = since.elapsed().as_secs_f64();
        print(&format!("test {} ... {word} ({seconds:.1} s)\n", test.name));
        if let Err(error) = proven {
            let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
            print(&format!("\n{}\n\n", chain.join("\n  because ")));
            failed.push(test.name);
        }
    }
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

fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let fixed = panic.downcast_ref::<&str>().copied();
    fixed
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

/// Progress: to stderr, which is shown as it comes.
fn print(text: &str) {
    eprint!("{text}");
}
