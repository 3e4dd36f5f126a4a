//! In Ignition's place: started as `ignition`, or as `slipway-init ignition`, this program honours the command line of
//! Ignition's stages, each a process of its own, so that an initrd that runs Ignition can run it instead.
//!
//! The stages share two files: the config as it was fetched, and what later ones need to know of earlier ones.

mod flags;
mod kargs;
mod stages;
mod state;
mod surroundings;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use flags::Asked;
use surroundings::Surroundings;

use crate::log;

/// The name that it answers to.
const NAME: &str = "ignition";
/// Exit code of a wrong command line.
const USAGE: u8 = 2;
/// Exit code when what the stage needs before it begins is not there.
const NOT_READY: u8 = 3;

/// Why a stage ended, with its exit code.
#[derive(Debug)]
struct Failed {
    code: u8,
    why: anyhow::Error,
}

impl From<anyhow::Error> for Failed {
    fn from(why: anyhow::Error) -> Self {
        Self { code: 1, why }
    }
}

/// The arguments behind the program's name, if this is Ignition's place: `args` are all, the name first.
pub(crate) fn arguments(args: &[String]) -> Option<&[String]> {
    let (name, rest) = args.split_first()?;
    if Path::new(name).file_name() == Some(OsStr::new(NAME)) {
        return Some(rest);
    }
    match rest.split_first() {
        Some((first, rest)) if first == NAME => Some(rest),
        _ => None,
    }
}

/// Runs one stage.
pub(crate) fn run(args: &[String]) -> ExitCode {
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
    format!(
        "Ignition 3.6.0 by slipway-init {}",
        env!("CARGO_PKG_VERSION")
    )
}

/// Writes to the standard output: what was asked for by name.
fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_called_by_either_name() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            arguments(&words).map(<[String]>::to_vec)
        };
        assert_eq!(
            of(&["/usr/bin/ignition", "-version"]),
            Some(vec!["-version".to_owned()])
        );
        assert_eq!(
            of(&["slipway-init", "ignition", "-x"]),
            Some(vec!["-x".to_owned()])
        );
        assert_eq!(of(&["slipway-init", "gate"]), None);
        assert_eq!(of(&["slipway-init"]), None);
        assert_eq!(of(&[]), None);
    }
}
