//! Units of systemd in the boot's timeline: those that the last one waited for, and what each took.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use image::paths::SYSTEMCTL;
use image::timeline::{SYSTEMD, Span};
use linux::programs::{self, Programs};

/// When systemd itself did what, µs of `CLOCK_MONOTONIC`; 0 if it has not (org.freedesktop.systemd1(5)).
const STARTED: &str = "UserspaceTimestampMonotonic";
const LOADED: &str = "UnitsLoadFinishTimestampMonotonic";

/// A unit and when it was started last, µs of `CLOCK_MONOTONIC`; 0 if it was not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    name: String,
    /// Units that are started before it.
    after: Vec<String>,
    /// Its start began.
    begun: i64,
    /// It was active: with `Type=notify` it was READY, with `oneshot` it had ended.
    active: i64,
}

/// What systemd says of its own start and of all units.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    started: i64,
    loaded: i64,
    units: BTreeMap<String, Unit>,
}

/// Asks systemd, once for all units: a question for each would take longer than the rest of the record.
///
/// # Errors
/// If it does not answer.
pub(crate) fn ask(programs: &Programs) -> Result<Units> {
    let of_units =
        "--property=Id,After,InactiveExitTimestampMonotonic,ActiveEnterTimestampMonotonic";
    let units = programs::succeed(programs, SYSTEMCTL, &["show", "--no-pager", of_units, "*"])?;
    let own = format!("--property={STARTED},{LOADED}");
    let own = programs::succeed(programs, SYSTEMCTL, &["show", "--no-pager", &own])?;
    read(&own.stdout, &units.stdout).context("systemd's answer has no times")
}

/// Reads the answers of `systemctl show`: lines `KEY=VALUE`, an empty line between units.
fn read(own: &str, units: &str) -> Option<Units> {
    let units = units.split("\n\n").filter_map(|block| {
        let name = value(block, "Id")?.to_owned();
        let after = value(block, "After").unwrap_or_default();
        let unit = Unit {
            name: name.clone(),
            after: after.split_whitespace().map(str::to_owned).collect(),
            begun: time(block, "InactiveExitTimestampMonotonic")?,
            active: time(block, "ActiveEnterTimestampMonotonic")?,
        };
        Some((name, unit))
    });
    Some(Units {
        started: time(own, STARTED)?,
        loaded: time(own, LOADED)?,
        units: units.collect(),
    })
}

fn value<'a>(block: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = block.lines();
    lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

fn time(block: &str, key: &str) -> Option<i64> {
    value(block, key)?.parse().ok()
}

impl Units {
    /// The spans of systemd's own start and of the chain of units that ends with the first of `last` that was started.
    /// `shift` is what makes a time of the boot's clock of one of `CLOCK_MONOTONIC`, µs.
    pub(crate) fn spans(&self, last: &[&str], shift: i64) -> Vec<Span> {
        let span = |name: &str, start: i64, end: i64| Span {
            source: SYSTEMD.to_owned(),
            name: shown(name),
            start: start + shift,
            end: Some(end + shift),
            note: None,
        };
        let last = last.iter().find_map(|name| {
            let unit = self.units.get(*name)?;
            (unit.begun > 0).then_some(unit)
        });
        let mut spans = Vec::new();
        if self.started > 0 && self.loaded >= self.started {
            spans.push(span("load units", self.started, self.loaded));
        }
        let chain = last.map(|unit| self.chain(unit)).unwrap_or_default();
        // Targets and what is there already take no time: they are in the chain for their order alone.
        let chain = chain.iter().filter(|unit| unit.active > unit.begun);
        spans.extend(chain.map(|unit| span(&unit.name, unit.begun, unit.active)));
        spans
    }

    /// A unit and what it waited for: of those that are ordered before it, the one that was active last, and so on, as
    /// `systemd-analyze critical-chain` has it. The first one first.
    fn chain<'a>(&'a self, last: &'a Unit) -> Vec<&'a Unit> {
        let mut chain = vec![last];
        let mut unit = last;
        // Each is active before the one behind it begins, so that no circle is followed for ever.
        while let Some(before) = self.before(unit) {
            chain.push(before);
            unit = before;
        }
        chain.reverse();
        chain
    }

    fn before(&self, unit: &Unit) -> Option<&Unit> {
        let ordered = unit.after.iter().filter_map(|name| self.units.get(name));
        ordered
            .filter(|before| (1..=unit.begun).contains(&before.active))
            .filter(|before| before.begun < unit.begun)
            .max_by_key(|before| (before.active, &before.name))
    }
}

/// A unit's name in a timeline, where a dot leads to a nested step: a service without its suffix, others in two words.
fn shown(name: &str) -> String {
    match name.strip_suffix(".service") {
        Some(stem) => stem.replace('.', " "),
        None => name.replace('.', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "UserspaceTimestampMonotonic=1000\nUnitsLoadFinishTimestampMonotonic=1400\n";
    /// In the order and form of `systemctl show`, systemd 257; `dead` was never started, `slow` is not waited for.
    const UNITS: &str = "\
Id=kubelet.service
After=containerd.service basic.target slipway-images.service dead.service slow.service
InactiveExitTimestampMonotonic=5000
ActiveEnterTimestampMonotonic=9000

Id=containerd.service
After=basic.target dbus.socket
InactiveExitTimestampMonotonic=3000
ActiveEnterTimestampMonotonic=4900

Id=slipway-images.service
After=basic.target
InactiveExitTimestampMonotonic=3000
ActiveEnterTimestampMonotonic=4000

Id=basic.target
After=systemd-fsck@dev-vda5.service kubelet.service
InactiveExitTimestampMonotonic=2900
ActiveEnterTimestampMonotonic=2900

Id=systemd-fsck@dev-vda5.service
After=
InactiveExitTimestampMonotonic=2000
ActiveEnterTimestampMonotonic=2800

Id=dead.service
After=
InactiveExitTimestampMonotonic=0
ActiveEnterTimestampMonotonic=0

Id=slow.service
After=
InactiveExitTimestampMonotonic=3000
ActiveEnterTimestampMonotonic=8000
";

    fn named(spans: &[Span]) -> Vec<(&str, i64, Option<i64>)> {
        spans
            .iter()
            .map(|span| (span.name.as_str(), span.start, span.end))
            .collect()
    }

    #[test]
    fn the_chain_has_what_each_unit_waited_for() {
        let units = read(OWN, UNITS).unwrap();
        let spans = units.spans(&["slipway-cluster.service", "kubelet.service"], 7);
        let expected = [
            ("load units", 1007, Some(1407)),
            ("systemd-fsck@dev-vda5", 2007, Some(2807)),
            ("containerd", 3007, Some(4907)),
            ("kubelet", 5007, Some(9007)),
        ];
        assert_eq!(named(&spans), expected);
        assert_eq!(named(&units.spans(&["dead.service"], 0)).len(), 1);
    }

    /// Two that were active in the same microsecond, each ordered behind the other, are no endless chain.
    #[test]
    fn a_circle_ends() {
        let circle = "Id=a.service\nAfter=b.service\nInactiveExitTimestampMonotonic=5\nActiveEnterTimestampMonotonic=5\n\n\
                      Id=b.service\nAfter=a.service\nInactiveExitTimestampMonotonic=5\nActiveEnterTimestampMonotonic=5\n";
        let units = read(OWN, circle).unwrap();
        assert_eq!(named(&units.spans(&["a.service"], 0)).len(), 1);
    }

    #[test]
    fn an_answer_without_times_is_none() {
        assert!(read("", UNITS).is_none());
        assert!(read("UserspaceTimestampMonotonic=x\n", UNITS).is_none());
        assert_eq!(read(OWN, "Id=a.service\n").unwrap().units.len(), 0);
    }
}
