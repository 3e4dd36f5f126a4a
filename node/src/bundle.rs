//! The OCI bundle of the kubelet's container, which slipway-init writes at boot: checked again before each start.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::container_lint;
use image::kubelet::FOLDERS;
use image::paths::{BUNDLE_FILE, RUN_KUBELET_BUNDLE};
use image::runtime_spec::Spec;
use linux::mount::folder;
use linux::world::World;

/// Reads the bundle and lints it, since `/run` is writable and another program may have changed it after the boot.
///
/// # Errors
/// All broken rules at once.
pub(crate) fn verify(world: &World) -> Result<()> {
    let file = world.in_run(RUN_KUBELET_BUNDLE).join(BUNDLE_FILE);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let spec: Spec =
        serde_json::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
    let wrong = container_lint::spec(&spec);
    ensure!(
        wrong.is_empty(),
        "the kubelet's container is refused:\n  {}",
        wrong.join("\n  ")
    );
    Ok(())
}

/// Makes the folders that the container mounts from the host.
pub(crate) fn make_folders(root: &Path) -> Result<()> {
    FOLDERS
        .iter()
        .try_for_each(|(path, mode)| folder(&root.join(path.trim_start_matches('/')), *mode))
}
