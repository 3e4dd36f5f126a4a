//! Manifest: the description of this image. The clock is raised to its time.

use std::fs;

use anyhow::{Context, Result};
use image::fault::Fault;
use image::manifest::Manifest;
use image::paths;

use crate::context::Early;

/// Reads the manifest from the initramfs, and raises a clock that is behind it.
///
/// # Errors
/// A [`Fault`] if this init does not support the contract version.
pub(crate) fn read(early: &Early) -> Result<Manifest> {
    let path = early.world.in_initrd(paths::INITRD_MANIFEST);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let manifest = Manifest::parse(&text).map_err(|found| {
        Fault::new("the image's manifest cannot be used")
            .found(found)
            .fix("build the image with the version of slipway that this init belongs to")
    })?;
    raise_clock(&manifest);
    Ok(manifest)
}

/// Raises a clock that is behind the image's own time, since it would refuse every certificate. Best effort.
fn raise_clock(manifest: &Manifest) {
    use nix::sys::time::TimeSpec;
    use nix::time::{ClockId, clock_gettime, clock_settime};

    let Ok(epoch) = i64::try_from(manifest.epoch) else {
        return;
    };
    let clock = ClockId::CLOCK_REALTIME;
    let raised = clock_gettime(clock).and_then(|now| {
        if now.tv_sec() >= epoch {
            return Ok(false);
        }
        clock_settime(clock, TimeSpec::new(epoch, 0)).map(|()| true)
    });
    match raised {
        Ok(true) => tracing::warn!("the clock was behind the image's time and has been raised"),
        Ok(false) => {}
        Err(error) => tracing::warn!("raising the clock: {error}"),
    }
}
