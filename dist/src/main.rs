//! Makes the tarball of a release: the program, linked statically, with its manual pages and completions, and the name of its compiler;
//! the same bytes for the same sources and compiler, wherever they are.
#![allow(clippy::print_stdout, reason = "the tarball's path is the result")]

// Floor: the program
mod compile;
mod elf;

// Floor: its documents
mod documents;

// Floor: the tarball
mod tarball;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

/// Makes the tarball of a release.
#[derive(Debug, Parser)]
#[command(name = "dist")]
struct Arguments {
    /// The folder of the tarball
    #[arg(short, long, default_value = "target/dist")]
    output: PathBuf,
    /// Take this program and do not compile it
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

fn main() -> ExitCode {
    match make(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn make(arguments: &Arguments) -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the crate is in the repository")?;
    let (program, compiler) = match &arguments.program {
        Some(program) => (program.clone(), None),
        None => {
            let compiler = compile::compiler(repository)?;
            (compile::program(repository)?, Some(compiler))
        }
    };
    let bytes = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
    elf::is_static(&bytes).with_context(|| format!("checking {}", program.display()))?;
    let mut files = documents::of(&program)?;
    files.insert("bin/slipway".to_owned(), (0o755, bytes));
    files.extend(documents::texts(repository, compiler)?);
    let name = format!(
        "slipway-{}-{}-linux",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    let tarball = tarball::pack(&name, &files)?;
    let written = tarball::write(&arguments.output, &format!("{name}.tar.gz"), &tarball)?;
    println!("{}", written.display());
    Ok(())
}
