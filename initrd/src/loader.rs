//! Loader: the variables of the boot loader, readable from any step, since a boot may fail before its modules are loaded.

use std::sync::Arc;

use anyhow::{Context, Result};
use image::guid::Guid;
use image::modules::EFIVARS;
use linux::firmware::{Counter, counter};
use linux::modules::Modules;
use linux::mount::{self, Flags};
use linux::world::World;
use linux::{block, firmware};

/// The partition that the boot loader started from; none without UEFI.
pub(crate) fn partition(world: &World, modules: &Modules) -> Option<Guid> {
    open(world, || modules.load(&[EFIVARS]));
    firmware::loader_partition(world)
}

/// What the boot loader says of the entry that it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It counts the boots of the entry.
    Counted(Counter),
    /// It knows the entry and counts no boots of it: the entry was blessed.
    Blessed,
    /// Nothing: a direct or PXE boot, another loader, or a counter that cannot be read.
    Unknown,
}

impl Entry {
    /// `counted` is the path of an entry whose boots are counted, `selected` whether systemd-boot has started one.
    pub(crate) fn of(counted: Option<&str>, selected: bool) -> Self {
        match counted {
            Some(path) => counter(path).map_or(Self::Unknown, Self::Counted),
            None if selected => Self::Blessed,
            None => Self::Unknown,
        }
    }
}

/// The boot entry that this boot came from.
pub(crate) fn entry(world: &Arc<World>) -> Entry {
    open(world, || of_running_kernel(world)?.load(&[EFIVARS]));
    let counted = firmware::counted_entry(world);
    Entry::of(
        counted.as_deref(),
        firmware::selected_entry(world).is_some(),
    )
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

#[cfg(test)]
mod tests {
    use linux::samples::set_loader_variable as set;
    use linux::world::Clock;

    use super::*;

    #[test]
    fn an_entry_is_blessed_where_the_loader_names_it_and_counts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let world = Arc::new(World::below(folder.path(), Clock::Real));
        assert_eq!(entry(&world), Entry::Unknown);
        // The stub records its file after every start of a UKI, by a network's firmware too.
        set(&world, "StubImageIdentifier", r"\EFI\Linux\demo_1.efi");
        assert_eq!(entry(&world), Entry::Unknown);
        set(&world, "LoaderEntrySelected", "demo_1.efi");
        assert_eq!(entry(&world), Entry::Blessed);
        set(&world, "LoaderBootCountPath", r"\EFI\Linux\demo_1+2-1.efi");
        let counter = Counter { left: 2, done: 1 };
        assert_eq!(entry(&world), Entry::Counted(counter));
    }
}
