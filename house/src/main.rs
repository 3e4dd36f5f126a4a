//! Prints the table of the workspace's structure.
#![allow(
    clippy::print_stdout,
    reason = "a program that speaks to whoever runs it"
)]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use house::graph::Crate;
use house::{rules, table, workspace};

/// Prints files, lines, circles, back arrows, largest room and function lengths of each crate, and the rules that are
/// broken.
#[derive(Debug, Parser)]
#[command(name = "house")]
struct Arguments {}

fn main() -> Result<ExitCode> {
    Arguments::parse();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = top.parent().context("finding the workspace")?;
    let packages = workspace::read(top)?;
    let mut crates = Vec::new();
    for package in &packages {
        crates.push(Crate::read(top, package)?);
    }
    print!("{}", table::markdown(&crates));
    let mut findings = rules::dependencies(&packages, rules::ARROWS);
    findings.extend(crates.iter().flat_map(rules::check));
    for finding in &findings {
        println!("{finding}");
    }
    Ok(if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
