//! Modules: those of the root and the drivers of this machine's disks; and the watchdog.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use image::cmdline::Cmdline;
use image::fault::Fault;
use image::modules as needed;
use linux::modules::Modules;
use linux::watchdog::TIMEOUT;
use linux::world::World;

use crate::context::Early;
use crate::loader;

/// Loads what opens the root, at once with the drivers of this machine's disks, and arms the watchdog as soon as its driver
/// is there. The drivers of network cards wait until a source needs them.
///
/// # Errors
/// A [`Fault`] if a module that the root needs does not load.
pub(crate) fn load(early: &Early, cmdline: &Cmdline) -> Result<Modules> {
    let world = &early.world;
    let seconds = cmdline.watchdog.map(u64::from);
    let time = seconds.map_or(TIMEOUT, Duration::from_secs);
    if !time.is_zero() {
        world.watchdog.want(time);
    }
    let modules = open_root(world, cmdline)?;
    if !time.is_zero() {
        complete_watchdog(world, &modules);
    }
    Ok(modules)
}

fn open_root(world: &Arc<World>, cmdline: &Cmdline) -> Result<Modules> {
    let modules = loader::of_running_kernel(world)?;
    let there = |name: &&str| modules.index().module(name).is_some();
    let mut names: Vec<&str> = needed::ROOT.to_vec();
    let optional = needed::OPTIONAL.iter().copied().filter(there);
    names.extend(optional.filter(|name| *name != needed::LOOP));
    if cmdline.root_url.is_some() {
        names.push(needed::LOOP);
    }
    modules.load_with_disks(&names).context(
        Fault::new("a kernel module that the root needs does not load")
            .fix("build the image again; its initramfs and its kernel do not fit"),
    )?;
    Ok(modules)
}

/// The kernel's own watchdog, where the machine has none. Loading a driver arms it; one that is built in is armed here. Best
/// effort.
fn complete_watchdog(world: &World, modules: &Modules) {
    let device = world.dev.join("watchdog0");
    if !device.exists()
        && let Err(error) = modules.load(&[needed::SOFT_WATCHDOG])
    {
        tracing::warn!("{error:#}");
    }
    match world.watchdog.arm(&world.dev, &world.sys) {
        Ok(Some(name)) => tracing::info!("watchdog: {name}"),
        Ok(None) if !device.exists() => tracing::warn!("this machine has no watchdog"),
        Ok(None) => {}
        Err(error) => tracing::warn!("the watchdog is not armed: {error:#}"),
    }
}
