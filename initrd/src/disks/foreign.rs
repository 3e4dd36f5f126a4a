//! Disks of another system, in Ignition's place: no system disk of ours, no `state` for journals, and the programs are those
//! around us.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ignition::model::{Filesystem, Storage};

use super::journal::Journal;
use super::mounts::{Mounted, Wanted};
use super::name::Name;
use super::{Request, decide, device, filesystem, filesystems, mounts, partitions};
use crate::block::filesystem::Kind;
use crate::mount;
use crate::provision::{self, Whose};
use crate::root::Root;
use crate::uevent;
use crate::world::World;

/// How long a device that the config names may take to appear.
const DEADLINE: Duration = Duration::from_secs(90);

/// The root that this program itself runs in, for its programs.
pub(crate) fn around(world: World) -> Root {
    Root {
        world: Arc::new(world),
        sysroot: PathBuf::from("/"),
        disk: None,
        verity: None,
    }
}

/// Loads a module of the running kernel.
///
/// # Errors
/// If there is no `modprobe`, or it fails.
pub(crate) fn load_module(root: &Root, name: &str) -> Result<()> {
    super::tool::load_module(root, name)
}

/// The storage with every device that is named by a link elsewhere (as `/run/disk`) under its name below `/dev`.
pub(crate) fn by_nodes(mut storage: Storage) -> Storage {
    for disk in storage.disks.iter_mut().flatten() {
        disk.device = node(&disk.device);
    }
    for filesystem in storage.filesystems.iter_mut().flatten() {
        filesystem.device = node(&filesystem.device);
    }
    storage
}

fn node(path: &str) -> String {
    if Name::parse(path).is_ok() {
        return path.to_owned();
    }
    let real = std::fs::canonicalize(path).ok();
    let real = real.and_then(|real| real.to_str().map(str::to_owned));
    real.filter(|real| real.starts_with("/dev/"))
        .unwrap_or_else(|| path.to_owned())
}

/// Partitions and file systems, all decided before the first write.
///
/// # Errors
/// Everything that is wrong, or the first write that failed.
pub(crate) fn make(root: &Root, storage: &Storage, whose: Whose) -> Result<()> {
    let mut journal = Journal::default();
    let request = Request {
        storage: Some(storage),
        keys: &[],
        system: None,
        whose,
        deadline: DEADLINE,
    };
    let plan = decide(root, &request, &journal, &|| ())?;
    for warning in &plan.warnings {
        tracing::warn!("disks: {warning}");
    }
    partitions(&root.world, &plan, &mut journal)?;
    filesystems(root, &plan, &mut journal)
}

/// Mounts the file systems that have a path below `base`, and leaves them mounted.
///
/// # Errors
/// If a device does not appear, or one does not mount; then none is mounted.
pub(crate) fn mount(root: &Root, base: &Path, storage: &Storage) -> Result<Mounted> {
    let mut wanted = Vec::new();
    for (i, filesystem, path, kind) in mountable(storage) {
        let at = format!("$.storage.filesystems.{i}");
        let device = find(&root.world, &filesystem.device).with_context(|| at.clone())?;
        let options = filesystem.mount_options.clone().unwrap_or_default();
        wanted.push((
            Wanted {
                at,
                kind,
                path: path.to_owned(),
                options,
            },
            device,
        ));
    }
    // The state of the stages remembers the folders.
    let mut journal = provision::journal::Journal::default();
    mounts::mount(root, base, &wanted, &mut journal)
}

/// Unmounts what [`mount()`] mounted, deepest first. What is not mounted is passed over.
///
/// # Errors
/// Names the mount that stays.
pub(crate) fn unmount(root: &Root, base: &Path, storage: &Storage) -> Result<()> {
    let mut paths: Vec<&str> = mountable(storage).map(|(_, _, path, _)| path).collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.matches('/').count()));
    let base = std::fs::canonicalize(base).with_context(|| format!("{}", base.display()))?;
    for path in paths {
        let target = base.join(path.trim_start_matches('/'));
        let table = mount::table(&root.world)?;
        if table.iter().any(|mount| mount.target == target) {
            mount::unmount(&target)?;
        }
    }
    Ok(())
}

fn mountable(storage: &Storage) -> impl Iterator<Item = (usize, &Filesystem, &str, Kind)> {
    let filesystems = storage.filesystems.iter().flatten().enumerate();
    filesystems.filter_map(|(i, filesystem)| {
        let path = filesystem.path.as_deref().filter(|path| !path.is_empty())?;
        let kind = filesystem::kind(filesystem.format.as_deref()?).ok()??;
        (kind != Kind::Swap).then_some((i, filesystem, path, kind))
    })
}

fn find(world: &World, name: &str) -> Result<PathBuf> {
    let parsed = Name::parse(name).map_err(anyhow::Error::msg)?;
    let found = uevent::wait_for(world, name, Some(DEADLINE), || {
        let devices = device::all(world);
        let found = device::find(&devices, &parsed);
        Ok(found.first().map(|device| device.path.clone()))
    })?;
    found.with_context(|| format!("{name} is not there"))
}
