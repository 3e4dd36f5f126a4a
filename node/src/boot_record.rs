//! `timeline`: completes the boot's timeline, from the handoff until the node and its static pods are Ready.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use image::kubelet::{CLUSTER_UNIT, UNIT};
use image::paths::{RUN_TIMELINE, STATE, STATE_TIMELINES};
use image::timeline::{BEHIND, READY, Span, parse, to_lines};
use linux::atomic_file;
use linux::block::entries;
use linux::programs::Programs;
use linux::waiter::Waiter;
use linux::world::World;
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::object::{self, Bootstrap};
use crate::{boot_pods, boot_units, client, static_pods, steps};

/// How long the node is given to become Ready, and its static pods: what is there by then is the record.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How often they are looked at.
const EVERY: Duration = Duration::from_secs(2);
/// The pods of this node.
const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3D";

/// Completes the record when the kubelet runs, and again when the node is Ready and when its static pods are.
///
/// # Errors
/// If there is no record, or it cannot be written.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, Duration::ZERO)? else {
        return complete(world, &Value::Null);
    };
    let waiter = Waiter::until(world, PATIENCE);
    let mut recorded = false;
    loop {
        let is_ready = steps::ended(world)?.iter().any(|step| step.name == READY);
        // Pods are asked for once there is something new to say.
        let pods = match is_ready {
            true => pods(world, &bootstrap),
            false => Ok(Value::Null),
        };
        let over = waiter.is_over();
        if let Err(error) = &pods {
            tracing::debug!("asking for the pods of this node: {error:#}");
        }
        let settled = is_ready
            && pods
                .as_ref()
                .is_ok_and(|pods| boot_pods::settled(pods, static_pods::manifests(world)));
        if settled || over || (is_ready && !recorded) {
            complete(world, &pods.unwrap_or_default())?;
            recorded = is_ready;
        }
        if settled || over {
            return Ok(());
        }
        waiter.sleep(EVERY);
    }
}

fn pods(world: &World, bootstrap: &Bootstrap) -> Result<Value> {
    let name = &bootstrap.object.config.init.node_registration.name;
    let pods = client::of_node(world, bootstrap)?.get(&format!("{PODS}{name}"))?;
    pods.context("the API server has no list of pods")
}

/// Writes the record anew: what the init wrote, and all that is known behind it.
fn complete(world: &World, pods: &Value) -> Result<()> {
    let programs = Programs::of_host(Arc::new(World::real()));
    let units = boot_units::ask(&programs)?;
    let mut added = units.spans(&[CLUSTER_UNIT, UNIT], shift()?);
    added.extend(steps::ended(world)?);
    let micros = u64::try_from(world.micros()).unwrap_or_default();
    if let Some(booted) = SystemTime::now().checked_sub(Duration::from_micros(micros)) {
        added.extend(boot_pods::spans(pods, &boot_pods::starts(world), booted));
    }
    let count = added.len();
    add(world, added)?;
    tracing::info!("the boot's timeline has {count} steps behind the handoff");
    Ok(())
}

/// What makes a time of the boot's clock of one of `CLOCK_MONOTONIC`, which systemd uses: the time that the machine was suspended, µs.
fn shift() -> Result<i64> {
    let micros = |clock| {
        let at = clock_gettime(clock).context("reading the clock")?;
        anyhow::Ok(at.tv_sec() * 1_000_000 + at.tv_nsec() / 1000)
    };
    let shift = micros(ClockId::CLOCK_BOOTTIME)? - micros(ClockId::CLOCK_MONOTONIC)?;
    // The two are not read at the same moment.
    Ok(if shift < 10_000 { 0 } else { shift })
}

/// Replaces what the record has behind the handoff, in `/run` and in `state`.
fn add(world: &World, added: Vec<Span>) -> Result<()> {
    let file = world.in_run(RUN_TIMELINE);
    let about = || format!("reading {}", file.display());
    let text = std::fs::read_to_string(&file).with_context(about)?;
    let of_init = of_init(&text).with_context(about)?;
    let kept = newest(world, &of_init);
    let mut all = of_init;
    all.extend(added);
    let lines = to_lines(all);
    for path in std::iter::once(file).chain(kept) {
        atomic_file::write(&path, lines.as_bytes(), 0o644)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn of_init(text: &str) -> Result<Vec<Span>> {
    let mut spans = parse(text).map_err(anyhow::Error::msg)?;
    spans.retain(|span| !BEHIND.contains(&span.source.as_str()));
    Ok(spans)
}

/// The newest record in `state`, if it is of this boot: where the init could not keep one, it is another boot's.
fn newest(world: &World, of_init: &[Span]) -> Option<PathBuf> {
    let folder = world.in_initrd(STATE).join(STATE_TIMELINES);
    let names = entries(&folder);
    let number = |name: &String| name.strip_suffix(".jsonl")?.parse::<u64>().ok();
    let newest = names.iter().max_by_key(|name| number(name))?;
    let path = folder.join(newest);
    let text = std::fs::read_to_string(&path).ok()?;
    (self::of_init(&text).ok()? == of_init).then_some(path)
}

#[cfg(test)]
mod tests {
    use image::timeline::{PODS, SYSTEMD};
    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    fn span(source: &str, name: &str, start: i64) -> Span {
        Span {
            source: source.to_owned(),
            name: name.to_owned(),
            start,
            end: Some(start + 1),
            note: None,
        }
    }

    fn names(text: &str) -> Vec<String> {
        parse(text)
            .unwrap()
            .into_iter()
            .map(|span| span.name)
            .collect()
    }

    #[test]
    fn the_record_is_completed_as_often_as_wanted_and_no_other_boots() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let records = world.in_initrd(STATE).join(STATE_TIMELINES);
        let init = to_lines(vec![span("kernel", "kernel", 0), span("init", "root", 5)]);
        let other = to_lines(vec![span("kernel", "kernel", 0), span("init", "root", 6)]);
        put(&world.in_run(RUN_TIMELINE), &init);
        put(&records.join("000009.jsonl"), &other);
        put(&records.join("000010.jsonl"), &init);
        add(&world, vec![span(SYSTEMD, "kubelet", 7)]).unwrap();
        let pods = vec![span(PODS, "etcd", 9), span(SYSTEMD, "kubelet", 8)];
        add(&world, pods).unwrap();
        let expected = ["kernel", "root", "kubelet", "etcd"];
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(names(&read(world.in_run(RUN_TIMELINE))), expected);
        assert_eq!(names(&read(records.join("000010.jsonl"))), expected);
        assert_eq!(read(records.join("000009.jsonl")), other);
        // The init could not keep this boot's: the newest is another's.
        put(&records.join("000010.jsonl"), &other);
        add(&world, vec![span(SYSTEMD, "kubelet", 7)]).unwrap();
        assert_eq!(read(records.join("000010.jsonl")), other);
        put(&world.in_run(RUN_TIMELINE), "no line\n");
        let error = format!("{:#}", add(&world, Vec::new()).unwrap_err());
        assert!(error.contains("line 1"), "{error}");
    }
}
