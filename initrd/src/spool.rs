//! Spool: the config's files that the memory does not hold, fetched onto `/var` before the first file is written. Only on a
//! first boot.
//!
//! The step `config` has fetched and verified them before the first write, and kept none; what comes now must be the same. A
//! spool that a power cut left is removed by the next boot, which is a first boot too.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use apply::gather::amount;
use image::fault::Fault;
use image::paths;
use linux::mount;
use linux::world::World;

use crate::config::{self, Obtained};
use crate::context::Boot;
use crate::root::Root;

/// Fetches what does not fit into memory.
///
/// # Errors
/// A [`Fault`] if `/var` has too little space, or if the sources do not give what was verified, however often they are asked.
pub(crate) fn fill(boot: &Boot, root: &Root, config: &mut Obtained) -> Result<()> {
    fill_below(&boot.world, &root.programs.sysroot, config)
}

fn fill_below(world: &World, sysroot: &Path, config: &mut Obtained) -> Result<()> {
    let folder = sysroot.join(paths::SPOOL.trim_start_matches('/'));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let bytes = config.fetched.spooled();
    if bytes == 0 {
        return Ok(());
    }
    mount::folder(&folder, 0o700)?;
    check_space(bytes, free(&folder)?)?;
    for attempt in 0.. {
        let Err(wrong) = config.refetch.fill(&mut config.fetched, &folder) else {
            break;
        };
        for line in &wrong.lines {
            tracing::error!("config: {line}");
        }
        if attempt == config::WAITS.len() {
            return Err(changed(&wrong.to_string()).into());
        }
        config::pause(world, attempt, "no file was written");
    }
    Ok(())
}

fn changed(found: &str) -> Fault {
    Fault::new("files of the config that do not fit into memory cannot be fetched again")
        .expected("what was verified before the disks were made")
        .found(found)
        .fix("let the server keep a file as it is, under a name with its version; the next boot begins anew")
}

/// Bytes that the file system of a folder can take.
fn free(folder: &Path) -> Result<u64> {
    let found = nix::sys::statvfs::statvfs(folder)
        .with_context(|| format!("asking for the space of {}", folder.display()))?;
    Ok(found.blocks_available() * found.fragment_size())
}

fn check_space(bytes: u64, free: u64) -> Result<()> {
    if bytes <= free {
        return Ok(());
    }
    let fault = Fault::new("files of the config fit neither into memory nor onto /var")
        .expected(format!("{} for them on /var", amount::text(bytes)))
        .found(format!("{} free", amount::text(free)))
        .fix(
            "give the machine a larger disk, or more memory; or have large files fetched by a unit of the running node",
        );
    Err(fault.into())
}
