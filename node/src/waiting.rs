//! Waiting for a cluster: the reason is on the console, in the journal and in the status.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use image::paths::RUN_CLUSTER;
use linux::atomic_file;
use linux::waiter::Waiter;
use linux::world::World;

/// How long something is waited for, and how often it is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) patience: Duration,
    pub(crate) every: Duration,
}

/// Tries until it succeeds. The console shows the reason every five seconds, the journal each reason once.
///
/// # Errors
/// The last reason, once the patience is over.
pub(crate) fn wait<T>(
    world: &World,
    limits: Limits,
    what: &str,
    attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    wait_with(world, RUN_CLUSTER, limits, what, attempt)
}

/// The same, with the reason in this file: a wait beside the bring-up has its own line.
///
/// # Errors
/// The last reason, once the patience is over.
pub(crate) fn wait_with<T>(
    world: &World,
    line: &str,
    limits: Limits,
    what: &str,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut waiter = Waiter::until(world, limits.patience);
    let line = world.in_run(line);
    let (mut shown, mut logged) = (String::new(), BTreeSet::new());
    loop {
        let error = match attempt() {
            Ok(product) => return Ok(product),
            Err(error) => error,
        };
        if waiter.is_over() {
            let waited = limits.patience.as_secs();
            return Err(error.context(format!("waiting for {what} for {waited} s")));
        }
        let text = format!("{what}: {error:#}");
        // Another command that waited may have taken the line away.
        if text != shown || !line.exists() {
            // Not synced: it lies in memory, and a reader sees the old line or the new one.
            fs::write(&line, format!("{text}\n"))
                .with_context(|| format!("writing {}", line.display()))?;
            shown.clone_from(&text);
        }
        if logged.insert(text.clone()) {
            tracing::info!("waiting for {text}");
        }
        waiter.say(&text);
        waiter.attempted();
        waiter.sleep(limits.every);
    }
}

/// Removes the line of what was waited for.
///
/// # Errors
/// If it is there and cannot be removed.
pub(crate) fn done(world: &World) -> Result<()> {
    atomic_file::remove(&world.in_run(RUN_CLUSTER)).context("removing the line of the wait")
}
