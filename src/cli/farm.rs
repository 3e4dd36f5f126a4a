//! Commands about farms.

use std::process::ExitCode;

use anyhow::Result;
use slipway::farm::{self, Input};

use super::arguments::farm::{FarmCommand, RenderArgs};
use super::arguments::{self, Output};

pub(crate) fn run(command: &FarmCommand, output: &Output) -> Result<ExitCode> {
    let FarmCommand::Render(args) = command;
    arguments::print(&render(args, output)?)?;
    Ok(ExitCode::SUCCESS)
}

fn render(args: &RenderArgs, output: &Output) -> Result<String> {
    let settings = args.settings(output.remote_cache.as_deref())?;
    let inputs = args.recipes.iter().map(|recipe| Input::read(recipe));
    farm::render(&inputs.collect::<Result<Vec<_>>>()?, &settings)
}
