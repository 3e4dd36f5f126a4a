//! The timeline of the demo's boot: waited for in the guest, and completed by the host's clock.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use image::kubelet::TIMELINE_UNIT;
use image::paths::RUN_TIMELINE;
use image::report::Handoff;
use image::timeline::{READY, Span, to_lines};

use super::{KERNEL, note};
use crate::host::session::Session;
use crate::vm::agent::Agent;
use crate::vm::timeline;

/// From a Ready node to the whole timeline, in which each static pod is Ready too.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two questions: each starts programs in the guest.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// What the unit waits for behind a Ready node.
const PODS: &str = "the static pods";

/// The states of the timeline's unit, as systemd names them.
const STATES: [&str; 2] = ["ActiveState", "SubState"];

/// Prints the states of the timeline's unit, a line each, and behind them the record so far.
fn question() -> String {
    let states = STATES.join(",");
    format!("systemctl show -p {states} {TIMELINE_UNIT}; cat {RUN_TIMELINE}")
}

/// A record that is complete, or to which nothing is added any more.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    lines: String,
    /// Why it may lack something.
    lacks: Option<String>,
}

/// Waits until the guest's record goes to a Ready node and its static pods; gives its lines.
///
/// # Errors
/// If it does not go to a Ready node, with the state of its unit.
pub(super) fn wait(session: &Session, agent: &Agent<'_>) -> Result<String> {
    let step = session.progress.step("timeline");
    let end = Instant::now() + PATIENCE;
    let mut shown = String::new();
    loop {
        // A node that becomes Ready is busiest then.
        let answer = agent.ask(&question(), PATIENCE)?.output;
        let (state, lines) = split(&answer);
        if let Some(record) = judge(&state, &lines, Instant::now() >= end)? {
            if let Some(why) = record.lacks {
                session.progress.warn(&why);
            }
            step.made(None);
            return Ok(record.lines);
        }
        note(
            &step,
            &format!("{PODS} ({TIMELINE_UNIT} is {state})"),
            &mut shown,
        );
        ensure!(!session.interrupt.requested(), "interrupted");
        std::thread::sleep(ASK_EVERY);
    }
}

/// The state of the unit, as `active/exited`, and the lines of the record.
fn split(answer: &str) -> (String, String) {
    let value = |name: &str| {
        let mut values = answer.lines().filter_map(|line| line.strip_prefix(name));
        values.find_map(|value| value.strip_prefix('='))
    };
    let state = STATES
        .map(|name| value(name).unwrap_or("unknown"))
        .join("/");
    // Each line of the record is an object.
    let lines = answer.lines().filter(|line| line.starts_with('{'));
    (state, lines.collect::<Vec<_>>().join("\n"))
}

/// The record, once nothing is added to it any more or the time is over.
///
/// # Errors
/// If it does not go to a Ready node then.
fn judge(state: &str, lines: &str, is_late: bool) -> Result<Option<Record>> {
    let has_ended = state.ends_with("/exited");
    let has_failed = state.starts_with("failed/");
    if !(has_ended || has_failed || is_late) {
        return Ok(None);
    }
    let is_ready = lines.contains(&format!("\"{READY}\""));
    let after = match has_ended || has_failed {
        true => String::new(),
        false => format!(" after {} s", PATIENCE.as_secs()),
    };
    if !is_ready {
        bail!("the timeline does not go to a Ready node{after}: {TIMELINE_UNIT} is {state}");
    }
    Ok(Some(Record {
        lines: lines.to_owned(),
        lacks: (!has_ended)
            .then(|| format!("the timeline may lack {PODS}{after}: {TIMELINE_UNIT} is {state}")),
    }))
}

/// The spans before the kernel by the host's clock, of times since power-on: the kernel's stub on the console, and the handoff. None
/// without a stub: then QEMU loaded the kernel without firmware, or the console does not show when the firmware ended.
pub(super) fn before_the_kernel(
    console: &str,
    stub: Option<Duration>,
    handoff: Duration,
) -> Vec<Span> {
    // The line that was waited for is complete by now.
    match (stub, Handoff::find(console)) {
        (Some(stub), Some(line)) if console.contains(KERNEL) => {
            spans(micros(stub), micros(handoff), line.micros)
        }
        _ => Vec::new(),
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// What a record lacks whose loader left no times, as systemd-boot in a virtual machine: from power-on to the kernel's stub, and
/// from there to the begin of the kernel's clock. By the host's clock: `stub` and `handoff` are times since power-on, µs, and
/// `micros` is the handoff's time by the kernel's clock.
fn spans(stub: i64, handoff: i64, micros: i64) -> Vec<Span> {
    let power_on = micros - handoff;
    let stub = (power_on + stub).min(0);
    let span = |source: &str, name: &str, start, end| Span {
        source: source.to_owned(),
        name: name.to_owned(),
        start,
        end: Some(end),
        note: Some("by the host's clock".to_owned()),
    };
    match power_on < stub {
        true => vec![
            span("firmware", "firmware and loader", power_on, stub),
            span("loader", "stub of the kernel", stub, 0),
        ],
        false => Vec::new(),
    }
}

/// The record with the spans before the kernel, unless it has some.
pub(super) fn from_power_on(record: &str, before: Vec<Span>) -> Result<String> {
    let mut spans = timeline::read(record)?;
    if spans.iter().all(|span| span.start >= 0) {
        spans.extend(before);
    }
    Ok(to_lines(spans))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: &str = r#"{"source":"kernel","name":"kernel","start":0,"end":3}"#;
    const READYS: &str = r#"{"source":"cluster","name":"Ready","start":9}"#;

    /// What the answer to a question comes to.
    fn judged(active: &str, sub: &str, record: &str, is_late: bool) -> Result<Option<Record>> {
        let answer = format!("ActiveState={active}\nSubState={sub}\n{record}");
        let (state, lines) = split(&answer);
        assert!(question().contains("show -p ActiveState,SubState slipway-timeline.service;"));
        assert_eq!(state, format!("{active}/{sub}"));
        assert_eq!(lines, record);
        judge(&state, &lines, is_late)
    }

    #[test]
    fn a_record_is_complete_once_its_unit_has_ended() {
        let whole = format!("{KERNELS}\n{READYS}");
        for (active, sub) in [
            ("inactive", "dead"),
            ("activating", "start"),
            ("active", "running"),
        ] {
            let found = judged(active, sub, &whole, false).unwrap();
            assert_eq!(found, None, "{active}/{sub}");
        }
        for is_late in [false, true] {
            let record = judged("active", "exited", &whole, is_late).unwrap();
            let record = record.unwrap();
            assert_eq!((record.lines, record.lacks), (whole.clone(), None));
        }
    }

    #[test]
    fn a_record_to_a_ready_node_is_taken_with_a_warning_if_its_unit_failed_or_is_late() {
        let whole = format!("{KERNELS}\n{READYS}");
        for (active, sub, is_late, words) in [
            (
                "failed",
                "failed",
                false,
                "the timeline may lack the static pods: slipway-timeline.service is failed/failed",
            ),
            (
                "active",
                "running",
                true,
                "the timeline may lack the static pods after 300 s: slipway-timeline.service is active/running",
            ),
        ] {
            let record = judged(active, sub, &whole, is_late).unwrap().unwrap();
            assert_eq!(record.lines, whole);
            assert_eq!(record.lacks.as_deref(), Some(words));
        }
        for (active, sub, is_late) in [
            ("failed", "failed", false),
            ("active", "exited", false),
            ("inactive", "dead", true),
        ] {
            let error = judged(active, sub, KERNELS, is_late).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("does not go to a Ready node"), "{error}");
            assert!(error.ends_with(&format!(" is {active}/{sub}")), "{error}");
        }
    }

    #[test]
    fn a_record_without_the_loaders_times_begins_at_power_on_by_the_hosts_clock() {
        // The stub 4 s after power-on, the handoff 9 s after it and 3.5 s by the kernel's clock.
        let before = spans(4_000_000, 9_000_000, 3_500_000);
        let times: Vec<_> = before.iter().map(|span| (span.start, span.end)).collect();
        assert_eq!(
            times,
            [(-5_500_000, Some(-1_500_000)), (-1_500_000, Some(0)),]
        );
        let whole = from_power_on(KERNELS, before.clone()).unwrap();
        let sources: Vec<_> = timeline::read(&whole)
            .unwrap()
            .into_iter()
            .map(|span| span.source)
            .collect();
        assert_eq!(sources, ["firmware", "loader", "kernel"]);
        // It has the loader's own, or the kernel's clock went on while the machine was stopped.
        let loader = r#"{"source":"firmware","name":"firmware","start":-7,"end":0}"#;
        let whole = from_power_on(&format!("{loader}\n{KERNELS}\n"), before).unwrap();
        assert_eq!(whole.lines().count(), 2);
        assert!(spans(4_000_000, 9_000_000, 9_500_000).is_empty());
    }

    #[test]
    fn a_boot_without_firmware_or_without_the_stubs_words_has_no_spans_before_the_kernel() {
        let handed = "slipway-handoff: {\"micros\":3500000}\n";
        let shown = format!("EFI stub: Loaded initrd\n{handed}");
        let [stub, handoff] = [4, 9].map(Duration::from_secs);
        let found = before_the_kernel(&shown, Some(stub), handoff);
        assert_eq!(found, spans(4_000_000, 9_000_000, 3_500_000));
        assert_eq!(found.len(), 2);
        assert_eq!(before_the_kernel(&shown, None, handoff), []);
        assert_eq!(before_the_kernel(handed, Some(handoff), handoff), []);
    }
}
