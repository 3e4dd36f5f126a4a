//! Handoff: frees the initramfs and executes the root's init.
//!
//! The order of `switch_root(8)`: the root moves onto `/`, the init changes into it, and the content of the initramfs
//! is deleted, which frees its memory.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use image::paths::{self, INIT};
use image::report::{HANDED_OFF, HANDOFF_LINE, Handoff};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, fstatat};
use nix::sys::statfs::{FsType, fstatfs};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, UnlinkatFlags, chdir, chroot, execve, unlinkat};

use crate::boot_disk;
use crate::context::Boot;
use crate::host_name;
use crate::recovery::ledger;
use crate::root::{self, Root};
use crate::state::State;
use linux::firmware;
use linux::mount;
use linux::waiter::Waiter;
use linux::world::World;

/// How long the end of a killed process is waited for.
const KILLED: Duration = Duration::from_secs(5);
/// The kernel file systems that the root has bound; the initramfs's own mounts of them are detached.
const KERNEL_FOLDERS: [&str; 4] = ["dev", "proc", "sys", "run"];

/// Reports whether the config differs from the applied one, leaves the initramfs and executes the root's init. Returns
/// only if that fails.
///
/// The node has booted by now: fatal is only what the next init cannot do without (the network's description, a root whose
/// damage is fatal, the root at `/`). Everything else is best effort: it is reported, and the boot goes on.
///
/// # Errors
/// The call that failed. Once the root has moved, the boot cannot go on.
pub(crate) fn hand_off(
    boot: &Boot,
    root: &Root,
    state: &State,
    machine_id: &str,
) -> Result<Infallible> {
    let world = &boot.world;
    root::refuse_copies(boot, root)?;
    for span in firmware::firmware_times(world) {
        boot.timeline.add(span);
    }
    let step = &boot.timeline;
    step.step("handoff.network", || boot.network.hand_over())?;
    best_effort(world, "naming the node", host_name::set(root, machine_id));
    let linked = boot_disk::link(world, root);
    best_effort(world, "writing udev's rules for the boot disk", linked);
    let flushed = step.step("handoff.flush", || boot.network.flush());
    best_effort(world, "taking the network down", flushed);
    boot.modules.hand_over();
    end_processes(world);
    // The kernel waits for all users of the old table; the records wait for the disk meanwhile.
    std::thread::scope(|scope| {
        let hardening = scope.spawn(|| root.harden());
        keep_all_records(boot, state);
        let hardened = hardening.join();
        hardened.unwrap_or_else(|_| bail!("the thread panicked"))
    })
    .context("making damage of the root fatal")?;
    world.watchdog.hand_over();
    world.consoles.release();
    let old = open_folder(&world.initrd);
    for name in KERNEL_FOLDERS {
        let detached = mount::detach(&world.initrd.join(name));
        best_effort(world, "letting go of the kernel's file systems", detached);
    }
    chdir(&root.programs.sysroot).context("changing into the root")?;
    mount::move_mount(&root.programs.sysroot, Path::new("/"))?;
    chroot(".").context("making the root the root")?;
    chdir("/").context("changing into the root")?;
    let world = World::real();
    let deleted = old.and_then(delete_initramfs);
    best_effort(&world, "freeing the initramfs", deleted);
    best_effort(&world, "closing what is open", close_on_exec());
    crate::world::expedite(&world, false);
    let handoff = Handoff {
        micros: world.micros(),
        peak_kib: peak(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
        config_changed: state.config_changed,
    };
    let line = serde_json::to_string(&handoff)?;
    // For the kernel's log, which has the times of the rest of the boot too.
    tracing::info!("{HANDED_OFF}");
    linux::log::say(&world, &format!("{HANDOFF_LINE}{line}"));
    world.consoles.release();
    execve(INIT, &[INIT], &environment()).context("starting /sbin/init")
}

/// Reports a failure that the node can live with.
fn best_effort(world: &World, doing: &str, done: Result<()>) {
    if let Err(error) = done {
        let line = format!("slipway: {doing} failed: {error:#}; the boot goes on");
        linux::log::announce(world, &line);
    }
}

/// The most memory that this program was resident in, KiB, from the text of `/proc/self/status`.
fn peak(status: &str) -> Option<u64> {
    let rest = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The environment of systemd: the one that the kernel would have given it.
fn environment() -> Vec<CString> {
    let term = std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned());
    [
        "HOME=/".to_owned(),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        format!("TERM={term}"),
    ]
    .into_iter()
    .filter_map(|text| CString::new(text).ok())
    .collect()
}

/// All that is kept of this boot: in `state` and where the running node finds it.
fn keep_all_records(boot: &Boot, state: &State) {
    let world = &boot.world;
    if let Some(state) = state.made() {
        ledger::note_success(state);
    }
    let timeline = boot.timeline.to_lines();
    keep_records(world, &boot.manifest.to_text(), &timeline);
    let kept = state.keep_timeline(&timeline);
    best_effort(world, "keeping the boot's timeline in state", kept);
}

/// The manifest and the timeline, where the running node finds them.
fn keep_records(world: &World, manifest: &str, timeline: &str) {
    for (path, text) in [
        (paths::RUN_MANIFEST, manifest),
        (paths::RUN_TIMELINE, timeline),
    ] {
        let kept = write_record(&world.in_run(path), text);
        best_effort(world, "keeping a record of the boot", kept);
    }
}

fn write_record(path: &Path, text: &str) -> Result<()> {
    mount::folder(path.parent().unwrap_or(path), 0o755)?;
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Ends whatever still runs beside this program: there should be nothing but a process that waits for a disk which does not
/// answer. That one is left to the next init.
fn end_processes(world: &World) {
    let own = std::process::id();
    let waiting = world.readers.processes();
    for name in linux::block::entries(&world.proc) {
        let Ok(id) = name.parse::<i32>() else {
            continue;
        };
        // The link is unreadable for kernel threads, which have no program.
        let program = fs::read_link(world.proc.join(&name).join("exe"));
        if let Ok(program) = program
            && i64::from(id) != i64::from(own)
            && !waiting.contains(&Pid::from_raw(id))
        {
            tracing::warn!(
                "process {id} ({}) still runs before the handoff; killing it",
                program.display()
            );
            let ended = end_process(world, Pid::from_raw(id));
            best_effort(world, &format!("ending process {id}"), ended);
        }
    }
}

/// Kills a process. One that has ended meanwhile is as good.
fn end_process(world: &World, id: Pid) -> Result<()> {
    match kill(id, Signal::SIGKILL) {
        Ok(()) => {}
        Err(Errno::ESRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let mut waiter = Waiter::until(world, KILLED);
    // Anything but "still there" means that it has ended, or is not a child of this program.
    while waitpid(id, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
        ensure!(!waiter.is_over(), "it waits for a device");
        waiter.examined();
        waiter.sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn open_folder(path: &Path) -> Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    nix::fcntl::open(path, flags, Mode::empty())
        .with_context(|| format!("opening {}", path.display()))
}

/// Deletes everything on the file system of `root`, which must be a file system in memory.
fn delete_initramfs(root: OwnedFd) -> Result<()> {
    const RAMFS: FsType = FsType(0x8584_58f6);
    const TMPFS: FsType = FsType(0x0102_1994);
    let kind = fstatfs(&root)
        .context("looking at the initramfs")?
        .filesystem_type();
    ensure!(
        kind == RAMFS || kind == TMPFS,
        "the old root is not an initramfs (file system type {kind:?}); it is not deleted"
    );
    let device = fstatat(&root, ".", AtFlags::empty())?.st_dev;
    delete_below(root, device)
}

fn delete_below(folder: OwnedFd, device: u64) -> Result<()> {
    let mut folder = Dir::from_fd(folder)?;
    let names: Vec<(CString, Option<Type>)> = folder
        .iter()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_owned(), entry.file_type()))
        })
        .filter(|(name, _)| name.as_c_str() != c"." && name.as_c_str() != c"..")
        .collect();
    for (name, kind) in names {
        if kind == Some(Type::Directory) {
            let stat = fstatat(&folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
            if stat.st_dev != device {
                continue;
            }
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let below = nix::fcntl::openat(&folder, name.as_c_str(), flags, Mode::empty())?;
            delete_below(below, device)?;
            // A folder that is still a mount point stays; it costs nothing.
            unlinkat(&folder, name.as_c_str(), UnlinkatFlags::RemoveDir).unwrap_or_default();
        } else {
            unlinkat(&folder, name.as_c_str(), UnlinkatFlags::NoRemoveDir)?;
        }
    }
    Ok(())
}

/// Makes every descriptor except the three standard ones close when the root's init starts.
fn close_on_exec() -> Result<()> {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use std::os::fd::BorrowedFd;

    for name in linux::block::entries(Path::new("/proc/self/fd")) {
        let Ok(number) = name.parse::<i32>() else {
            continue;
        };
        if number > 2 {
            set_close_on_exec(number)?;
        }
    }
    fn set_close_on_exec(number: i32) -> Result<()> {
        #![allow(unsafe_code)]
        // SAFETY: the number was just read from this process's own list; one that has been closed since (the
        // list's own) makes fcntl fail with EBADF, which is ignored.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        match fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)) {
            Ok(_) | Err(Errno::EBADF) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use linux::disk_reader::Readers;
    use linux::samples::hanging;
    use linux::world::Clock;

    use super::*;

    fn world(folder: &Path) -> World {
        let world = World::below(folder, Clock::Real);
        fs::create_dir_all(&world.dev).unwrap();
        fs::write(world.dev.join("console"), "").unwrap();
        world
    }

    fn console(world: &World) -> String {
        fs::read_to_string(world.dev.join("console")).unwrap()
    }

    #[test]
    fn a_record_that_cannot_be_written_does_not_end_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        // A file where the folder has to be made.
        fs::write(&world.run, "").unwrap();
        keep_records(&world, "{}", "");
        let console = console(&world);
        let line = "slipway: keeping a record of the boot failed: ";
        assert_eq!(console.matches(line).count(), 2, "{console}");
        assert_eq!(console.matches("; the boot goes on\n").count(), 2);
    }

    #[test]
    fn a_process_that_has_ended_meanwhile_does_not_end_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        // The largest id that the kernel never gives (PID_MAX_LIMIT is 4 Mi).
        end_process(&world, Pid::from_raw(i32::MAX)).unwrap();
        let place = world.proc.join(i32::MAX.to_string());
        fs::create_dir_all(&place).unwrap();
        std::os::unix::fs::symlink("/usr/sbin/gone", place.join("exe")).unwrap();
        end_processes(&world);
        assert_eq!(console(&world), "");
    }

    #[test]
    fn a_process_that_waits_for_a_disk_holds_up_no_handoff() {
        let folder = tempfile::tempdir().unwrap();
        let mut world = world(folder.path());
        world.readers = Readers::with_patience(Duration::from_secs(1));
        let disk = world.sys.join("block/vdb");
        fs::create_dir_all(&disk).unwrap();
        fs::write(disk.join("size"), "2048\n").unwrap();
        hanging(&world.dev.join("vdb"));
        assert_eq!(linux::block::unanswered(&world).len(), 1);
        let process = world.readers.processes()[0];
        let place = world.proc.join(process.to_string());
        fs::create_dir_all(&place).unwrap();
        std::os::unix::fs::symlink("/init", place.join("exe")).unwrap();
        let before = console(&world);
        end_processes(&world);
        assert_eq!(
            waitpid(process, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::StillAlive)
        );
        assert_eq!(console(&world), before);
    }

    #[test]
    fn the_peak_is_read_from_a_status() {
        let text = "Name:\tinit\nVmPeak:\t    9000 kB\nVmHWM:\t    4312 kB\nVmRSS:\t 4000 kB\n";
        assert_eq!(peak(text), Some(4312));
        assert_eq!(peak("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn only_a_file_system_in_memory_is_deleted() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fs::write(folder.path().join("kept"), "").unwrap();
        let result = delete_initramfs(open_folder(folder.path()).unwrap());
        let memory = result.is_ok();
        assert_eq!(folder.path().join("kept").exists(), !memory);
    }

    #[test]
    fn everything_below_a_folder_goes_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "").unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/c"), "").unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("a/link")).unwrap();
        let root = open_folder(folder.path()).unwrap();
        let device = fstatat(&root, ".", AtFlags::empty()).unwrap().st_dev;
        delete_below(root, device).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(outside.path().join("kept").exists());
    }
}
