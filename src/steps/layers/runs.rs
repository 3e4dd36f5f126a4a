//! `[[build.run]]`: programs of the image, run in its packages' root without a network; what each changes is a layer.
//!
//! The root is written as files for each program anew: seconds for one that is not in the cache, and nothing is mounted that a
//! user could not mount.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::inputs::Inputs;
use crate::code;
use crate::host::cache::{self, Key};
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::install::Rootfs;
use crate::layer::changes::Written;
use crate::layer::{Entry, Kind, Layer, Source, merge};
use crate::lock::LockedRecipe;
use crate::recipe::Run;

/// The working folder of a program, which has its inputs.
const INPUTS: &str = "/run/inputs";
/// Contents of changed files, in a step's folder.
const CONTENT: &str = "content";
/// The changes, in a step's folder.
const INDEX: &str = "changes.json";
/// The record of them for people and other programs.
const RECORD: &str = "record.json";

/// A layer for each program, over the packages and `lower`.
///
/// # Errors
/// If a program cannot start or fails, with the tail of its output; or it left what an image cannot have.
pub(super) fn layers(
    session: &Session,
    locked: &LockedRecipe,
    rootfs: &Rootfs,
    lower: &[Layer],
) -> Result<Vec<Layer>> {
    let mut all = lower.to_vec();
    for run in &locked.recipe.runs {
        let about = || format!("{}: running {}", run.origin, run.name);
        let layer = layer(session, run, rootfs, &all, locked.lock.epoch);
        all.push(layer.with_context(about)?);
    }
    Ok(all.split_off(lower.len()))
}

fn layer(
    session: &Session,
    run: &Run,
    rootfs: &Rootfs,
    lower: &[Layer],
    epoch: u64,
) -> Result<Layer> {
    let mut key = Key::of("run", code::CONTENT)
        .key("rootfs", &rootfs.key)
        .value("run", run)?
        .bytes("epoch", &epoch.to_le_bytes());
    for layer in lower {
        key = key.key("layer", &layer.key);
    }
    let inputs = Inputs::hash(&session.cache, run)?;
    let key = inputs.add_to(key).finish();
    let step = session.progress.step(&format!("run {}", run.name));
    let made = session.cache.step("run", &key, |folder| {
        step.note("writing the root as files");
        let tree = merge::merge(rootfs.entries(), lower, &[])?.tree;
        let root = folder.join("root");
        fs::create_dir(&root)?;
        let written = Written::write(&tree, &root, epoch)?;
        let copied = folder.join("inputs");
        inputs.copy(&copied, epoch)?;
        step.note(&run.command.join(" "));
        start(run, &root, &copied, epoch)?;
        let changes = written.changes(&folder.join(CONTENT))?;
        fs::write(folder.join(INDEX), serde_json::to_vec(&changes)?)?;
        let record = record(run, &written, &changes)?;
        fs::write(folder.join(RECORD), serde_json::to_vec(&record)?)?;
        cache::remove(&copied)?;
        cache::remove(&root)
    })?;
    let text = fs::read(made.path.join(INDEX)).context("reading the changes")?;
    let mut entries: Vec<Entry> = serde_json::from_slice(&text).context("reading the changes")?;
    for entry in &mut entries {
        if let Kind::File(Source::Range { file, .. }) = &mut entry.kind {
            *file = made.path.join(CONTENT);
        }
    }
    let record = fs::read(made.path.join(RECORD)).context("reading the record")?;
    step.done(made.hit, None);
    let mut layer = Layer::with_key(entries, key)?.of_recipe(&run.origin);
    layer.record = Some(serde_json::from_slice(&record).context("reading the record")?);
    Ok(layer)
}

fn start(run: &Run, root: &Path, inputs: &Path, epoch: u64) -> Result<()> {
    let mut sandbox = Sandbox::new(root)
        .epoch(epoch)
        .bind_read_only(inputs, INPUTS)
        // systemd's programs check this before they touch a running system.
        .env("SYSTEMD_OFFLINE", "1");
    for (name, value) in &run.environment {
        sandbox = sandbox.env(name, value);
    }
    let (program, arguments) = run.command.split_first().context("no command")?;
    let command = sandbox.command(program).args(arguments).cwd(INPUTS);
    let said = command.run()?;
    tracing::debug!("{}: {}", run.name, String::from_utf8_lossy(&said));
    Ok(())
}

/// What a program was, and what it did: paths that are new, that have other content or rights, and that are gone.
fn record(run: &Run, written: &Written, changes: &[Entry]) -> Result<serde_json::Value> {
    use sha2::Digest as _;
    let (mut added, mut changed, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for entry in changes {
        let mut shown = json!({ "path": entry.path });
        if let Kind::File(source) = &entry.kind {
            let digest = sha2::Sha256::digest(source.read()?);
            shown["sha256"] = data_encoding::HEXLOWER.encode(&digest).into();
        }
        match (&entry.kind, written.had(&entry.path)) {
            (Kind::Remove, _) => removed.push(shown),
            (_, true) => changed.push(shown),
            (_, false) => added.push(shown),
        }
    }
    Ok(json!({
        "name": run.name, "command": run.command, "environment": run.environment,
        "inputs": run.inputs.keys().collect::<Vec<_>>(),
        "added": added, "changed": changed, "removed": removed,
    }))
}
