//! Loader: the variables of the boot loader, readable from any step, since a boot may fail before its modules are loaded.

use std::sync::Arc;

use anyhow::{Context, Result};
use image::guid::Guid;
use image::modules::EFIVARS;
use linux::modules::Modules;
use linux::mount::{self, Flags};
use linux::world::World;
use linux::{block, firmware};

/// The partition that the boot loader started from; none without UEFI.
pub(crate) fn partition(world: &World, modules: &Modules) -> Option<Guid> {
    open(world, || modules.load(&[EFIVARS]));
    firmware::loader_partition(world)
}

/// Path of the boot entry that this boot came from, if the loader counts its boots.
pub(crate) fn counted_entry(world: &Arc<World>) -> Option<String> {
    open(world, || of_running_kernel(world)?.load(&[EFIVARS]));
    firmware::counted_entry(world)
}

/// The modules of the initramfs for the kernel that runs.
pub(crate) fn of_running_kernel(world: &Arc<World>) -> Result<Modules> {
    let release = nix::sys::utsname::uname().context("asking for the kernel's release")?;
    Modules::open(Arc::clone(world), &release.release().to_string_lossy())
}

/// Mounts the variables, unless they are mounted or there is no UEFI. Best effort.
fn open(world: &World, load: impl FnOnce() -> Result<()>) {
    let efivars = world.sys.join("firmware/efi/efivars");
    if !efivars.exists() || !block::entries(&efivars).is_empty() {
        return;
    }
    let mount = || mount::mount("efivarfs", &efivars, "efivarfs", Flags::MS_RDONLY, "");
    if let Err(error) = load().and_then(|()| mount()) {
        tracing::warn!("the boot loader's variables are not readable: {error:#}");
    }
}
