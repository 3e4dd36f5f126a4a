//! One function for each command: from its arguments to a result on stdout.

mod cache;
mod ignition;
mod recipe;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::CommandFactory as _;
use cluster::object::json_schema;
use platform::provider::DiskController;
use slipway::host::atomic_file;
use slipway::host::interrupt::Interrupt;
use slipway::host::preflight::Refusal;
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::lock::{self, Mode};
use slipway::publish::page::Page;
use slipway::recipe::{self as recipes, Choice, Platform, SET_TOOLS_BUILD};
use slipway::vm::channel::Sink;
use slipway::vm::machine::disk::Bus;
use slipway::vm::{demo, disks, pxe, run, terminal, timeline};
use slipway::{artifact, compare, doctor, inspect, pipeline};

pub(crate) use self::cache::cache;
pub(crate) use self::ignition::ignition;
pub(crate) use self::recipe::{build, check, lock, new};
use super::arguments::{self, Cli, DemoArgs, DiffArgs, Output, RunArgs, TimelineArgs};

/// Exit code: the work failed, without an error to print.
const FAILURE: u8 = 1;
/// Interval at which a server checks for the request to end.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &RunArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let given = arguments::given_or_only(args.image.as_deref())?;
    let is_built = given.is_dir();
    if is_built && !args.choice.is_empty() {
        bail!(
            "--variant and --set are for a recipe, and {} is built",
            given.display()
        );
    }
    let choice = args.choice.one()?;
    let mut options = args.options();
    // Before anything is built or fetched.
    let disk = is_built.then(|| given.join(artifact::DISK));
    run::check(&options, disk.as_deref())?;
    let session = &output.session(interrupt)?;
    let (image, tools, bus) = image(session, &given, choice, &args.out.output)?;
    options.bus = args.bus.unwrap_or(bus);
    let console: Sink = match output.json {
        true => terminal::to_events(),
        false => Box::new(terminal::to_stdout),
    };
    run::run(session, &image, &tools, &options, console)?;
    Ok(ExitCode::SUCCESS)
}

/// The image of a run, built first if a recipe is given; the tools that run it; and the default controller of its
/// disks.
fn image(
    session: &Session,
    given: &Path,
    choice: Choice,
    output: &Path,
) -> Result<(run::Image, Tools, Bus)> {
    if given.is_dir() {
        let image = run::Image::open(given)?;
        return Ok((image, carried_tools(session)?, Bus::default()));
    }
    if given.extension().is_none_or(|kind| kind != "toml") {
        bail!(
            "{} is neither a recipe nor an output folder of `slipway build`",
            given.display()
        );
    }
    let built = pipeline::build(session, &recipe::request(given, choice, output, Mode::Make))?;
    let tools = pipeline::tools_run(session, &built.locked)?;
    let bus = home_bus(&built.locked.recipe.kernel.platforms);
    Ok((run::Image::open(&built.out)?, tools, bus))
}

/// The image that is given, or that of a cluster's nodes.
pub(crate) fn image_or_cluster(
    session: &Session,
    given: Option<&Path>,
    output: &Path,
) -> Result<(run::Image, Tools, Bus)> {
    let choice = Choice::default();
    match given {
        Some(given) => image(session, given, choice, output),
        None => image(
            session,
            &recipes::carried::cluster(&session.cache)?,
            choice,
            output,
        ),
    }
}

/// The controller of the first platform whose disks are not on virtio.
fn home_bus(platforms: &[Platform]) -> Bus {
    let controller = platforms
        .iter()
        .find_map(|platform| platform.provider().disks);
    match controller {
        Some(DiskController::Nvme) => Bus::Nvme,
        Some(DiskController::VirtioScsi) => Bus::Scsi,
        None => Bus::Virtio,
    }
}

/// The tools of the embedded recipe, for images without a recipe.
fn carried_tools(session: &Session) -> Result<Tools> {
    let recipe = recipes::load(&recipes::carried::tools(&session.cache)?)?;
    let locked = lock::pin(session, recipe, Mode::Make)?;
    pipeline::tools_run(session, &locked)
}

pub(crate) fn demo(args: &DemoArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    // Before anything is built or fetched.
    run::check(&args.options(), None)?;
    let session = &output.session(interrupt)?;
    let progress = &session.progress;
    let recipe = recipes::carried::demo(&session.cache)?;
    let built = pipeline::build(
        session,
        &recipe::request(&recipe, Choice::default(), &args.out.output, Mode::Make),
    )?;
    let tools = pipeline::tools_run(session, &built.locked)?;
    let image = run::Image::open(&built.out)?;
    let verdict = demo::run(session, &image, &tools, &args.options())?;
    if output.json {
        arguments::print_json(&verdict)?;
    } else {
        if !output.quiet {
            progress.say(progress.table().trim_end());
        }
        arguments::print(&format!("{verdict}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn inspect(image: &Path, output: Output) -> Result<ExitCode> {
    let found = inspect::inspect(image)?;
    if output.json {
        arguments::print_json(&found)?;
    } else {
        arguments::print(&found.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn diff(args: &DiffArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let (from, to) = (&args.from, &args.to);
    let images = compare::Images::read(from, to)?;
    let mut found = images.compare();
    if found.files.is_none() && !args.no_files {
        let session = output.session(interrupt)?;
        let recipe = recipes::load(&recipes::carried::tools(&session.cache)?)?;
        let locked = lock::pin(&session, recipe, Mode::Make)?;
        let debs = locked.fetch(&session, SET_TOOLS_BUILD)?;
        let tools = tools::install(&session, "tools", &debs)?;
        found.files = Some(images.files(&session, &tools)?);
    }
    if output.json {
        arguments::print_json(&found)?;
    } else {
        arguments::print(&found.to_string())?;
    }
    Ok(match args.exit_code && !found.is_empty() {
        true => ExitCode::from(FAILURE),
        false => ExitCode::SUCCESS,
    })
}

pub(crate) fn timeline(
    args: &TimelineArgs,
    output: Output,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    let (title, text) = boot(&args.from, &output, interrupt)?;
    let spans = timeline::read(&text)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, timeline::svg(&spans, &title))
            .with_context(|| format!("writing {}", path.display()))?;
        drawn("svg", path, &output)?;
    } else if let Some(path) = &args.page {
        let reading = || format!("reading {}", path.display());
        let html = fs::read_to_string(path).with_context(reading)?;
        let page = Page::read(&html).with_context(reading)?;
        let html = page.html(Some(&timeline::svg(&spans, &title)))?;
        atomic_file::write(path, 0o666, |file| Ok(file.write_all(html.as_bytes())?))?;
        drawn("page", path, &output)?;
    } else if output.json {
        arguments::print_json(&spans)?;
    } else {
        arguments::print(&timeline::table(&spans))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints which file has the picture.
fn drawn(kind: &str, path: &Path, output: &Output) -> Result<()> {
    match output.json {
        true => arguments::print_json(&serde_json::json!({ kind: path.display().to_string() })),
        false => arguments::print(&format!("{}\n", path.display())),
    }
}

/// The last boot's name and JSON lines, from a file or from the disk of a node that `slipway run --node` kept.
fn boot(from: &Path, output: &Output, interrupt: &Interrupt) -> Result<(String, String)> {
    if from.is_dir() {
        let disk = from.join("system.raw");
        let tools = carried_tools(&output.session(interrupt)?)?;
        let boots = disks::timelines(&tools, &disk)?;
        return boots
            .into_iter()
            .next_back()
            .with_context(|| format!("{} has not booted yet", disk.display()));
    }
    let text = std::fs::read_to_string(from)
        .with_context(|| format!("reading the timeline {}", from.display()))?;
    let name = from.file_stem().unwrap_or_default().to_string_lossy();
    Ok((name.into_owned(), text))
}

pub(crate) fn pxe_serve(
    folder: &Path,
    listen: std::net::SocketAddr,
    output: Output,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    let _guard = interrupt.guard();
    let server = pxe::Server::start(folder, listen)?;
    let url = server.url();
    match output.json {
        true => arguments::print_json(&serde_json::json!({ "url": url }))?,
        false => arguments::print(&format!("{url}\n"))?,
    }
    while !interrupt.requested() {
        std::thread::sleep(LOOK);
    }
    bail!("interrupted")
}

pub(crate) fn doctor(
    entered: Result<(), Refusal>,
    output: Output,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    let tools = |offline| {
        let mut session = output.session(interrupt)?;
        session.set_offline(offline);
        carried_tools(&session)
    };
    let findings = doctor::examine(entered, &output.cache(), tools);
    if output.json {
        arguments::print_json(&findings)?;
    } else {
        arguments::print(&doctor::text(&findings))?;
    }
    Ok(if findings.iter().any(doctor::Finding::is_fatal) {
        ExitCode::from(FAILURE)
    } else {
        ExitCode::SUCCESS
    })
}

pub(crate) fn schema(markdown: bool, cluster: bool) -> Result<ExitCode> {
    arguments::print(&match (markdown, cluster) {
        (true, _) => recipes::reference::markdown(),
        (false, true) => json_schema::text(),
        (false, false) => recipes::schema::text(),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "slipway", &mut script);
    arguments::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
