//! The steps of the bring-up, for the boot's timeline: each leaves a line when it has ended well.

use std::fs::File;
use std::io::Write as _;

use anyhow::{Context, Result};
use image::paths::RUN_CLUSTER_STEPS;
use image::timeline::{CLUSTER, READY, Span, parse, to_lines};
use linux::atomic_file;
use linux::world::World;

/// Runs a step and keeps its times. One that fails leaves none: it is begun again.
///
/// # Errors
/// The step's own. A line that cannot be written is said in the journal alone.
pub(crate) fn step<T>(world: &World, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = world.micros();
    let out = work()?;
    keep(world, span(name, start, Some(world.micros())));
    Ok(out)
}

/// Keeps the moment at which the node is Ready.
pub(crate) fn ready(world: &World) {
    keep(world, span(READY, world.micros(), None));
}

/// The steps that have ended on this boot, the last time each did so.
///
/// # Errors
/// If they cannot be read.
pub(crate) fn ended(world: &World) -> Result<Vec<Span>> {
    let path = world.in_run(RUN_CLUSTER_STEPS);
    let about = || format!("reading {}", path.display());
    let text = atomic_file::read(&path).with_context(about)?;
    let text = String::from_utf8(text.unwrap_or_default()).with_context(about)?;
    let all = parse(&text)
        .map_err(anyhow::Error::msg)
        .with_context(about)?;
    let mut last: Vec<Span> = Vec::new();
    for span in all {
        last.retain(|earlier| earlier.name != span.name);
        last.push(span);
    }
    Ok(last)
}

fn span(name: &str, start: i64, end: Option<i64>) -> Span {
    Span {
        source: CLUSTER.to_owned(),
        name: name.to_owned(),
        start,
        end,
        note: None,
    }
}

/// Adds a line. It lies in memory, for this boot.
fn keep(world: &World, span: Span) {
    let path = world.in_run(RUN_CLUSTER_STEPS);
    let added = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(to_lines(vec![span]).as_bytes()));
    if let Err(error) = added {
        tracing::warn!("the timeline lacks a step: {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::time::Duration;

    use anyhow::bail;
    use linux::waiter::Waiter;
    use linux::world::Clock;

    use super::*;

    #[test]
    fn a_step_that_is_begun_again_counts_once_and_one_that_failed_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Fake(AtomicI64::new(1000)));
        assert_eq!(ended(&world).unwrap(), []);
        let work = || {
            let waiter = Waiter::until(&world, Duration::from_secs(9));
            waiter.sleep(Duration::from_micros(20));
            Ok(())
        };
        std::fs::create_dir_all(world.in_run(image::paths::RUN)).unwrap();
        step(&world, "api-server", work).unwrap();
        step(&world, "objects", || bail!("no")).unwrap_or(());
        step(&world, "api-server", work).unwrap();
        ready(&world);
        let ended = ended(&world).unwrap();
        let ended: Vec<_> = ended
            .iter()
            .map(|span| (span.name.as_str(), span.start, span.end))
            .collect();
        let expected = [("api-server", 1020, Some(1040)), (READY, 1040, None)];
        assert_eq!(ended, expected);
    }
}
