//! A reset of the machine, at once or in a while, as by SysRq and `b`: without a look at any device
//! (<https://docs.kernel.org/admin-guide/sysrq.html>).

#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, pipe};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc::{self, c_int, timespec};
use nix::unistd::{ForkResult, Pid, fork};

use crate::world::World;

/// Where the kernel takes it, below `/proc`.
const TRIGGER: &str = "sysrq-trigger";
const RESET: &str = "b";
/// The namespace of processes that the kernel starts with (`PROC_PID_INIT_INO` in its `include/linux/proc_ns.h`), below `/proc`.
const NAMESPACE: (&str, &str) = ("self/ns/pid", "pid:[4026531836]");

/// Resets the machine. Returns only if that fails, or if `world` is not this machine.
///
/// # Errors
/// If the kernel does not take it.
pub fn now(world: &World) -> io::Result<()> {
    fs::write(world.proc.join(TRIGGER), RESET)
}

/// Starts a process that resets the machine in so long, unless it has started anew by then. That process is in memory as a whole,
/// since no disk may be there any more. None in a container, whose machine is another's.
///
/// # Errors
/// If the kernel has no place for it, or there is no process left.
pub fn later(world: &World, time: Duration) -> Result<Option<Pid>> {
    let (namespace, first) = NAMESPACE;
    if fs::read_link(world.proc.join(namespace)).ok().as_deref() != Some(Path::new(first)) {
        return Ok(None);
    }
    let path = world.proc.join(TRIGGER);
    let trigger = OpenOptions::new().write(true).open(&path);
    let trigger = trigger.with_context(|| format!("opening {}", path.display()))?;
    let time = timespec {
        tv_sec: time.as_secs().try_into().context("the time to wait")?,
        tv_nsec: time.subsec_nanos().into(),
    };
    let (mut ready, locked) = pipe().context("making a pipe")?;
    // SAFETY: the child makes nothing but system calls, with what was made ready before, as fork(2) demands of a process
    // with several threads: another one may have held any lock at this moment.
    let forked = unsafe { fork() };
    let child = match forked.context("starting a process that resets the machine")? {
        ForkResult::Child => wait_and_reset(trigger.as_raw_fd(), locked.as_raw_fd(), time),
        ForkResult::Parent { child } => child,
    };
    drop(locked);
    // Its pages are read before whoever called this goes on to shut the disks down.
    let read = ready.read(&mut [0]);
    read.context("waiting for the process that resets the machine")?;
    Ok(Some(child))
}

/// System calls alone, and nothing that may panic.
fn wait_and_reset(trigger: c_int, locked: c_int, mut time: timespec) -> ! {
    // SAFETY: the text has so many bytes. Where memory may not be locked, the rest of it needs the disk that it came from.
    unsafe {
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE);
        libc::write(locked, RESET.as_ptr().cast(), RESET.len());
    }
    // SAFETY: the kernel writes what is left of the time, if a signal ends the wait, to where it was.
    while unsafe { libc::nanosleep(&raw const time, &raw mut time) } != 0
        && Errno::last() == Errno::EINTR
    {}
    // SAFETY: the text has so many bytes, and _exit does not return.
    unsafe {
        libc::write(trigger, RESET.as_ptr().cast(), RESET.len());
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use nix::sys::wait::waitpid;

    use super::*;
    use crate::world::Clock;

    /// A machine whose processes are in this namespace.
    fn machine(folder: &Path, namespace: &str) -> World {
        let proc = folder.join("proc");
        fs::create_dir_all(proc.join("self/ns")).unwrap();
        symlink(namespace, proc.join(NAMESPACE.0)).unwrap();
        fs::write(proc.join(TRIGGER), "").unwrap();
        World::below(folder, Clock::Real)
    }

    #[test]
    fn the_machine_is_reset_once_the_time_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), NAMESPACE.1);
        let trigger = || fs::read_to_string(folder.path().join("proc").join(TRIGGER)).unwrap();
        let (begin, time) = (Instant::now(), Duration::from_millis(300));
        let process = later(&world, time).unwrap().unwrap();
        // Nothing waits for that process, and what it was started with has ended long since.
        assert_eq!(trigger(), "");
        waitpid(process, None).unwrap();
        assert!(begin.elapsed() >= time);
        assert_eq!(trigger(), RESET);
    }

    #[test]
    fn a_container_does_not_reset_the_machine_that_it_is_on() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), "pid:[4026532281]");
        assert_eq!(later(&world, Duration::ZERO).unwrap(), None);
        fs::remove_file(folder.path().join("proc").join(NAMESPACE.0)).unwrap();
        assert_eq!(later(&world, Duration::ZERO).unwrap(), None);
    }

    #[test]
    fn a_kernel_without_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), NAMESPACE.1);
        fs::remove_file(folder.path().join("proc").join(TRIGGER)).unwrap();
        let error = later(&world, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(TRIGGER), "{error}");
    }
}
