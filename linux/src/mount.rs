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
use std::thread;
use std::time::Duration;

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

/// Attempts at a mount that is busy, 20 ms apart.
const ATTEMPTS: u32 = 250;

/// Unmounts. While something of it is in use this is retried for five seconds: a program that another thread starts has the files that
/// this process has open until it runs, on a busy machine for a while.
///
/// # Errors
/// Names the mount.
pub fn unmount(target: &Path) -> Result<()> {
    let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
    let mut done = sys_mount::unmount(target, NO_FOLLOW);
    for _ in 1..ATTEMPTS {
        if !done.as_ref().is_err_and(is_busy) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
        done = sys_mount::unmount(target, NO_FOLLOW);
    }
    done.with_context(|| format!("unmounting {}", target.display()))
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::host::is_root;

    #[test]
    fn a_mount_in_use_for_a_moment_is_waited_for() {
        if !is_root() {
            return;
        }
        let unmounting = thread::spawn(|| {
            own_namespace().unwrap();
            let folder = tempfile::tempdir().unwrap();
            mount(
                Path::new("test"),
                folder.path(),
                "tmpfs",
                Flags::empty(),
                "",
            )
            .unwrap();
            let held = File::create(folder.path().join("held")).unwrap();
            let holder = thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                drop(held);
            });
            unmount(folder.path()).unwrap();
            holder.join().unwrap();
            // What is not mounted is no wait.
            let begin = std::time::Instant::now();
            assert!(unmount(folder.path()).is_err());
            assert!(begin.elapsed() < Duration::from_secs(4));
        });
        unmounting.join().unwrap();
    }
}
