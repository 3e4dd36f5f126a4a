//! Kubelet: the bundle of its container, written and linted at every boot, its unit, and the commands that the unit
//! runs.
//!
//! The unit and the bundle are in `/run`, so those of another boot or another image cannot be used by mistake; drop-ins
//! and masks in `/etc` work as with any unit. The container's files are a folder of the verified root.

mod bundle;
mod unit;

use crate::context::Boot;
use crate::root::Root;
use anyhow::Result;

/// Writes the bundle and installs the unit, if the image has a kubelet.
///
/// # Errors
/// If the bundle breaks a rule (all broken rules at once), or cannot be written.
pub(crate) fn install(boot: &Boot, root: &Root) -> Result<()> {
    let Some(kubernetes) = &boot.manifest.kubernetes else {
        tracing::debug!("this image has no kubelet");
        return Ok(());
    };
    bundle::write(&boot.world, &root.programs.sysroot)?;
    if unit::install(&boot.world, &root.programs.sysroot)? {
        tracing::info!(
            "kubelet {}: bundle and unit are in place",
            kubernetes.version
        );
    } else {
        tracing::info!(
            "kubelet {}: the config does not enable it",
            kubernetes.version
        );
    }
    Ok(())
}
