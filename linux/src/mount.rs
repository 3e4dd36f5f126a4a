//! Mounts: the only module that mounts and unmounts, by the crate sys-mount.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the door that the lint points to"
)]

mod info;
mod options;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, Result};
pub use info::{Mount as Entry, table, table_of};
// sys-mount's own flags lack lazytime and iversion, which configs use.
pub use nix::mount::MsFlags as Flags;
pub use options::options;
use sys_mount::{Mount, MountFlags, UnmountFlags};

/// Placeholder for a source or type that the kernel ignores, as with binds and moves.
const IGNORED: &str = "none";
/// sys-mount's `NOFOLLOW` is open(2)'s flag and not umount2(2)'s, which the kernel refuses.
const NO_FOLLOW: UnmountFlags = UnmountFlags::from_bits_retain(nix::libc::UMOUNT_NOFOLLOW);

fn call(source: &Path, target: &Path, kind: &str, flags: Flags, options: &str) -> io::Result<()> {
    Mount::builder()
        .fstype(kind)
        .flags(MountFlags::from_bits_retain(flags.bits()))
        .data(options)
        .mount(source, target)
        .map(drop)
}

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
    call(source, target, kind, flags, options).with_context(|| {
        format!(
            "mounting {} at {} as {kind} ({options:?})",
            source.display(),
            target.display()
        )
    })
}

/// Binds a folder or file, with the mounts below it.
///
/// # Errors
/// Names both ends.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    call(source, target, IGNORED, Flags::MS_BIND | Flags::MS_REC, "")
        .with_context(|| format!("binding {} to {}", source.display(), target.display()))
}

/// Lets a mount give nothing to others and take nothing from them: neither what is mounted below it nor what is unmounted there.
///
/// # Errors
/// If the target is no mount, or the caller may not change it.
pub fn make_private(target: &Path) -> Result<()> {
    let none: Option<&str> = None;
    nix::mount::mount(none, target, none, Flags::MS_PRIVATE, none)
        .with_context(|| format!("making the mount at {} private", target.display()))
}

/// Moves a mount to another target.
///
/// # Errors
/// Names both ends.
pub fn move_mount(source: &Path, target: &Path) -> Result<()> {
    call(source, target, IGNORED, Flags::MS_MOVE, "")
        .with_context(|| format!("moving {} to {}", source.display(), target.display()))
}

/// Gives this process its own mount namespace, from which no mount propagates.
///
/// # Errors
/// If the kernel refuses.
pub fn own_namespace() -> Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .context("unsharing the mount namespace")?;
    // Not by sys-mount: it names the types of propagation, and has no call that sets one.
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
    sys_mount::unmount(target, NO_FOLLOW)
        .with_context(|| format!("unmounting {}", target.display()))
}

/// Detaches a mount and those below it from the tree, even while processes use them.
///
/// # Errors
/// Names the mount.
pub fn detach(target: &Path) -> Result<()> {
    sys_mount::unmount(target, NO_FOLLOW | UnmountFlags::DETACH)
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
