//! A node whose containerd is not Debian's.

use anyhow::{Result, ensure};
use namespace_tests::lab::Lab;

use crate::control_plane;

/// The image of these tests.
pub(crate) const RECIPE: &str = "namespace-tests/containerd-2.toml";

/// containerd 2 has the images of the root without an import, on its first start and behind its own change of what it keeps; a node with it
/// becomes Ready and serves pods as one with Debian's does, and has them again after a power cut.
pub(crate) fn release_2_serves_pods_and_has_them_again_after_a_power_cut(
    lab: &mut Lab,
) -> Result<()> {
    let said = lab.image.version_of("containerd")?;
    ensure!(said.contains(" v2.2."), "containerd says {said}");
    control_plane::a_node_serves_pods_and_has_them_again_after_a_power_cut(lab)
}
