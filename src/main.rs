//! The program `slipway`.

mod cli;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser as _;
use slipway::host::{interrupt, sandbox};
use slipway::recipe::Mistakes;

use cli::arguments::{self, Cli, Command, PxeCommand};
use cli::commands;

/// The work failed.
const FAILURE: u8 = 1;
/// The command line or a recipe is wrong (clap's code for the former).
const USAGE: u8 = 2;
/// Interrupted, as shells say it of Ctrl-C.
const INTERRUPTED: u8 = 130;
/// How long guarded work may take to end in order.
const GRACE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.output.json;
    // Before any thread is started: a user namespace is entered by one thread alone.
    let root = if cli.command.starts_programs() {
        sandbox::become_root_of_namespace()
    } else {
        Ok(())
    };
    let root = match (&cli.command, root) {
        (Command::Doctor, root) => root.err(),
        (_, Ok(())) => None,
        (_, Err(error)) => {
            let error =
                error.context("this user cannot have namespaces; `slipway doctor` says more");
            arguments::print_error(&error, json);
            return ExitCode::from(FAILURE);
        }
    };
    speak(cli.output.verbose);
    match interruptible(move || dispatch(cli, root)).flatten() {
        Ok(code) => code,
        Err(_) if interrupt::requested() => {
            arguments::print_error(&anyhow::anyhow!("interrupted"), json);
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            arguments::print_error(&error, json);
            ExitCode::from(if error.is::<Mistakes>() {
                USAGE
            } else {
                FAILURE
            })
        }
    }
}

/// Sends what libraries and steps trace to stderr.
fn speak(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
}

/// Does the work in a thread of its own, and gives up on it when a signal comes: at once, or when the last
/// [`interrupt::Guard`] is gone.
fn interruptible(
    work: impl FnOnce() -> Result<ExitCode> + Send + 'static,
) -> Result<Result<ExitCode>> {
    let (tell, told) = mpsc::channel();
    let signalled = tell.clone();
    let thread = std::thread::Builder::new();
    thread.name("signals".to_owned()).spawn(move || {
        if let Err(error) = wait_for_signals(&signalled) {
            tracing::warn!("signals are not handled: {error:#}");
        }
    })?;
    let thread = std::thread::Builder::new();
    let worker = thread.name("work".to_owned()).spawn(move || {
        let result = work();
        tell.send(Event::Done).ok();
        result
    })?;
    let mut deadline = None;
    loop {
        let event = match deadline {
            None => told.recv().context("waiting for the work")?,
            Some(_) => told
                .recv_timeout(Duration::from_millis(50))
                .unwrap_or(Event::Tick),
        };
        let over = match (event, deadline) {
            (Event::Done, _) => {
                return Ok(match worker.join() {
                    Ok(result) => result,
                    Err(_) => Err(anyhow::anyhow!("a bug: the work panicked")),
                });
            }
            (Event::Signal, None) => {
                interrupt::request();
                deadline = Some(Instant::now() + GRACE);
                !interrupt::guarded()
            }
            (Event::Signal, Some(_)) => true,
            (Event::Tick, deadline) => {
                !interrupt::guarded() || deadline.is_some_and(|deadline| deadline < Instant::now())
            }
        };
        if over {
            anyhow::bail!("interrupted");
        }
    }
}

/// What the main thread waits for.
enum Event {
    Done,
    Signal,
    Tick,
}

fn wait_for_signals(tell: &mpsc::Sender<Event>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            if tell.send(Event::Signal).is_err() {
                return Ok(());
            }
        }
    })
}

fn dispatch(cli: Cli, refused: Option<anyhow::Error>) -> Result<ExitCode> {
    let output = cli.output;
    match cli.command {
        Command::Demo(args) => commands::demo(&args, output),
        Command::Build(args) => commands::build(&args, output),
        Command::Inspect { image } => commands::inspect(&image, output),
        Command::Run(args) => commands::run(&args, output),
        Command::Lock(args) => commands::lock(&args, output),
        Command::Check { recipe } => commands::check(&recipe.recipe, output),
        Command::Timeline(args) => commands::timeline(&args, output),
        Command::Pxe(PxeCommand::Serve { folder, listen }) => commands::pxe_serve(&folder, listen),
        Command::Cache(command) => commands::cache(&command, output),
        Command::Doctor => commands::doctor(refused, output),
        Command::Schema { markdown } => commands::schema(markdown),
        Command::Completions { shell } => commands::completions(shell),
        Command::Ignition { command } => commands::ignition(command, output),
    }
}
