//! Ignition configs on the workstation, and the program that applies them elsewhere.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use slipway::host::atomic_file;
use slipway::recipe::node_config;

use crate::cli::arguments::{self, Output};

/// Exit code: the checked config is wrong.
const WRONG: u8 = 2;

pub(crate) fn ignition(command: arguments::Ignition, output: Output) -> Result<ExitCode> {
    use arguments::Ignition::{FromButane, Merge, Program, Validate};

    let cases = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    };
    match command {
        Validate {
            batch: Some(batch), ..
        } => {
            arguments::print(&node_config::check_batch(&cases(&batch)?)?)?;
        }
        Merge {
            batch: Some(batch), ..
        } => {
            arguments::print(&node_config::merge_batch(&cases(&batch)?)?)?;
        }
        Validate { config, local, .. } => {
            let config = config.unwrap_or_default();
            let verdict = node_config::check_file(&config, local.files().as_ref())?;
            if output.json {
                arguments::print_json(&verdict.to_json())?;
            } else if !verdict.report.entries.is_empty() {
                arguments::print(&format!("{}\n", verdict.report))?;
            }
            if verdict.config.is_none() {
                return Ok(ExitCode::from(WRONG));
            }
        }
        Merge {
            parent,
            child,
            local,
            ..
        } => {
            let (parent, child) = (parent.unwrap_or_default(), child.unwrap_or_default());
            let files = local.files();
            arguments::print_json(&node_config::merge(&parent, &child, files.as_ref())?)?;
        }
        FromButane {
            config,
            local,
            strict,
            pretty,
            output: to,
        } => {
            let (json, report) = node_config::from_butane(&config, local.files().as_ref())?;
            let Some(json) = json.filter(|_| !strict || report.entries.is_empty()) else {
                return refused(&report, output);
            };
            if !output.quiet {
                arguments::print_findings(&report);
            }
            let mut text = match pretty {
                true => serde_json::to_string_pretty(&json)?,
                false => json.to_string(),
            };
            text.push('\n');
            match to {
                Some(path) => {
                    atomic_file::write(&path, 0o666, |file| Ok(file.write_all(text.as_bytes())?))?
                }
                None => arguments::print(&text)?,
            }
        }
        Program { output: to } => atomic_file::write(&to, 0o755, |file| {
            Ok(file.write_all(slipway::IGNITION_PROGRAM)?)
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the errors of a config; gives the exit code.
fn refused(report: &::ignition::Report, output: Output) -> Result<ExitCode> {
    if output.json {
        let entries = node_config::entries(report);
        arguments::print_json(&serde_json::json!({ "accept": false, "entries": entries }))?;
    } else {
        arguments::print_findings(report);
    }
    Ok(ExitCode::from(WRONG))
}
