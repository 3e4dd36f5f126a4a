//! Namespaces that a process of ours holds, and programs started in them.
#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "the door of this crate: the programs of its nodes"
)]

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::host_settings::{Values, put_back};
use crate::mounts::{NodeView, assemble, assemble_hub};

/// The environment of every program.
const ENVIRONMENT: [(&str, &str); 4] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
    ("LC_ALL", "C.UTF-8"),
    ("TZ", "UTC"),
];
/// What a process sees in its namespaces.
#[derive(Clone, Debug)]
pub(crate) enum View {
    /// The network between nodes: the files of an image, the processes of the host.
    Hub {
        /// The image's root, which stays read-only.
        root: PathBuf,
        /// Where it is assembled, an empty folder.
        mount: PathBuf,
        /// What it puts back if the test is killed.
        settings: Values,
    },
    /// A node's.
    Node(Box<NodeView>),
}

/// Namespaces, and the process that holds them. All processes in a node's end with it.
#[derive(Debug)]
pub(crate) struct Space {
    /// The process that holds the namespaces, by its number on this host.
    pub(crate) holder: Pid,
    waiter: Pid,
    handle: OwnedFd,
    flags: CloneFlags,
    joins: Vec<PathBuf>,
    // Closed when this process ends, however it ends; the holder ends then.
    _life: OwnedFd,
}

impl Space {
    /// Makes the namespaces.
    ///
    /// # Errors
    /// Names the call that was refused.
    pub(crate) fn start(view: &View) -> Result<Self> {
        let (report, reporter) = pipe()?;
        let (alive, life) = pipe()?;
        let (flags, joins) = match view {
            View::Hub { .. } => (
                CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET,
                Vec::new(),
            ),
            View::Node(node) => (
                CloneFlags::CLONE_NEWNS
                    | CloneFlags::CLONE_NEWPID
                    | CloneFlags::CLONE_NEWUTS
                    | CloneFlags::CLONE_NEWIPC
                    | CloneFlags::CLONE_NEWNET
                    | CloneFlags::CLONE_NEWCGROUP,
                node.joins_inside.clone(),
            ),
        };
        // SAFETY: the child has one thread. It allocates, which glibc allows after a fork (it takes the allocator's locks
        // before and frees them in the child), and takes no lock of ours.
        let waiter = match unsafe { fork() }.context("forking")? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => hold(view, flags, reporter, alive),
        };
        drop((reporter, alive));
        let mut text = String::new();
        File::from(report)
            .read_to_string(&mut text)
            .context("reading what the namespaces report")?;
        let holder = match text.split_once('\n') {
            Some((number, "")) => Pid::from_raw(number.parse()?),
            Some((_, error)) => bail!("{error}"),
            None => bail!("the process of the namespaces ended without a word"),
        };
        Ok(Self {
            holder,
            waiter,
            handle: handle(holder)?,
            flags,
            joins,
            _life: life,
        })
    }

    /// Starts a program inside.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn spawn(&self, program: &Program<'_>) -> Result<Child> {
        let mut command = Command::new(program.program);
        command
            .args(program.arguments)
            .env_clear()
            .envs(ENVIRONMENT)
            .stdin(Stdio::null())
            .stdout(program.stdout.try_clone()?)
            .stderr(program.stderr.try_clone()?);
        let handle = self.handle.try_clone()?;
        let flags = self.flags & !CloneFlags::CLONE_NEWPID;
        let joins = self.joins.clone();
        let enter = move || enter(&handle, flags, &joins);
        // SAFETY: the closure runs in the forked child, which has one thread; it allocates, as above.
        unsafe { command.pre_exec(enter) };
        let about = || format!("starting {} {:?}", program.program, program.arguments);
        if !self.flags.contains(CloneFlags::CLONE_NEWPID) {
            return command.spawn().with_context(about);
        }
        // The namespace of processes counts for children of the thread that chose it: of one that ends here.
        let started = std::thread::scope(|scope| {
            let thread = scope.spawn(|| -> Result<Child> {
                setns(&self.handle, CloneFlags::CLONE_NEWPID).context("entering the processes")?;
                Ok(command.spawn()?)
            });
            thread.join()
        });
        match started {
            Ok(child) => child.with_context(about),
            Err(_) => bail!("the thread that starts a program panicked"),
        }
    }
}

impl Space {
    /// Moves the calling thread into the network, and into nothing else.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(crate) fn enter_network(&self) -> Result<()> {
        setns(&self.handle, CloneFlags::CLONE_NEWNET).context("entering the network of the nodes")
    }

    /// Ends the process that holds the namespaces. In a node it is process 1: the kernel ends all others with it.
    pub(crate) fn end(&self) {
        // It may have ended already.
        kill(self.holder, Signal::SIGKILL).ok();
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.end();
        waitpid(self.waiter, None).ok();
    }
}

/// A program to start.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) program: &'a str,
    pub(crate) arguments: &'a [String],
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

/// A descriptor that means this process and no later one with its number.
fn handle(process: Pid) -> Result<OwnedFd> {
    // SAFETY: the call takes two numbers and gives a new descriptor, which nobody else owns.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    let fd = Errno::result(fd).context("opening the process of the namespaces")?;
    let fd = i32::try_from(fd).context("a descriptor")?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    nix::unistd::pipe2(OFlag::O_CLOEXEC).context("making a pipe")
}

/// In the forked child of a program's start.
fn enter(handle: &OwnedFd, flags: CloneFlags, joins: &[PathBuf]) -> io::Result<()> {
    setns(handle, flags)?;
    for join in joins {
        fs::write(join, "0")?;
    }
    std::env::set_current_dir("/")
}

/// In the forked child: makes the namespaces, starts the process that holds them, and waits for it.
fn hold(view: &View, flags: CloneFlags, reporter: OwnedFd, alive: OwnedFd) -> ! {
    close_others(&[&reporter, &alive]);
    let made = make(view, flags);
    let holder = match made {
        Ok(Held::Waiter(child)) => child,
        Ok(Held::Holder) => serve(view, reporter, alive),
        Err(error) => report_and_end(reporter, &format!("\n{error:#}")),
    };
    drop((reporter, alive));
    let code = match waitpid(holder, None) {
        Ok(WaitStatus::Exited(_, code)) => code,
        _ => 1,
    };
    end(code)
}

/// Which of the two processes this is after the fork.
enum Held {
    Waiter(Pid),
    Holder,
}

fn make(view: &View, flags: CloneFlags) -> Result<Held> {
    if let View::Node(node) = view {
        for join in &node.joins {
            fs::write(join, "0").with_context(|| format!("joining by {}", join.display()))?;
        }
    }
    unshare(flags).context("making namespaces: the nodes of this test need root")?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.context("forking")? {
        ForkResult::Parent { child } => Ok(Held::Waiter(child)),
        ForkResult::Child => Ok(Held::Holder),
    }
}

/// The process that holds the namespaces: mounts, reports, then reaps what is left to it until the test ends.
fn serve(view: &View, reporter: OwnedFd, alive: OwnedFd) -> ! {
    // Its number on the host: in its own namespace it is 1. /proc is still the host's.
    let number = fs::read_link("/proc/self").unwrap_or_default();
    let made = match view {
        View::Hub { root, mount, .. } => assemble_hub(root, mount),
        View::Node(node) => assemble(node),
    };
    let text = match made {
        Ok(()) => format!("{}\n", number.display()),
        Err(error) => format!("\n{error:#}"),
    };
    let failed = text.starts_with('\n');
    if failed {
        report_and_end(reporter, &text);
    }
    if File::from(reporter).write_all(text.as_bytes()).is_err() {
        end(1);
    }
    reap(alive);
    if let View::Hub { settings, .. } = view {
        put_back(settings);
    }
    end(0)
}

/// Until the other end of the pipe is closed, which is when the test has ended.
fn reap(alive: OwnedFd) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd as _;
    loop {
        let mut ends = [PollFd::new(alive.as_fd(), PollFlags::empty())];
        let found = poll(&mut ends, PollTimeout::from(200u16));
        if found.is_ok_and(|count| count > 0) {
            return;
        }
        while let Ok(status) = waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
    }
}

fn report_and_end(reporter: OwnedFd, text: &str) -> ! {
    // Without a reader nobody waits for the text.
    drop(File::from(reporter).write_all(text.as_bytes()));
    end(1)
}

fn end(code: i32) -> ! {
    // SAFETY: ends this process without the exit handlers of the one that it was forked from.
    unsafe { libc::_exit(code) }
}

/// Closes all descriptors but these: those of other nodes would keep their pipes open.
fn close_others(kept: &[&OwnedFd]) {
    let mut kept: Vec<u32> = kept
        .iter()
        .filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok())
        .collect();
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept.into_iter().chain([u32::MAX]) {
        if fd > from {
            // SAFETY: closes descriptors of this process, which uses none of them.
            unsafe { libc::close_range(from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}
