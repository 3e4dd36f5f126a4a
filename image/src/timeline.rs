//! The record of a boot: JSON lines that the init begins, `slipway-node` completes, and the tool draws.

use serde::{Deserialize, Serialize};

/// One step of a boot. Times are microseconds of the kernel's boot clock (`CLOCK_BOOTTIME`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// Whose time it is: `firmware`, `loader`, `kernel`, `init`, or one of [`BEHIND`].
    pub source: String,
    /// The step's name, as `root` or `etcd`; nested steps have a dotted name, as `modules.virtio_blk`.
    pub name: String,
    /// Begin, µs.
    pub start: i64,
    /// End, µs; `None` for a moment.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub end: Option<i64>,
    /// A detail: a device, a size, a count.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// Times of systemd and its units.
pub const SYSTEMD: &str = "systemd";
/// Times of the bring-up of the cluster.
pub const CLUSTER: &str = "cluster";
/// Times of the containers of pods.
pub const PODS: &str = "pods";
/// What a node records behind the handoff.
pub const BEHIND: [&str; 3] = [SYSTEMD, CLUSTER, PODS];
/// The moment at which the node is Ready, of the source [`CLUSTER`].
pub const READY: &str = "Ready";

/// The spans as JSON lines, by time of begin; of two that begin together the longer one first.
#[must_use]
pub fn to_lines(mut spans: Vec<Span>) -> String {
    spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    let lines = spans
        .iter()
        .filter_map(|span| serde_json::to_string(span).ok());
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

/// Reads JSON lines; empty ones are skipped.
///
/// # Errors
/// Names the first line that is no span, counted from 1.
pub fn parse(text: &str) -> Result<Vec<Span>, String> {
    let lines = (1..).zip(text.lines());
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let spans = lines.map(|(number, line)| {
        serde_json::from_str(line)
            .map_err(|error| format!("reading line {number} of the timeline: {error}"))
    });
    spans.collect()
}

/// How many boots' timelines `state` keeps.
pub const KEPT: usize = 16;
