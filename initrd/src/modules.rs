//! Modules: those of the root and the drivers of this machine's disks; and the watchdog.

use std::sync::Arc;

use anyhow::{Context, Result};
use image::cmdline::Cmdline;
use image::fault::Fault;
use image::modules as needed;
use linux::modules::Modules;
use linux::world::World;

use crate::context::Early;

/// Loads the modules that open the root, at once with the drivers of this machine's disks, and arms the watchdog. The
/// drivers of network cards wait until a source needs them.
///
/// # Errors
/// A [`Fault`] if a module that the root needs does not load.
pub(crate) fn load(early: &Early, cmdline: &Cmdline) -> Result<Modules> {
    let modules = open_root(&early.world, cmdline)?;
    arm_watchdog(&early.world, &modules);
    Ok(modules)
}

fn open_root(world: &Arc<World>, cmdline: &Cmdline) -> Result<Modules> {
    let release = nix::sys::utsname::uname().context("asking for the kernel's release")?;
    let release = release.release().to_string_lossy();
    let modules = Modules::open(Arc::clone(world), &release)?;
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

/// Arms the machine's own watchdog, else the kernel's. Best effort.
fn arm_watchdog(world: &World, modules: &Modules) {
    if !world.dev.join("watchdog0").exists()
        && let Err(error) = modules.load(&[needed::SOFT_WATCHDOG])
    {
        tracing::warn!("{error:#}");
    }
    match world.watchdog.arm(&world.dev, &world.sys) {
        Ok(Some(name)) => tracing::info!("watchdog: {name}"),
        Ok(None) => tracing::warn!("this machine has no watchdog"),
        Err(error) => tracing::warn!("the watchdog is not armed: {error:#}"),
    }
}
