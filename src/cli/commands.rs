//! One function for each command: from its arguments to a result on stdout.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::CommandFactory as _;
use cluster::object::json_schema;
use platform::provider::DiskController;
use slipway::host::atomic_file;
use slipway::host::cache::{Cache, Entry};
use slipway::host::interrupt::Interrupt;
use slipway::host::preflight::Refusal;
use slipway::host::progress::{self, Kind};
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::lock::objects::{Object, Wanted};
use slipway::lock::{self, LockedRecipe, Mode};
use slipway::publish::page::Page;
use slipway::recipe::node_config;
use slipway::recipe::{self, Choice, Platform, SET_TOOLS_BUILD};
use slipway::share::keys::SecretKey;
use slipway::vm::machine::disk::Bus;
use slipway::vm::{demo, disks, pxe, run, timeline};
use slipway::{artifact, compare, doctor, inspect, pipeline};

use super::arguments::{
    self, BuildArgs, CacheCommand, CheckArgs, Cli, DemoArgs, DiffArgs, LockArgs, NewArgs, Output,
    RunArgs, TimelineArgs,
};

/// Exit code: the work failed, without an error to print.
const FAILURE: u8 = 1;
/// Exit code: the checked config is wrong.
const WRONG: u8 = 2;
/// Interval at which a server checks for the request to end.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn build(args: &BuildArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let path = &args.recipe.path()?;
    let choices = args.choice.of(path)?;
    if args.dry_run {
        return plan(args, path, &choices, output);
    }
    let mut session = output.session(interrupt)?;
    session.set_offline(args.offline);
    let progress = &session.progress;
    let mut told = Vec::new();
    let (mut folders, mut removed) = (String::new(), String::new());
    let several = choices.len() > 1;
    for choice in choices {
        let variant = choice.variant.clone();
        if let (Some(variant), true) = (&variant, several) {
            progress.say(&format!("variant {variant}"));
        }
        let before = progress.records().len();
        let request = request(path, choice, &args.out.output, args.mode());
        let built = pipeline::build(&session, &request)?;
        let steps = progress.records();
        let steps = steps.get(before..).unwrap_or_default();
        told.push(of_variant(
            variant.as_deref(),
            serde_json::json!({ "out": built.out, "steps": steps }),
        ));
        folders += &format!("{}\n", built.out.display());
        removed += &built
            .removed
            .map_or(String::new(), |line| format!("\n{line}"));
    }
    if output.json {
        print_each(told)?;
    } else {
        if !output.quiet {
            progress.say(&format!("{}{removed}", progress.table().trim_end()));
        }
        arguments::print(&folders)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The object with the variant's name, if it is of one.
fn of_variant(variant: Option<&str>, mut object: serde_json::Value) -> serde_json::Value {
    if let (Some(variant), Some(fields)) = (variant, object.as_object_mut()) {
        fields.insert("variant".to_owned(), variant.into());
    }
    object
}

/// Prints the result of a command as JSON: one object for a recipe without variants, otherwise a list with one object for each variant.
fn print_each(mut told: Vec<serde_json::Value>) -> Result<()> {
    let is_variant = |object: &serde_json::Value| object.get("variant").is_some();
    match told.pop() {
        Some(only) if told.is_empty() && !is_variant(&only) => arguments::print_json(&only),
        last => {
            told.extend(last);
            arguments::print_json(&told)
        }
    }
}

fn request(recipe: &Path, choice: Choice, output: &Path, lock: Mode) -> pipeline::Request {
    pipeline::Request {
        recipe: recipe.to_owned(),
        choice,
        output: output.to_owned(),
        lock,
    }
}

/// Writes a recipe that is not there yet. What is wrong with its name is a mistake of the recipe.
pub(crate) fn new(args: &NewArgs, output: Output) -> Result<ExitCode> {
    let path = PathBuf::from(format!("{}.toml", args.name));
    let text = recipe::carried::beginning(&args.name, &args.from);
    let scratch = tempfile::tempdir().context("making a folder")?;
    let tried = scratch.path().join("new.toml");
    fs::write(&tried, &text).with_context(|| format!("writing {}", tried.display()))?;
    recipe::load(&tried)?;
    let about = || format!("writing {}", path.display());
    let mut file = tempfile::NamedTempFile::new_in(".").with_context(about)?;
    file.write_all(text.as_bytes()).with_context(about)?;
    file.as_file().sync_all().with_context(about)?;
    file.persist_noclobber(&path).with_context(about)?;
    if output.json {
        arguments::print_json(&serde_json::json!({ "recipe": path }))?;
    } else {
        arguments::print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what a build would fetch, run and write.
fn plan(args: &BuildArgs, path: &Path, choices: &[Choice], output: Output) -> Result<ExitCode> {
    let mut session = output.session_of(Kind::Quiet)?;
    session.set_offline(args.offline);
    let mut looking = Session::new(output.cache()?.look_only(), session.progress.clone());
    looking.offline = true;
    let mut told = Vec::new();
    let mut text = String::new();
    for choice in choices {
        let recipe = recipe::load_as(path, choice)?;
        let name = format!("{}-{}", recipe.image.name, recipe.image.version);
        let out = args.out.output.join(name);
        let artifacts: Vec<&str> = recipe.artifacts.iter().map(|kind| kind.name()).collect();
        let (locked, missing, steps) = match lock::pin(&session, recipe, Mode::Locked) {
            Ok(locked) => {
                let missing = locked.missing(&session, Wanted::Build)?;
                let parent = &args.out.output;
                let steps = pipeline::steps(&looking, locked, parent, !missing.is_empty())?;
                (None, missing, Some(steps))
            }
            Err(error) => (Some(format!("{error:#}")), Vec::new(), None),
        };
        let size: u64 = missing.iter().filter_map(|object| object.size).sum();
        told.push(of_variant(
            choice.variant.as_deref(),
            serde_json::json!({
                "out": out, "artifacts": artifacts, "lock": locked,
                "downloads": missing.len(), "bytes": size, "files": missing, "steps": steps,
            }),
        ));
        text += &format!("{}: {}", out.display(), artifact::DISK);
        for artifact in artifacts {
            text += &format!(", {artifact}");
        }
        text += "\n";
        text += &match locked {
            Some(why) => format!("the lock has to be made first: {why}\n"),
            None => to_fetch(&missing, size),
        };
        text += &steps.as_ref().map_or(String::new(), to_run);
    }
    if output.json {
        print_each(told)?;
    } else {
        arguments::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The steps of a build by what would become of them.
fn to_run(steps: &pipeline::Steps) -> String {
    let line = |what: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!("{what}: {}\n", names.join(", ")),
    };
    line("in the cache", &steps.cached)
        + &line("would run", &steps.run)
        + &line("follow from these", &steps.follow)
}

/// The files that a build has to fetch or to compile, with their number and size.
fn to_fetch(missing: &[Object], size: u64) -> String {
    let mut text = match missing.len() {
        0 => "nothing".to_owned(),
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    text += " to fetch";
    // The size of a file that the recipe names by its hash is not known.
    if size > 0 {
        text += &format!(", {}", progress::bytes(size));
    }
    text.push('\n');
    for Object { name, size, .. } in missing {
        text += &match size {
            Some(size) => format!("  {name}, {}\n", progress::bytes(*size)),
            None => format!("  {name}\n"),
        };
    }
    text
}

pub(crate) fn lock(args: &LockArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let (path, renewed) = args.recipe_and_renewed()?;
    let path = path.as_path();
    let choices = args.choice.of(path)?;
    let recipes = choices.iter().map(|choice| recipe::load_as(path, choice));
    let recipes = recipes.collect::<Result<Vec<_>, _>>()?;
    if args.diff.is_some() && recipes.len() > 1 {
        bail!("--diff compares the lock of one variant: choose it by --variant");
    }
    let old = args.diff.as_deref().map(lock::read).transpose()?;
    let mut session = output.session(interrupt)?;
    session.set_offline(args.offline);
    let (mut told, mut text) = (Vec::new(), String::new());
    for recipe in recipes {
        let wish = lock::Wish {
            mode: args.mode(),
            renewed: &renewed,
            older: args.older,
        };
        let mut locked = lock::pin_as(&session, recipe, wish)?;
        let vendored = args.vendor.as_ref();
        let vendored = vendored.map(|folder| lock::vendor::write(&session, &mut locked, folder));
        let vendored = vendored.transpose()?;
        let variant = locked.recipe.variant.as_deref();
        if let Some(old) = &old {
            let changes = lock::changes(old, &locked.lock);
            if output.json {
                return arguments::print_json(&changes).map(|()| ExitCode::SUCCESS);
            }
            let lines = changes.iter().map(|change| format!("{change}\n"));
            text += &lines.collect::<String>();
        } else {
            told.push(of_variant(variant, serde_json::to_value(&locked.lock)?));
            text += &summary(&locked);
            if let (Some(folder), Some((count, size))) = (&args.vendor, vendored) {
                let size = progress::bytes(size);
                let place = folder.display();
                text += &format!("{place}: {count} files, {size}\n");
            }
        }
    }
    if output.json {
        print_each(told)?;
    } else {
        arguments::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The lock's path, then each set with its number of packages and the size of their downloads.
fn summary(locked: &LockedRecipe) -> String {
    let mut out = format!("{}\n", locked.recipe.lock_path().display());
    for (name, packages) in &locked.lock.sets {
        let size: u64 = packages.iter().map(|package| package.size).sum();
        let size = progress::bytes(size);
        out += &format!("  {name:12} {:4} packages {size:>10}\n", packages.len());
    }
    out
}

pub(crate) fn check(args: &CheckArgs, output: Output) -> Result<ExitCode> {
    let path = &args.recipe.path()?;
    let (mut told, mut text) = (Vec::new(), String::new());
    for choice in args.choice.of(path)? {
        let recipe = recipe::load_as(path, &choice)?;
        let parts: Vec<String> = recipe
            .parts
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        let image = &recipe.image;
        text += &format!(
            "{} {} from {}: no mistakes\n",
            image.name,
            image.version,
            parts.join(" over ")
        );
        told.push(match &recipe.variant {
            Some(variant) => serde_json::json!({ "variant": variant, "sets": recipe.sets() }),
            None => serde_json::to_value(recipe.sets())?,
        });
    }
    if output.json {
        print_each(told)?;
    } else {
        arguments::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: &RunArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let session = &output.session(interrupt)?;
    let given = arguments::given_or_only(args.image.as_deref())?;
    if given.is_dir() && !args.choice.is_empty() {
        bail!(
            "--variant and --set are for a recipe, and {} is built",
            given.display()
        );
    }
    let choice = args.choice.one();
    let (image, tools, bus) = image(session, &given, choice, &args.out.output)?;
    let mut options = args.options();
    options.bus = args.bus.unwrap_or(bus);
    run::run(session, &image, &tools, &options)?;
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
        let tools = carried_tools(session)?;
        return Ok((run::Image::open(given)?, tools, Bus::default()));
    }
    if given.extension().is_none_or(|kind| kind != "toml") {
        bail!(
            "{} is neither a recipe nor an output folder of `slipway build`",
            given.display()
        );
    }
    let built = pipeline::build(session, &request(given, choice, output, Mode::Make))?;
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
            &recipe::carried::cluster(&session.cache)?,
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
    let recipe = recipe::load(&recipe::carried::tools(&session.cache)?)?;
    let locked = lock::pin(session, recipe, Mode::Make)?;
    pipeline::tools_run(session, &locked)
}

pub(crate) fn cache(command: &CacheCommand, output: Output) -> Result<ExitCode> {
    let cache = match command {
        CacheCommand::Keygen { file, name } => return keygen(file, name.as_deref(), &output),
        CacheCommand::Show | CacheCommand::Prune { .. } => output.cache()?,
    };
    match command {
        CacheCommand::Keygen { .. } => {}
        CacheCommand::Show => show_cache(&cache, output.json)?,
        CacheCommand::Prune { unused, dry_run } => {
            let unused = Duration::from_secs(unused.saturating_mul(24 * 3600));
            let removed = cache.prune(unused, *dry_run)?;
            let what = match dry_run {
                true => "would be removed",
                false => "removed",
            };
            if output.json {
                arguments::print_json(&removed)?;
            } else {
                let size = progress::bytes(total(&removed));
                let folder = cache.root().display();
                let text = format!("{}{size} {what} ({folder})\n", by_kind(&removed));
                arguments::print(&text)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the cache holds, and its limit.
fn show_cache(cache: &Cache, json: bool) -> Result<()> {
    let entries = cache.entries()?;
    let (folder, used) = (cache.root(), total(&entries));
    let limit = cache.limit().0;
    if json {
        return arguments::print_json(&serde_json::json!({
            "folder": folder, "used": used, "limit": limit, "entries": entries,
        }));
    }
    let limit = match limit {
        Some(limit) => format!("of at most {}", progress::bytes(limit)),
        None => "without a limit".to_owned(),
    };
    arguments::print(&format!(
        "{}{} in the cache, {limit} ({})\n",
        by_kind(&entries),
        progress::bytes(used),
        folder.display()
    ))
}

fn total(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.size).sum()
}

/// A line for each kind, with the number of its entries and their size.
fn by_kind(entries: &[Entry]) -> String {
    let mut kinds: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for entry in entries {
        let (count, size) = kinds.entry(&entry.kind).or_default();
        *count += 1;
        *size += entry.size;
    }
    let lines = kinds.into_iter().map(|(kind, (count, size))| {
        format!("{kind:<20} {count:>5}  {:>10}\n", progress::bytes(size))
    });
    lines.collect()
}

/// Makes a key of a remote cache.
fn keygen(file: &Path, name: Option<&str>, output: &Output) -> Result<ExitCode> {
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let name = name.or(stem).context("the key has no name")?;
    let public = SecretKey::create(name, file)?.public()?.to_string();
    match output.json {
        true => arguments::print_json(&serde_json::json!({ "file": file, "public": public }))?,
        false => arguments::print(&format!("{public}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn demo(args: &DemoArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let session = &output.session(interrupt)?;
    let progress = &session.progress;
    let recipe = recipe::carried::demo(&session.cache)?;
    let built = pipeline::build(
        session,
        &request(&recipe, Choice::default(), &args.out.output, Mode::Make),
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
        let recipe = recipe::load(&recipe::carried::tools(&session.cache)?)?;
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
        arguments::print(&format!("{}\n", path.display()))?;
    } else if let Some(path) = &args.page {
        let reading = || format!("reading {}", path.display());
        let html = fs::read_to_string(path).with_context(reading)?;
        let page = Page::read(&html).with_context(reading)?;
        let html = page.html(Some(&timeline::svg(&spans, &title)))?;
        atomic_file::write(path, 0o666, |file| Ok(file.write_all(html.as_bytes())?))?;
        arguments::print(&format!("{}\n", path.display()))?;
    } else if output.json {
        arguments::print_json(&spans)?;
    } else {
        arguments::print(&timeline::table(&spans))?;
    }
    Ok(ExitCode::SUCCESS)
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
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    let _guard = interrupt.guard();
    let server = pxe::Server::start(folder, listen)?;
    arguments::print(&format!("{}\n", server.url()))?;
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
    let tools = || carried_tools(&output.session(interrupt)?);
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
        (true, _) => recipe::reference::markdown(),
        (false, true) => json_schema::text(),
        (false, false) => recipe::schema::text(),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "slipway", &mut script);
    arguments::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn ignition(command: arguments::Ignition, output: Output) -> Result<ExitCode> {
    use arguments::Ignition::{FromButane, Merge, Program, Validate};

    let cases = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    };
    match command {
        Validate {
            batch: Some(batch), ..
        } => {
            arguments::print(&node_config::check_batch(&cases(&batch)?)?)?;
        }
        Merge {
            batch: Some(batch), ..
        } => {
            arguments::print(&node_config::merge_batch(&cases(&batch)?)?)?;
        }
        Validate { config, local, .. } => {
            let config = config.unwrap_or_default();
            let verdict = node_config::check_file(&config, local.files().as_ref())?;
            if output.json {
                arguments::print_json(&verdict.to_json())?;
            } else if !verdict.report.entries.is_empty() {
                arguments::print(&format!("{}\n", verdict.report))?;
            }
            if verdict.config.is_none() {
                return Ok(ExitCode::from(WRONG));
            }
        }
        Merge {
            parent,
            child,
            local,
            ..
        } => {
            let (parent, child) = (parent.unwrap_or_default(), child.unwrap_or_default());
            let files = local.files();
            arguments::print_json(&node_config::merge(&parent, &child, files.as_ref())?)?;
        }
        FromButane {
            config,
            local,
            strict,
            pretty,
            output: to,
        } => {
            let (json, report) = node_config::from_butane(&config, local.files().as_ref())?;
            let Some(json) = json.filter(|_| !strict || report.entries.is_empty()) else {
                return refused(&report, output);
            };
            if !output.quiet {
                arguments::print_findings(&report);
            }
            let mut text = match pretty {
                true => serde_json::to_string_pretty(&json)?,
                false => json.to_string(),
            };
            text.push('\n');
            match to {
                Some(path) => {
                    atomic_file::write(&path, 0o666, |file| Ok(file.write_all(text.as_bytes())?))?
                }
                None => arguments::print(&text)?,
            }
        }
        Program { output: to } => atomic_file::write(&to, 0o755, |file| {
            Ok(file.write_all(slipway::IGNITION_PROGRAM)?)
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the errors of a config; gives the exit code.
fn refused(report: &ignition::Report, output: Output) -> Result<ExitCode> {
    if output.json {
        let entries = node_config::entries(report);
        arguments::print_json(&serde_json::json!({ "accept": false, "entries": entries }))?;
    } else {
        arguments::print_findings(report);
    }
    Ok(ExitCode::from(WRONG))
}
