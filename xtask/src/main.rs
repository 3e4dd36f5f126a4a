//! `cargo xtask test`: every test of the workspace.
//!
//! Cargo runs one test program after the other. The longest of them boot virtual machines, one at a time, whose emulation
//! takes one processor; so all that needs no machine runs beside them, at the lowest priority.
#![allow(clippy::print_stdout, reason = "the results of tests")]

// Floor: a test program
mod program;

// Floor: running them
mod lanes;

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::lanes::Lanes;

const HELP: &str = "\
Compiles and runs every test of the workspace, the ones in QEMU included.

Usage: cargo xtask test [--list]

Options:
  --list  Compile, and print the test programs in their order

Tests of virtual machines and of whole clusters run one after the other; all others run beside them, at the lowest
priority. What those print comes when the test of machines that runs ends, and at once if one failed. The promise of a
whole cluster in a machine has the host to itself, when all others have ended. A test program that fails ends nothing
else; its last words come once more at the end. Exit code 1 if one failed. One test alone: see CONTRIBUTING.md.";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let told = match words[..] {
        ["test"] => test(),
        ["test", "--list"] => list(),
        ["--help" | "-h" | "help"] | ["test", "--help" | "-h"] => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<()> {
    let lanes = Lanes::of(program::compile()?)?;
    for (name, lane) in [
        ("one after the other", lanes.paced),
        ("beside them", lanes.beside),
        ("alone at the end", lanes.alone),
    ] {
        println!("{name}:");
        for program in lane {
            println!("  {}", program.name());
        }
    }
    Ok(())
}

fn test() -> Result<()> {
    let begin = Instant::now();
    let lanes = Lanes::of(program::compile()?)?;
    println!("compiled in {:.0} s", begin.elapsed().as_secs_f64());
    let ended = lanes.run()?;
    println!("\n{}{}", lanes::table(&ended), lanes::last_words(&ended));
    let failed: Vec<&str> = ended
        .iter()
        .filter(|one| !one.good)
        .map(|one| one.name.as_str())
        .collect();
    ensure!(
        failed.is_empty(),
        "{} of {} test programs failed: {}",
        failed.len(),
        ended.len(),
        failed.join(", ")
    );
    println!(
        "all {} test programs passed in {:.0} s",
        ended.len(),
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}
