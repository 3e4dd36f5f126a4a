//! What the cache holds, and the keys of remote ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use slipway::host::cache::{Cache, Entry};
use slipway::host::progress;
use slipway::share::keys::SecretKey;

use crate::cli::arguments::{self, CacheCommand, Output};

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
            "folder": folder.display().to_string(), "used": used, "limit": limit, "entries": entries,
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
        true => arguments::print_json(&serde_json::json!({
            "file": file.display().to_string(), "public": public,
        }))?,
        false => arguments::print(&format!("{public}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
