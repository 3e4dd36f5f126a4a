//! The command line: what can be asked for, and how answers and errors are printed.
#![allow(
    clippy::print_stdout,
    reason = "this is the layer that prints; results go to stdout, everything else to stderr"
)]

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use slipway::progress::{Kind, Progress};
use slipway::recipe::Mistakes;

/// Builds immutable operating-system images for Kubernetes nodes from one TOML recipe, and runs them.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub output: Output,
    #[command(subcommand)]
    pub command: Command,
}

/// How a run speaks.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Print results and progress as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no progress
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print more; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Output {
    /// The progress that belongs to these options.
    pub(crate) fn progress(self) -> Progress {
        Progress::new(match (self.json, self.quiet) {
            (_, true) => Kind::Quiet,
            (true, false) => Kind::Json,
            (false, false) => Kind::Auto,
        })
    }
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Pin every package and download of a recipe in the lock beside it
    Lock {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// Choose everything anew, even if the lock fits the recipe
        #[arg(long)]
        renew: bool,
        /// Write nothing: fail unless the lock is there and fits the recipe
        #[arg(long, conflicts_with = "renew")]
        locked: bool,
    },
    /// Say what this host can do, and what to do about what it cannot
    Doctor,
    /// Check a recipe and print what it comes to
    Check(RecipeArgs),
    /// Print the JSON Schema of recipes, for editors
    Schema,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether it may start programs in namespaces: an ordinary user must then enter one of its own first.
    pub(crate) const fn starts_programs(&self) -> bool {
        !matches!(
            self,
            Self::Check(_) | Self::Completions { .. } | Self::Lock { .. } | Self::Schema
        )
    }
}

/// The recipe that a command is about.
#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    /// The recipe
    #[arg(value_hint = ValueHint::FilePath)]
    pub recipe: PathBuf,
}

/// Prints a result for people or, as JSON, for machines.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("writing to stdout")
}

/// Prints a result as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print(&text)
}

/// Prints an error once: a recipe's mistakes as they are shown, everything else as one chain.
pub(crate) fn print_error(error: &anyhow::Error, json: bool) {
    let text = if json {
        let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
        serde_json::json!({ "event": "error", "chain": chain }).to_string()
    } else if let Some(mistakes) = error.downcast_ref::<Mistakes>() {
        mistakes.render(std::io::stderr().is_terminal())
    } else {
        format!("error: {error:#}")
    };
    // Without stderr there is nobody to tell.
    writeln!(std::io::stderr().lock(), "{text}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
