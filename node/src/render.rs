//! `render --batch FILE`: what configurations of clusters come to, one line of JSON for each.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use cluster::answer::answer;

/// The command's name.
pub(crate) const COMMAND: &str = "render";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str =
    "--batch FILE: what kubeadm init would write, for each line of JSON (name, kubeadm, config)";

/// Answers each line of a file on stdout; `program` is the name before an error or a warning.
pub(crate) fn batch(program: &str, file: &Path) -> ExitCode {
    match answers(program, file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {COMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn answers(program: &str, file: &Path) -> Result<()> {
    let opened = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    for (number, line) in BufReader::new(opened).lines().enumerate() {
        let place = || format!("{}, line {}", file.display(), number + 1);
        let line = line.with_context(place)?;
        if line.trim().is_empty() {
            continue;
        }
        let answer = answer(&line).map_err(|error| anyhow!(error));
        let answer = answer.with_context(place)?;
        for warning in &answer.warnings {
            eprintln!("{program}: {COMMAND}: warning: {warning}");
        }
        writeln!(out, "{}", answer.line)?;
    }
    out.flush().context("writing the answers")
}
