//! The record of a boot: JSON lines that the init writes and the tool draws.

use serde::{Deserialize, Serialize};

/// One step of a boot. Times are microseconds of the kernel's boot clock (`CLOCK_BOOTTIME`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// The program that measured it: `firmware`, `loader`, `kernel`, `init` or `systemd`.
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

/// How many boots' timelines `state` keeps.
pub const KEPT: usize = 16;
