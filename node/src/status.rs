//! `status`: the node's status, plain or as JSON.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use linux::world::World;

use crate::node_status::status;
use crate::status_rows::rows;

/// The command's name.
pub(crate) const COMMAND: &str = "status";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str =
    "[--json]: what runs on this node, what it waits for, and what has failed";

/// Prints the status; `program` is the name before an error.
pub(crate) fn run(program: &str, json: bool) -> ExitCode {
    let printed = text(&World::real(), json).and_then(|text| {
        std::io::stdout()
            .write_all(text.as_bytes())
            .context("writing the status")
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {COMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn text(world: &World, json: bool) -> Result<String> {
    let status = status(world, None)?;
    if json {
        return Ok(serde_json::to_string(&status).context("writing the status as JSON")? + "\n");
    }
    let lines = rows(&status);
    let lines = lines
        .iter()
        .map(|row| format!("{:12} {}\n", row.label, row.text));
    Ok(lines.collect())
}
