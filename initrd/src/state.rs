//! State: the partitions that the first boot makes and every boot grows; the `/etc` overlay; the machine id.

use std::path::PathBuf;

/// What the node keeps: `state` and `var` are mounted below the root, and `/etc` is writable.
#[derive(Debug)]
pub(crate) struct State {
    /// Where `state` is mounted: [`image::paths::STATE`] below the root.
    pub(crate) dir: PathBuf,
    /// Whether this node has not been provisioned yet.
    pub(crate) first_boot: bool,
    /// The machine id, 32 hexadecimal digits.
    pub(crate) machine_id: String,
}
