//! `ignition`: honours the command line of Ignition's stages, each a process, so that an initrd that runs Ignition can
//! run this program instead.
//!
//! The stages share two files: the config as it was fetched, and what later ones need to know of earlier ones.

// Floor: what a stage is given
mod environment;
mod flags;
mod kernel_arguments;
mod state;

// Floor: disks, without a system disk of ours
mod disks;

// Floor: configs, fetched in one stage and applied in others
mod fetcher;

// Floor: the stages
mod stages;

use std::process::ExitCode;

use linux::log;

use crate::environment::Surroundings;
use crate::flags::Asked;
use crate::stages::{Failed, NOT_READY};

/// The name that it answers to.
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
        Ok(Asked::Version) => return print(&version()),
        Ok(Asked::Help) => return print(&flags::usage()),
        Ok(Asked::Stage(flags)) => flags,
        Err(why) => {
            eprintln!("{NAME}: {why}");
            return ExitCode::from(USAGE);
        }
    };
    if let Err(error) = log::plain(flags.log_to_stdout) {
        eprintln!("{NAME}: {error:#}");
    }
    tracing::info!("{}", version());
    tracing::info!("stage {} on {}", flags.stage, flags.platform);
    let done = Surroundings::read()
        .map_err(|why| Failed {
            code: NOT_READY,
            why,
        })
        .and_then(|surroundings| stages::run(&flags, &surroundings));
    match done {
        Ok(()) => {
            tracing::info!("{} finished successfully", flags.stage);
            ExitCode::SUCCESS
        }
        Err(Failed { code, why }) => {
            for line in format!("{why:#}").lines() {
                tracing::error!("{}: {line}", flags.stage);
            }
            ExitCode::from(code)
        }
    }
}

fn version() -> String {
    format!("Ignition 3.6.0 by Slipway {}", env!("CARGO_PKG_VERSION"))
}

/// Writes to the standard output: what was asked for by name.
fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
