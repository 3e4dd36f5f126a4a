//! Prints the table of the workspace's structure, and draws it.
#![allow(
    clippy::print_stdout,
    reason = "a program that speaks to whoever runs it"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use house::graph::Crate;
use house::{picture, rules, table, workspace};

/// Prints files, lines, circles, back arrows, largest room and function lengths of each crate, and the rules that are
/// broken.
#[derive(Debug, Parser)]
#[command(name = "house")]
struct Arguments {
    /// Also draw the crates and their rooms into FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also write the table into FILE, between the lines `<!-- house -->` and `<!-- /house -->`
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = top.parent().context("finding the workspace")?;
    let packages = workspace::read(top)?;
    let mut crates = Vec::new();
    for package in &packages {
        crates.push(Crate::read(top, package)?);
    }
    let text = table::markdown(&crates);
    print!("{text}");
    if let Some(path) = &arguments.table {
        let page =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let page = table::inserted(&page, &text)
            .with_context(|| format!("finding the place of the table in {}", path.display()))?;
        fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &arguments.svg {
        fs::write(path, picture::svg(&crates))
            .with_context(|| format!("writing {}", path.display()))?;
    }
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
