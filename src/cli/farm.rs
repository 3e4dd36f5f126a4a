//! Commands about farms.

use std::process::ExitCode;

use anyhow::Result;
use slipway::farm::{self, Input};

use super::arguments::farm::FarmCommand;
use super::arguments::{self, Output};

pub(crate) fn run(command: &FarmCommand, output: &Output) -> Result<ExitCode> {
    let FarmCommand::Render(args) = command;
    let settings = args.settings(output.remote_cache.as_deref())?;
    let inputs = args.recipes.iter().map(|recipe| Input::read(recipe));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    if output.json {
        arguments::print_json(&farm::list(&inputs, &settings)?)?;
    } else {
        arguments::print(&farm::render(&inputs, &settings)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
