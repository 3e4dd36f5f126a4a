//! The program `slipway`.

// Floor: the command line
mod cli;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use slipway::cluster::object::Wrong;
use slipway::format::threads;
use slipway::host::full_disk::{self, Place};
use slipway::host::interrupt::Interrupt;
use slipway::host::preflight::{self, Refusal};
use slipway::recipe::Mistakes;

use cli::arguments::{self, Cli, Command, PxeCommand};
use cli::{cluster, commands, farm, manual, release, signals, traces};

/// Exit code: the work failed.
const FAILURE: u8 = 1;
/// Exit code: the command line or a recipe is wrong (clap's code for the former).
const USAGE: u8 = 2;
/// Exit code after an interrupt, the same as a shell's for Ctrl-C.
const INTERRUPTED: u8 = 130;
fn main() -> ExitCode {
    let cli = Cli::parse();
    let (json, color) = (cli.output.json, cli.output.color);
    threads::limit(cli.output.jobs.map(usize::from));
    // Before any thread is started: only a single-threaded process can enter a user namespace.
    let entered = match cli.command.starts_programs() {
        true => preflight::enter(),
        false => Ok(()),
    };
    let entered = match (&cli.command, entered) {
        (Command::Doctor, entered) => entered,
        (_, Ok(())) => Ok(()),
        (_, Err(refusal)) => {
            arguments::print_error(&refusal.into(), json, color);
            return ExitCode::from(FAILURE);
        }
    };
    traces::begin(cli.output.verbose, json);
    tracing::debug!("{} threads unpack, hash and compress", threads::number());
    let interrupt = Interrupt::default();
    let work = {
        let interrupt = interrupt.clone();
        move || dispatch(cli, entered, &interrupt)
    };
    match signals::interruptible(&interrupt, work).flatten() {
        Ok(code) => code,
        Err(_) if interrupt.requested() => {
            interrupt.clean();
            // What the user asked for is no error.
            arguments::print_interrupted(json);
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            arguments::print_error(&error, json, color);
            let is_wrong =
                error.is::<Mistakes>() || error.is::<ignition::Report>() || error.is::<Wrong>();
            ExitCode::from(if is_wrong { USAGE } else { FAILURE })
        }
    }
}

/// Runs the command, on a host that can. What it writes goes to the cache and to the output folder: the error of a full disk says
/// which of them is full.
fn dispatch(cli: Cli, entered: Result<(), Refusal>, interrupt: &Interrupt) -> Result<ExitCode> {
    if !cli.command.needs_preflight() {
        return run(cli, entered, interrupt);
    }
    let cache = cli.output.cache();
    let folder = cli.command.output_folder().map(Path::to_owned);
    preflight::require(&cache, folder.as_deref())?;
    let root = cache.map(|cache| cache.root().to_owned())?;
    run(cli, entered, interrupt).map_err(|error| {
        let places = std::iter::once(Place::cache(&root));
        let places = places.chain(folder.as_deref().map(Place::output));
        full_disk::explain(error, "this command", &places.collect::<Vec<_>>())
    })
}

fn run(cli: Cli, entered: Result<(), Refusal>, interrupt: &Interrupt) -> Result<ExitCode> {
    let output = cli.output;
    match cli.command {
        Command::Demo(args) => commands::demo(&args, output, interrupt),
        Command::New(args) => commands::new(&args, output),
        Command::Build(args) => commands::build(&args, output, interrupt),
        Command::Diff(args) => commands::diff(&args, output, interrupt),
        Command::Inspect { image } => commands::inspect(&image, output),
        Command::Run(args) => commands::run(&args, output, interrupt),
        Command::Lock(args) => commands::lock(&args, output, interrupt),
        Command::Check(args) => commands::check(&args, output),
        Command::Timeline(args) => commands::timeline(&args, output, interrupt),
        Command::Pxe(PxeCommand::Serve { folder, listen }) => {
            commands::pxe_serve(&folder, listen, output, interrupt)
        }
        Command::Cluster(command) => cluster::run(&command, output, interrupt),
        Command::Farm(command) => farm::run(&command, &output),
        Command::Release(command) => release::run(&command, output, interrupt),
        Command::Cache(command) => commands::cache(&command, output),
        Command::Doctor => commands::doctor(entered, output, interrupt),
        Command::Schema { markdown, cluster } => commands::schema(markdown, cluster),
        Command::Manual { page, list } => manual::print(&page, list).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => commands::completions(shell),
        Command::Ignition { command } => commands::ignition(command, output),
    }
}
