//! What is done with a recipe: written, checked, locked, built.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use slipway::host::interrupt::Interrupt;
use slipway::host::progress::{self, Kind};
use slipway::host::session::Session;
use slipway::lock::objects::{Object, Wanted};
use slipway::lock::{self, LockedRecipe, Mode};
use slipway::recipe::{self, Choice};
use slipway::{artifact, pipeline};

use crate::cli::arguments::{self, BuildArgs, CheckArgs, LockArgs, NewArgs, Output};

pub(crate) fn build(args: &BuildArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let path = &args.recipe.path()?;
    let choices = args.choice.of(path)?;
    if args.dry_run {
        return plan(args, path, &choices, output);
    }
    // A mistake in the last variant shows before the first one is built.
    for choice in &choices {
        recipe::load_as(path, choice)?;
    }
    let mut session = output.session(interrupt)?;
    session.set_offline(args.offline);
    let progress = &session.progress;
    let several = choices.len() > 1;
    let say = |choice: &Choice| {
        if let (Some(variant), true) = (&choice.variant, several) {
            progress.say(&format!("variant {variant}"));
        }
    };
    let since = |before: usize| {
        let mut records = progress.records();
        records.split_off(before.min(records.len()))
    };
    let mut pinned = Vec::new();
    for choice in choices {
        say(&choice);
        let before = progress.records().len();
        let request = request(path, choice.clone(), &args.out.output, args.mode());
        let locked = pipeline::pin(&session, &request)?;
        pinned.push((choice, locked, since(before)));
    }
    let mut told = Vec::new();
    let (mut folders, mut removed) = (String::new(), String::new());
    for (choice, locked, mut steps) in pinned {
        say(&choice);
        let before = progress.records().len();
        let built = pipeline::build_pinned(&session, locked, &args.out.output)?;
        steps.extend(since(before));
        let variant = choice.variant;
        told.push(of_variant(
            variant.as_deref(),
            serde_json::json!({ "out": built.out.display().to_string(), "steps": steps }),
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

pub(super) fn request(
    recipe: &Path,
    choice: Choice,
    output: &Path,
    lock: Mode,
) -> pipeline::Request {
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
    // As other programs' files: of the temporary ones' rights nobody else could read it.
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(".")
        .with_context(about)?;
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
                "out": out.display().to_string(), "artifacts": artifacts, "lock": locked,
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
    // A name that no lock has is known before the first one is written.
    let renewals = lock::renewals(&recipes, &renewed)?;
    let (mut told, mut text) = (Vec::new(), String::new());
    for (recipe, of_lock) in recipes.into_iter().zip(renewals) {
        let wish = lock::Wish {
            // No names at all would renew everything.
            mode: match of_lock.is_empty() && !renewed.is_empty() {
                true => Mode::Make,
                false => args.mode(),
            },
            renewed: &of_lock,
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
