//! A failure as the node tells it: for people on every console, for machines as one line.

use serde::{Deserialize, Serialize};

/// What the machine-readable line begins with, on the console and on the serial port.
pub const LINE: &str = "slipway-report: ";
/// The virtio serial port to which the report's line goes too, where a machine has one.
pub const PORT: &str = "slipway.report";
/// What the init prints on the console just before it executes the next init: `slipway-handoff: {json}`.
pub const HANDOFF_LINE: &str = "slipway-handoff: ";

/// A failure, in the words that a person at the console needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The step of the boot line.
    pub step: String,
    /// What failed, as one sentence.
    pub what: String,
    /// What was expected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected: Option<String>,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fix: Option<String>,
}
