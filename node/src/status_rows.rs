//! A status as rows of a label and a text, for people.

use crate::balancer::record::{List, Record, Server};
use crate::node_status::{Health, PinnedKubelet, State, Status};
use crate::systemd::Unit;
use crate::this_boot::{BootEntry, FailedBoot};

/// Failed units that are named; more are counted.
const UNITS: usize = 4;

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) label: &'static str,
    pub(crate) text: String,
    /// Whether the text changes by time alone.
    pub(crate) of_time: bool,
}

/// The rows of a status, in their order.
pub(crate) fn rows(status: &Status) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |label, text: Option<String>| {
        rows.extend(text.map(|text| Row {
            label,
            text,
            of_time: label == UP || label == CLOCK,
        }));
    };
    row("name", Some(status.name.clone()));
    row("state", Some(sum(status)));
    row("waits for", status.waits_for.clone());
    row("remedy", status.remedy.clone());
    row("addresses", Some(status.addresses.join(", ")));
    row("image", image(status));
    row("boot entry", status.boot_entry.as_ref().map(boot_entry));
    row(UP, Some(time(status.uptime_seconds)));
    row(CLOCK, clock(status));
    for disk in status.disks.iter().filter(|disk| disk.is_short()) {
        row("disk", Some(disk.text()));
    }
    row("cluster", Some(cluster(status)));
    row("kubernetes", status.kubernetes.clone());
    row("kubelet", Some(health(&status.kubelet)));
    row("pinned", status.pinned_kubelet.as_ref().map(pinned));
    row("etcd", status.etcd.as_ref().map(health));
    row("API server", status.api_server.as_ref().map(health));
    row("API servers", status.balancer.as_ref().map(servers));
    row("node", status.node.as_ref().map(health));
    row("objects", objects(status));
    let addons = status.addons.as_ref();
    row("addons", addons.map(|line| format!("waiting for {line}")));
    let units = status.failed_units.as_deref().unwrap_or_default();
    for unit in units.iter().take(UNITS) {
        row("failed unit", Some(failed_unit(unit)));
    }
    let more = units.len().saturating_sub(UNITS);
    row("failed units", (more > 0).then(|| format!("{more} more")));
    row("failed boot", status.last_failure.as_ref().map(failed_boot));
    rows
}

const UP: &str = "up";
const CLOCK: &str = "clock";

/// The state in words.
pub(crate) fn sum(status: &Status) -> String {
    let units = status.failed_units.as_ref().map_or(0, Vec::len);
    let state = match status.state {
        State::Ready => "Ready",
        State::Waiting => "not Ready",
        State::Failed => "failed",
    };
    match units {
        0 => state.to_owned(),
        1 => format!("{state}; a unit has failed"),
        _ => format!("{state}; {units} units have failed"),
    }
}

fn image(status: &Status) -> Option<String> {
    let image = status.image.as_ref()?;
    let text = format!("{} {}", image.name, image.version);
    Some(match status.slot {
        Some(slot) => format!("{text}, slot {slot}"),
        None => text,
    })
}

fn cluster(status: &Status) -> String {
    match (&status.cluster, &status.joined) {
        (Some(name), _) => name.clone(),
        (None, Some(server)) => format!("of {server}, without a cluster object"),
        (None, None) => "none: the kubelet runs alone".to_owned(),
    }
}

fn boot_entry(entry: &BootEntry) -> String {
    let name = &entry.name;
    match (entry.good, entry.tries_left) {
        (true, _) => format!("{name}, good"),
        (false, Some(1)) => format!("{name}, not good yet, 1 try left"),
        (false, Some(left)) => format!("{name}, not good yet, {left} tries left"),
        (false, None) => name.clone(),
    }
}

/// A time of so many seconds, with two units.
fn time(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

fn clock(status: &Status) -> Option<String> {
    let clock = &status.clock;
    let late = clock.synchronized == Some(false);
    late.then(|| format!("{}, no time server has answered", clock.time))
}

fn health(health: &Health) -> String {
    let reason = health.reason.clone();
    reason.unwrap_or_else(|| "healthy".to_owned())
}

fn objects(status: &Status) -> Option<String> {
    let node = status.objects_applied_by.as_ref()?;
    Some(match &status.objects_left {
        None => format!("applied by {node}"),
        Some(reason) => format!("left by this node: {reason}"),
    })
}

/// How many of the API servers are ready, each other one with its reason, and whether the cluster has not said which there are.
fn servers(record: &Record) -> String {
    let all = &record.servers;
    let ready = |server: &&Server| server.healthy == Some(true);
    let mut text = format!(
        "{} of {} ready",
        all.iter().filter(ready).count(),
        all.len()
    );
    for server in all {
        if let Some(reason) = &server.reason {
            text += &format!("; {}: {reason}", server.address);
        }
    }
    text += match record.list {
        List::Cluster => "",
        List::Cache => "; as the cluster listed them before this boot",
        List::Object => "; as the cluster object names them",
    };
    text
}

fn pinned(pinned: &PinnedKubelet) -> String {
    let image = &pinned.image;
    match &pinned.refused {
        None => format!("the kubelet is of {image}"),
        Some(reason) => format!("the image's own kubelet runs in place of {image}: {reason}"),
    }
}

fn failed_unit(unit: &Unit) -> String {
    let again = match unit.sub.as_str() {
        "auto-restart" => "fails again and again",
        _ => "has failed",
    };
    let name = &unit.name;
    format!("{name} {again} (`systemctl status {name}`)")
}

fn failed_boot(boot: &FailedBoot) -> String {
    let report = &boot.report;
    let mut text = format!("{}, step {}: {}", boot.time, report.step, report.what);
    for (what, part) in [
        ("expected", &report.expected),
        ("found", &report.found),
        ("remedy:", &report.fix),
    ] {
        text += &part
            .as_ref()
            .map(|part| format!("; {what} {part}"))
            .unwrap_or_default();
    }
    text
}
