//! `ignition`: the stages of Ignition, each a process with Ignition's command line, for initrds of other systems
//! (`docs/in-place-of-ignition.md`).
//!
//! The stages share two files: the fetched config, and the facts that a stage records for later ones ([`state`]).

// Floor: inputs of a stage
mod environment;
mod flags;
mod state;

// Floor: disks and kernel arguments
mod disks;
mod kernel_arguments;

// Floor: configs, fetched in one stage and applied in others
mod fetcher;

// Floor: the user's config
mod user_config;

// Floor: the stages
mod stages;

use std::process::ExitCode;

use linux::log;

use crate::environment::Environment;
use crate::flags::Invocation;
use crate::stages::{NOT_READY, StageError};

const NAME: &str = "ignition";
/// Exit code of a wrong command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    run(&arguments)
}

/// Runs one stage.
fn run(args: &[String]) -> ExitCode {
    let flags = match flags::parse(args) {
        Ok(Invocation::Version) => return print(&version()),
        Ok(Invocation::Help) => return print(&flags::usage()),
        Ok(Invocation::Stage(flags)) => flags,
        Err(why) => {
            eprintln!("{NAME}: {why}");
            return ExitCode::from(USAGE);
        }
    };
    if let Err(error) = log::plain(NAME, flags.log_to_stdout) {
        eprintln!("{NAME}: {error:#}");
    }
    tracing::info!("{}", version());
    tracing::info!("stage {} on {}", flags.stage, flags.platform);
    let result = Environment::read()
        .map_err(|why| StageError {
            code: NOT_READY,
            why,
        })
        .and_then(|environment| stages::run(&flags, &environment));
    match result {
        Ok(()) => {
            tracing::info!("{} finished successfully", flags.stage);
            ExitCode::SUCCESS
        }
        Err(StageError { code, why }) => {
            for line in format!("{why:#}").lines() {
                tracing::error!("{}: {line}", flags.stage);
            }
            ExitCode::from(code)
        }
    }
}

/// The version of Ignition that the command line and the headers follow, and our own.
fn version() -> String {
    format!("Ignition 3.6.0 by Slipway {}", env!("CARGO_PKG_VERSION"))
}

/// Prints to stdout the version or the usage.
fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
