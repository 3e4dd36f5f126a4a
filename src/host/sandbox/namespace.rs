//! Between fork and exec: namespaces, mounts, and the small init that is the parent of a sandboxed program.
#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "the door itself: mounts for the programs of the build are made here"
)]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getppid, pivot_root, sethostname};

use super::{Access, Bind, Sandbox, loopback, unsynced};

/// Devices of every sandbox.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];
/// Conventional links in `/dev`.
pub const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Top-level folders that are new for each program, never the tree's.
const OWN: &[&str] = &["proc", "dev", "sys", "tmp", "run"];
/// Folders of the host that may be covered by the new root, which is visible in its namespace alone. A container whose image
/// has one program has no `/tmp`; `/sys` is there wherever the kernel's file systems are, and none of it is bound.
const PLACES: [&str; 2] = ["/tmp", "/sys"];

/// The data for the child, prepared before the fork.
#[derive(Debug)]
pub(super) struct Plan {
    root: PathBuf,
    access: Access,
    binds: Vec<Bind>,
    devices: Vec<PathBuf>,
    network: bool,
    syncs: bool,
    hostname: String,
    directory: PathBuf,
    report: OwnedFd,
    parent: Pid,
}

impl Plan {
    /// Resolves the paths of the host.
    pub(super) fn new(sandbox: &Sandbox, directory: &Path, report: OwnedFd) -> Result<Self> {
        let canonical = |path: &Path| {
            fs::canonicalize(path).with_context(|| format!("finding {}", path.display()))
        };
        let mut binds = sandbox.binds.clone();
        for bind in &mut binds {
            bind.source = canonical(&bind.source)?;
        }
        // A bind below another one must come after it.
        binds.sort_by_key(|bind| bind.target.components().count());
        Ok(Self {
            root: canonical(&sandbox.root)?,
            access: sandbox.access,
            binds,
            devices: DEVICES
                .iter()
                .map(PathBuf::from)
                .chain(sandbox.devices.iter().cloned())
                .collect(),
            network: sandbox.network,
            syncs: sandbox.syncs,
            hostname: sandbox.hostname.clone(),
            directory: directory.to_owned(),
            report,
            parent: Pid::this(),
        })
    }
}

/// A pipe for the child's error: which call failed, since an errno alone does not name it.
pub(super) fn report_pipe() -> Result<(File, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    Ok((File::from(read), write))
}

/// The child's error, once all writing ends are closed.
pub(super) fn read_report(mut report: File) -> Option<String> {
    let mut text = String::new();
    report
        .read_to_string(&mut text)
        .ok()
        .filter(|_| !text.is_empty())?;
    Some(text)
}

/// Lets the command set up its namespaces before it executes the program.
pub(super) fn enter_before_exec(command: &mut Command, plan: Plan) {
    let enter = move || {
        enter(&plan).map_err(|error| {
            // If the report fails too, the errno still arrives.
            let told = write_all(&plan.report, format!("{error:#}").as_bytes());
            drop(told);
            io::Error::from_raw_os_error(
                error
                    .downcast_ref::<Errno>()
                    .map_or(libc_eio(), |errno| *errno as i32),
            )
        })
    };
    // SAFETY: the closure runs in the forked child, which has one thread. It allocates, which glibc allows there (its
    // fork takes the allocator's locks and frees them in the child), takes no lock of ours, and touches only the
    // child's own copy of the memory.
    unsafe {
        command.pre_exec(enter);
    }
}

const fn libc_eio() -> i32 {
    Errno::EIO as i32
}

fn write_all(fd: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    File::from(fd.try_clone()?).write_all(bytes)
}

/// Runs in the child. Three processes result: this one, which waits outside; process 1 inside, which reaps; and
/// the one that returns and executes the program.
fn enter(plan: &Plan) -> Result<()> {
    die_with(plan.parent)?;
    let mut flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC;
    if !plan.network {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    unshare(flags).context(
        "making namespaces: this needs root, or a user namespace (see `slipway doctor`)",
    )?;
    if !plan.network {
        loopback::raise()?;
    }
    // SAFETY: this process has one thread (it was forked itself), so the child may do anything.
    if let ForkResult::Parent { child } = unsafe { fork() }.context("forking")? {
        wait_and_end(child);
    }
    // A parent in another process namespace shows as 0; losing it in this moment shows as nothing at all, but then the
    // namespace's creator is dead too, and our own parent's end of the pipes with it.
    die_with(Pid::from_raw(0))?;
    mounts(plan)?;
    sethostname(&plan.hostname).context("setting the host name")?;
    umask(Mode::from_bits_truncate(0o022));
    // SAFETY: as above, one thread.
    if let ForkResult::Parent { child } = unsafe { fork() }.context("forking")? {
        wait_and_end(child);
    }
    die_with(Pid::from_raw(1))?;
    std::env::set_current_dir(&plan.directory)
        .with_context(|| format!("changing to {}", plan.directory.display()))?;
    if plan.syncs {
        Ok(())
    } else {
        unsynced::enter()
    }
}

/// Lets the kernel kill this process when its parent ends, and ends it now if the parent has ended already.
fn die_with(parent: Pid) -> Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("binding to the parent")?;
    if getppid() != parent {
        anyhow::bail!("the parent ended while a program was being started");
    }
    Ok(())
}

/// Waits for the child, reaping all other processes, and ends with the same status. All other descriptors are closed
/// first: a reader of the program's output must see the program's end, not ours.
fn wait_and_end(child: Pid) -> ! {
    // SAFETY: closes descriptors of this process, which uses none of them any more.
    unsafe {
        nix::libc::close_range(0, nix::libc::c_uint::MAX, 0);
    }
    let code = loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => break code,
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => break 128 + signal as i32,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => break 125,
        }
    };
    // SAFETY: ends this process without running the tool's exit handlers, which belong to the process that forked it.
    unsafe { nix::libc::_exit(code) }
}

/// Mounts the program's file system and pivots to it.
fn mounts(plan: &Plan) -> Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("detaching the mounts from the host's")?;
    // Opened now: the new root may cover the paths.
    let sources = plan
        .binds
        .iter()
        .map(|item| hold(&item.source))
        .collect::<Result<Vec<File>>>()?;
    let root = match plan.access {
        Access::Write => {
            bind(&plan.root, &plan.root, false)?;
            plan.root.clone()
        }
        Access::Read => assemble(&plan.root)?,
    };
    for name in OWN {
        make_folder(&root.join(name))?;
    }
    kernel_file_systems(plan, &root)?;
    for (item, source) in plan.binds.iter().zip(&sources) {
        let target = place(&root, &item.target, source.metadata()?.is_dir())?;
        bind(&path_of(source), &target, item.read_only)
            .with_context(|| format!("which is {}", item.source.display()))?;
    }
    std::env::set_current_dir(&root)?;
    match pivot_root(".", ".") {
        Ok(()) => umount2(".", MntFlags::MNT_DETACH).context("leaving the host's root")?,
        // The host runs from its initramfs, whose root cannot be pivoted away.
        Err(Errno::EINVAL) => {
            mount(Some("."), "/", none, MsFlags::MS_MOVE, none).context("moving the root")?;
            nix::unistd::chroot(".").context("entering the root")?;
        }
        Err(error) => return Err(error).context("pivoting into the root"),
    }
    std::env::set_current_dir("/")?;
    Ok(())
}

/// `/proc`, `/dev`, `/tmp` and `/run`. `/sys` stays an empty folder.
fn kernel_file_systems(plan: &Plan, root: &Path) -> Result<()> {
    let proc = root.join("proc");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let none: Option<&str> = None;
    match mount(Some("proc"), &proc, Some("proc"), flags, none) {
        // If parts of /proc are masked (in containers), the kernel refuses a new one to user namespaces.
        Err(Errno::EPERM) => bind(Path::new("/proc"), &proc, false)?,
        other => other.context("mounting /proc")?,
    }
    let dev = root.join("dev");
    tmpfs(&dev, "mode=0755")?;
    for device in &plan.devices {
        // The host may lack the device (/dev/tty without a terminal); a program that needs it reports the failure.
        if device.exists() {
            let target = dev.join(
                device
                    .strip_prefix("/dev")
                    .context("a device outside /dev")?,
            );
            make_file(&target)?;
            bind(device, &target, false)?;
        }
    }
    for folder in ["pts", "shm"] {
        make_folder(&dev.join(folder))?;
    }
    let options = "newinstance,ptmxmode=0666,mode=0620";
    mount(
        Some("devpts"),
        &dev.join("pts"),
        Some("devpts"),
        MsFlags::MS_NOSUID,
        Some(options),
    )
    .context("mounting /dev/pts")?;
    tmpfs(&dev.join("shm"), "mode=1777")?;
    for (name, target) in DEVICE_LINKS {
        symlink(target, dev.join(name)).with_context(|| format!("linking /dev/{name}"))?;
    }
    tmpfs(&root.join("tmp"), "mode=1777")?;
    tmpfs(&root.join("run"), "mode=0755")
}

/// A RAM disk with binds of the tree's top-level folders, read-only.
fn assemble(tree: &Path) -> Result<PathBuf> {
    let root = PLACES
        .iter()
        .map(PathBuf::from)
        .find(|place| place.is_dir())
        .with_context(|| format!("the host has none of {}", PLACES.join(", ")))?;
    // The tree may be below the folder that is about to be covered.
    let held = hold(tree)?;
    tmpfs(&root, "mode=0755")?;
    let tree = path_of(&held);
    for entry in fs::read_dir(&tree)? {
        let entry = entry?;
        let name = entry.file_name();
        if OWN.iter().any(|own| *own == name) {
            continue;
        }
        let target = root.join(&name);
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)?;
        } else if kind.is_dir() {
            make_folder(&target)?;
            bind(&entry.path(), &target, true)?;
        } else if kind.is_file() {
            make_file(&target)?;
            bind(&entry.path(), &target, true)?;
        }
    }
    Ok(root)
}

/// Keeps a path of the host reachable by [`path_of`], even under a later mount.
fn hold(path: &Path) -> Result<File> {
    File::options()
        .read(true)
        .custom_flags(nix::libc::O_PATH)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

fn path_of(held: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()))
}

/// Creates the mount point of a bind, inside the new root.
fn place(root: &Path, target: &Path, folder: bool) -> Result<PathBuf> {
    let inside = target
        .strip_prefix("/")
        .with_context(|| format!("{} is not absolute", target.display()))?;
    let target = root.join(inside);
    if folder {
        make_folder(&target)?;
    } else {
        make_file(&target)?;
    }
    Ok(target)
}

fn make_folder(path: &Path) -> Result<()> {
    if !path.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .with_context(|| format!("making {}", path.display()))?;
    }
    Ok(())
}

fn make_file(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    if !path.exists() {
        File::create(path)
            .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o644)))
            .with_context(|| format!("making {}", path.display()))?;
    }
    Ok(())
}

fn tmpfs(target: &Path, options: &str) -> Result<()> {
    mount(
        Some("tmpfs"),
        target,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some(options),
    )
    .with_context(|| format!("mounting a RAM disk at {}", target.display()))
}

/// A bind mount with all mounts below it: the kernel lets a user namespace bind the host's mounts only together.
fn bind(source: &Path, target: &Path, read_only: bool) -> Result<()> {
    let none: Option<&str> = None;
    let about = || format!("binding {} at {}", source.display(), target.display());
    mount(
        Some(source),
        target,
        none,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        none,
    )
    .with_context(about)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        // A user namespace must not clear flags of the host's mount, so they are repeated.
        let kept = nix::sys::statvfs::statvfs(target)
            .map(|found| kept_flags(found.flags()))
            .unwrap_or(MsFlags::empty());
        mount(none, target, none, flags | kept, none).with_context(about)?;
    }
    Ok(())
}

fn kept_flags(found: nix::sys::statvfs::FsFlags) -> MsFlags {
    use nix::sys::statvfs::FsFlags;
    [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ]
    .into_iter()
    .filter(|(flag, _)| found.contains(*flag))
    .fold(MsFlags::empty(), |all, (_, flag)| all | flag)
}
