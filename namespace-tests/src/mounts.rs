//! The file systems of a node and of the hub, as `slipway-init` leaves them.
#![allow(
    clippy::disallowed_methods,
    reason = "the door of this crate: the mounts of its nodes"
)]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{pivot_root, sethostname};

use slipway::host::sandbox::DEVICE_LINKS;

use crate::control_groups::Hierarchy;

/// Devices of the host that a node has.
const DEVICES: &[&str] = &[
    "null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse",
];

/// The file system and the control groups of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeView {
    /// The image's root, which stays read-only.
    pub(crate) root: PathBuf,
    /// Where it is assembled, an empty folder.
    pub(crate) mount: PathBuf,
    /// The node's `/var`.
    pub(crate) var: PathBuf,
    /// The node's etcd volume, mounted below it.
    pub(crate) etcd: Option<PathBuf>,
    /// Below `/var`: the upper layer of `/etc` and its work folder.
    pub(crate) etc: (PathBuf, PathBuf),
    /// The host name.
    pub(crate) hostname: String,
    /// The hierarchies of control groups.
    pub(crate) hierarchies: Vec<Hierarchy>,
    /// The files by which a process joins the node's groups, as the host sees them.
    pub(crate) joins: Vec<PathBuf>,
    /// The same files inside.
    pub(crate) joins_inside: Vec<PathBuf>,
}

const NONE: Option<&str> = None;

/// The image's programs, with the host's processes: `ip` names another network by a process in it.
pub(crate) fn assemble_hub(tree: &Path, root: &Path) -> Result<()> {
    begin(tree, root)?;
    bind(Path::new("/proc"), &root.join("proc"))?;
    for folder in ["run", "tmp"] {
        new(&root.join(folder), "tmpfs", NONE)?;
    }
    pivot(root)
}

/// The image's root, read-only, in a mount namespace that nothing leaves.
fn begin(tree: &Path, root: &Path) -> Result<()> {
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)
        .context("detaching the mounts from the host's")?;
    bind(tree, root)?;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(NONE, root, NONE, read_only, NONE).context("making the root read-only")
}

fn pivot(root: &Path) -> Result<()> {
    std::env::set_current_dir(root)?;
    pivot_root(".", ".").context("entering the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("leaving the host's root")?;
    Ok(std::env::set_current_dir("/")?)
}

/// The file system of a node, as `slipway-init` leaves it.
pub(crate) fn assemble(node: &NodeView) -> Result<()> {
    let root = &node.mount;
    begin(&node.root, root)?;
    bind(&node.var, &root.join("var"))?;
    if let Some(etcd) = &node.etcd {
        bind(etcd, &root.join("var/lib/etcd"))?;
    }
    let (upper, work) = &node.etc;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        node.root.join("etc").display(),
        upper.display(),
        work.display()
    );
    new(&root.join("etc"), "overlay", Some(&options))?;
    new(&root.join("proc"), "proc", NONE)?;
    new(&root.join("sys"), "sysfs", NONE)?;
    groups(node, &root.join("sys/fs/cgroup"))?;
    devices(&root.join("dev"))?;
    for (folder, mode) in [("run", "mode=0755"), ("tmp", "mode=1777")] {
        new(&root.join(folder), "tmpfs", Some(mode))?;
    }
    pivot(root)?;
    // As systemd makes it: what the kubelet mounts reaches the pods.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SHARED, NONE)
        .context("sharing the mounts")?;
    sethostname(&node.hostname).context("setting the host name")
}

fn groups(node: &NodeView, folder: &Path) -> Result<()> {
    if let [Hierarchy { options: None, .. }] = node.hierarchies.as_slice() {
        return new(folder, "cgroup2", NONE);
    }
    new(folder, "tmpfs", Some("mode=0755"))?;
    for Hierarchy {
        options,
        folder: name,
    } in &node.hierarchies
    {
        let target = folder.join(name);
        fs::create_dir(&target).with_context(|| format!("making {}", target.display()))?;
        new(&target, "cgroup", options.as_deref())?;
    }
    Ok(())
}

fn devices(dev: &Path) -> Result<()> {
    new(dev, "tmpfs", Some("mode=0755"))?;
    for name in DEVICES {
        let host = Path::new("/dev").join(name);
        if host.exists() {
            let target = dev.join(name);
            File::create(&target).with_context(|| format!("making {}", target.display()))?;
            bind(&host, &target)?;
        }
    }
    for (name, target) in DEVICE_LINKS {
        symlink(target, dev.join(name)).with_context(|| format!("linking /dev/{name}"))?;
    }
    for folder in ["pts", "shm", "mqueue"] {
        fs::create_dir(dev.join(folder))?;
    }
    new(
        &dev.join("pts"),
        "devpts",
        Some("newinstance,ptmxmode=0666,mode=0620"),
    )?;
    new(&dev.join("shm"), "tmpfs", Some("mode=1777"))?;
    // What programs write to the console is read by the test.
    File::create(dev.join("console")).context("making /dev/console")?;
    Ok(())
}

fn new(target: &Path, kind: &str, options: Option<&str>) -> Result<()> {
    mount(Some(kind), target, Some(kind), MsFlags::MS_NOSUID, options)
        .with_context(|| format!("mounting a file system {kind} at {}", target.display()))
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), target, NONE, flags, NONE)
        .with_context(|| format!("binding {} at {}", source.display(), target.display()))
}

/// Gives this process mounts of its own, which end with it. It must have one thread.
///
/// # Errors
/// If this process is not root of the host.
pub(crate) fn own_mounts() -> Result<()> {
    ensure_root()?;
    unshare(CloneFlags::CLONE_NEWNS).context("making a namespace of mounts")?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)
        .context("detaching the mounts from the host's")
}

/// Mounts a disk in memory, which lives as long as this process.
///
/// # Errors
/// If the kernel refuses it.
pub(crate) fn memory_disk(folder: &Path, mib: Option<u32>) -> Result<()> {
    let size = mib.map(|mib| format!(",size={mib}m")).unwrap_or_default();
    new(folder, "tmpfs", Some(&format!("mode=0755{size}")))
}

/// Unmounts it.
///
/// # Errors
/// If it is not mounted.
pub(crate) fn remove_memory_disk(folder: &Path) -> Result<()> {
    umount2(folder, MntFlags::MNT_DETACH)
        .with_context(|| format!("unmounting {}", folder.display()))
}

fn ensure_root() -> Result<()> {
    let map = fs::read_to_string("/proc/self/uid_map").context("reading /proc/self/uid_map")?;
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    ensure!(
        nix::unistd::geteuid().is_root() && whole,
        "kubelets in namespaces need root of this host; run as root"
    );
    Ok(())
}
