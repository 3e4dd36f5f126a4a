//! Manifest: the description of this image. The clock is raised to its time.

use std::fs;

use anyhow::{Context, Result};
use image::fault::Fault;
use image::manifest::Manifest;
use image::paths;

use linux::log::say;
use linux::world::World;

use crate::context::Early;

/// Seconds of a mean year.
const YEAR: i64 = 31_556_952;
/// From so many years on a clock is reported.
const FAR: i64 = 5;

/// Reads the manifest from the initramfs, raises a clock that is behind it, and reports one that is years ahead.
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
    check_clock(&early.world, &manifest);
    Ok(manifest)
}

/// A clock behind the image's own time would refuse every certificate, so it is raised. One years ahead may be right, since
/// an image may be old; it refuses certificates too, so it is reported. Best effort.
fn check_clock(world: &World, manifest: &Manifest) {
    use nix::sys::time::TimeSpec;
    use nix::time::{ClockId, clock_gettime, clock_settime};

    let Ok(epoch) = i64::try_from(manifest.epoch) else {
        return;
    };
    let clock = ClockId::CLOCK_REALTIME;
    let raised = clock_gettime(clock).and_then(|now| {
        if now.tv_sec() >= epoch {
            if let Some(line) = ahead(epoch, now.tv_sec()) {
                say(world, &format!("slipway: {line}"));
                tracing::warn!("{line}");
            }
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

/// What is said of a clock that is years ahead of the image's time, both in seconds since 1970.
fn ahead(epoch: i64, now: i64) -> Option<String> {
    let years = (now - epoch) / YEAR;
    (years >= FAR).then(|| {
        format!(
            "the clock is {years} years ahead of the image, which is from {}; if it is wrong, certificates count as \
             expired: set the machine's clock",
            1970 + epoch / YEAR
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_years_ahead_of_the_image_is_reported() {
        // 22 November 2026.
        let epoch = 1_795_305_600;
        for years in [0, 1, 4] {
            assert_eq!(ahead(epoch, epoch + years * YEAR), None);
        }
        let line = ahead(epoch, epoch + 73 * YEAR).unwrap();
        assert!(
            line.starts_with("the clock is 73 years ahead of the image, which is from 2026;"),
            "{line}"
        );
    }
}
