//! Mounts: the only place of the init that calls mount.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the door that the lint points to"
)]

mod info;
mod options;

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, Result};
pub use info::table;
pub use nix::mount::MsFlags as Flags;
use nix::mount::{MntFlags, umount2};
pub use options::options;

/// Mounts a file system of type `kind`. `options` is the comma-separated text for the file system itself.
///
/// # Errors
/// Names source, target, type and options.
pub fn mount(
    source: impl AsRef<Path>,
    target: &Path,
    kind: &str,
    flags: Flags,
    options: &str,
) -> Result<()> {
    let source = source.as_ref();
    sys_mount::Mount::builder()
        .fstype(kind)
        .flags(sys_mount::MountFlags::from_bits_retain(flags.bits()))
        .data(options)
        .mount(source, target)
        .with_context(|| {
            format!(
                "mounting {} at {} as {kind} ({options:?})",
                source.display(),
                target.display()
            )
        })?;
    Ok(())
}

/// Binds a folder or file, with the mounts below it.
///
/// # Errors
/// Names both ends.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    nix::mount::mount(
        Some(source),
        target,
        None::<&str>,
        Flags::MS_BIND | Flags::MS_REC,
        None::<&str>,
    )
    .with_context(|| format!("binding {} to {}", source.display(), target.display()))
}

/// Moves a mount to another place.
///
/// # Errors
/// Names both ends.
pub fn move_mount(source: &Path, target: &Path) -> Result<()> {
    nix::mount::mount(
        Some(source),
        target,
        None::<&str>,
        Flags::MS_MOVE,
        None::<&str>,
    )
    .with_context(|| format!("moving {} to {}", source.display(), target.display()))
}

/// Gives this process its own view of the mounts, from which nothing gets out.
///
/// # Errors
/// If the kernel refuses.
pub fn own_namespace() -> Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .context("leaving the shared mounts")?;
    nix::mount::mount(
        None::<&str>,
        "/",
        None::<&str>,
        Flags::MS_REC | Flags::MS_PRIVATE,
        None::<&str>,
    )
    .context("making the mounts private")
}

/// Unmounts.
///
/// # Errors
/// Names the mount.
pub fn unmount(target: &Path) -> Result<()> {
    umount2(target, MntFlags::UMOUNT_NOFOLLOW)
        .with_context(|| format!("unmounting {}", target.display()))
}

/// Takes a mount and those below it out of the tree, whoever still uses them.
///
/// # Errors
/// Names the mount.
pub fn detach(target: &Path) -> Result<()> {
    umount2(target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
        .with_context(|| format!("detaching {}", target.display()))
}

/// Makes the folder `path` and those above it with `mode`, if they are absent.
///
/// # Errors
/// Names the folder.
pub fn folder(path: &Path, mode: u32) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .with_context(|| format!("making the folder {}", path.display()))
}
