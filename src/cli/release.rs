//! `slipway release`: a function for each of its commands.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use slipway::host::interrupt::Interrupt;
use slipway::release::{self, Bases, Release, Tables};

use super::arguments::release::{AddArgs, ReleaseCommand};
use super::arguments::{self, Output};

pub(crate) fn run(
    command: &ReleaseCommand,
    output: Output,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    match command {
        ReleaseCommand::Add(args) => add(args, output, interrupt),
        ReleaseCommand::List(args) => list(&args.file, output),
        ReleaseCommand::Show { kubernetes, table } => show(kubernetes, &table.file, output),
        ReleaseCommand::Check(args) => check(&args.file, output),
    }
}

fn add(args: &AddArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let path = &args.table.file;
    let mut tables = Tables::read(path)?;
    let known = tables.get(&args.kubernetes);
    let go_sum = match &args.go_sum {
        Some(path) => Some(
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?,
        ),
        None => known.and_then(|known| Some(known.module.as_ref()?.go_sum.clone())),
    };
    let request = release::Request {
        version: args.kubernetes.clone(),
        architectures: args.architecture.clone(),
        go_sum,
        published: !args.compiled,
    };
    let bases = Bases {
        release: args.from.clone(),
        github: args.github.clone(),
        registry: args.registry.clone(),
    };
    let session = output.session(interrupt)?;
    let step = session.progress.step("release");
    let entry = release::add(&session, &request, &bases, &step)?;
    step.made(None);
    if args.dry_run {
        print(&entry, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let written = tables.put(&entry, args.replace)?;
    if output.json {
        arguments::print_json(&serde_json::json!({
            "version": entry.version, "id": entry.id,
            "file": path.display().to_string(), "written": written,
        }))?;
    } else {
        let what = if written {
            "written to"
        } else {
            "is already in"
        };
        arguments::print(&format!("{} {what} {}\n", entry.version, path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(entry: &Release, output: Output) -> Result<()> {
    if output.json {
        arguments::print_json(entry)
    } else {
        arguments::print(&entry.to_toml()?)
    }
}

fn list(path: &Path, output: Output) -> Result<ExitCode> {
    let tables = Tables::read(path)?;
    let releases = tables.releases();
    if output.json {
        let rows: Vec<_> = releases
            .iter()
            .map(|release| row(&tables, release))
            .collect();
        arguments::print_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for release in releases {
        let module = if release.module.is_some() {
            "compiled"
        } else {
            "-"
        };
        text += &format!(
            "{:<9} {:.12}  {:>2} programs  {:>2} images  {module:<8}  {}\n",
            release.version,
            release.id,
            release.binaries.len(),
            release.images.len(),
            origin(&tables, release)
        );
    }
    arguments::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn row(tables: &Tables, release: &Release) -> serde_json::Value {
    serde_json::json!({
        "version": release.version,
        "id": release.id,
        "programs": release.binaries.len(),
        "images": release.images.len(),
        "module": release.module.as_ref().map(|module| &module.version),
        "table": origin(tables, release),
    })
}

/// The table that an entry is in.
fn origin(tables: &Tables, release: &Release) -> String {
    match tables.own.get(&release.version) {
        Some(_) => tables.path.display().to_string(),
        None => "carried".to_owned(),
    }
}

fn show(version: &str, path: &Path, output: Output) -> Result<ExitCode> {
    let tables = Tables::read(path)?;
    print(tables.find(version)?, output)?;
    Ok(ExitCode::SUCCESS)
}

fn check(path: &Path, output: Output) -> Result<ExitCode> {
    // Reading refuses what is not whole, with all that is wrong.
    let tables = Tables::read(path)?;
    let (carried, own) = (tables.carried.releases.len(), tables.own.releases.len());
    let file = path.display().to_string();
    if output.json {
        arguments::print_json(
            &serde_json::json!({ "carried": carried, "own": own, "file": file }),
        )?;
    } else {
        arguments::print(&match path.exists() {
            true => format!("carried table: {carried} whole; {file}: {own} whole\n"),
            false => format!("carried table: {carried} whole; {file} is not there\n"),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
