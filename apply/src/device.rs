//! The block devices of this machine with their names, use and content, and the lookup by name.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use image::fault::Fault;
use image::guid::Guid;

use crate::device_name::Name;
use linux::block::{Disk, Partition};
use linux::disk_answers::Heard;
use linux::disk_identity::{self, DiskIdentity};
use linux::disk_names;
use linux::disk_reader::Reads;
use linux::filesystem;
use linux::filesystem::{Found, HEAD};
use linux::gpt::Table;
use linux::modules::{Modules, Network};
use linux::mount;
use linux::probe::Stretch;
use linux::programs::Programs;
use linux::world::World;
use linux::{block, md, uevent};

/// How long a device that an earlier boot used may take to appear.
const DEADLINE: Duration = Duration::from_secs(120);

/// A disk, a partition, or a device that the kernel builds from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name.
    pub name: String,
    /// Its node.
    pub path: PathBuf,
    /// `major:minor`.
    pub number: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// The disk that it is a partition of, and its number there.
    pub partition: Option<(String, u32)>,
    /// First byte on its disk.
    pub start: u64,
    /// By what a later boot knows a disk again, or the disk that it is a partition of: names of its own, which no other
    /// disk of this machine has now.
    pub identity: Option<String>,
    /// The world-wide name of the disk, or of the one that it is a partition of.
    pub world_wide: Option<String>,
    /// Names that udev gives it in `by-id`.
    pub ids: Vec<String>,
    /// Names that udev gives it in `by-path`.
    pub paths: Vec<String>,
    /// The name of a mapped device.
    pub mapped: Option<String>,
    /// The names of a RAID array that runs: by its metadata, and by links in `/dev/md`.
    pub arrays: Vec<String>,
    /// Whether it is mounted or used as swap.
    pub used: bool,
    /// The devices that hold it, by the kernel's names.
    pub holders: Vec<String>,
    /// The GPT of a disk, if one of its copies is readable.
    pub table: Option<Table>,
    /// Label and GUID of a partition.
    pub entry: Option<(String, Guid)>,
    /// The file systems that it holds.
    pub contents: Vec<Found>,
}

impl Device {
    /// Whether it is mounted, used as swap, or held by another device.
    pub fn busy(&self) -> bool {
        self.busy_but(None)
    }

    /// The kernel's name of the disk that it is a partition of; its own if it is none.
    pub(crate) fn disk(&self) -> &str {
        let disk = self.partition.as_ref().map(|(disk, _)| disk);
        disk.unwrap_or(&self.name)
    }

    /// Its name in messages: that of udev, which holds its serial number.
    pub(crate) fn stable(&self) -> String {
        self.ids.last().unwrap_or(&self.name).clone()
    }

    /// As [`Device::busy`], but ignores the holder `holder`.
    pub fn busy_but(&self, holder: Option<&str>) -> bool {
        let other = |name: &String| holder != Some(name.as_str());
        self.used || self.holders.iter().any(other)
    }
}

/// All devices with a size, by name, but those of disks that do not answer.
pub fn all(world: &World) -> Vec<Device> {
    let used = used(world);
    let mut out = Vec::new();
    let mut disks = block::devices(world);
    let heard = ask(world, &disks);
    disks.retain(|disk| heard.has(&disk.name));
    for mut disk in disks {
        let parts = std::mem::take(&mut disk.partitions);
        let parts = parts.into_iter();
        let identity = DiskIdentity::read(world, &disk.name);
        out.extend(parts.filter_map(|part| of_partition(&disk, &identity, part, &used)));
        out.extend(of_disk(world, disk, &identity, &used));
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    forget_shared(&mut out);
    let arrays: Vec<_> = out
        .iter()
        .map(|device| arrays(world, device, &out))
        .collect();
    for (device, names) in out.iter_mut().zip(arrays) {
        device.arrays = names;
    }
    out
}

/// What a message says of devices, if they are on several paths to one disk; else nothing.
pub(crate) fn one_disk<'d>(devices: impl Iterator<Item = &'d Device>) -> String {
    let named = devices.map(|device| (device.disk(), device.world_wide.clone()));
    disk_identity::shared(named).map_or_else(String::new, |id| {
        format!(", which are several paths to one disk (multipath, {id}): present it by one path")
    })
}

/// A name that two disks have names neither.
fn forget_shared(devices: &mut [Device]) {
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for device in &*devices {
        if let Some(identity) = &device.identity {
            let disks = owners.entry(identity.clone()).or_default();
            disks.insert(device.disk().to_owned());
        }
    }
    for device in devices {
        let shared = |identity: &String| owners.get(identity).is_some_and(|disks| disks.len() > 1);
        device.identity = device.identity.take().filter(|identity| !shared(identity));
    }
}

fn of_disk(
    world: &World,
    disk: Disk,
    identity: &DiskIdentity,
    used: &BTreeSet<String>,
) -> Option<Device> {
    let number = disk.dev?;
    // The names in `by-path` follow from the device's attachment, which only the real path shows.
    let folder = fs::canonicalize(world.sys.join("block").join(&disk.name)).ok()?;
    Some(Device {
        used: used.contains(&number),
        identity: identity.key(disk.size),
        world_wide: identity.world_wide(),
        ids: disk_names::ids(world, &folder, &disk.name, disk.serial.as_deref()),
        paths: disk_names::paths(&folder, &disk.name),
        arrays: Vec::new(),
        contents: contents(&disk.path, disk.size),
        size: disk.size,
        sector: disk.sector,
        read_only: disk.read_only,
        partition: None,
        start: 0,
        mapped: disk.mapped,
        holders: disk.holders,
        table: disk.table,
        entry: None,
        number,
        path: disk.path,
        name: disk.name,
    })
}

fn of_partition(
    disk: &Disk,
    identity: &DiskIdentity,
    part: Partition,
    used: &BTreeSet<String>,
) -> Option<Device> {
    let number = part.dev.filter(|_| part.size > 0)?;
    Some(Device {
        used: used.contains(&number),
        identity: identity.key(disk.size),
        world_wide: identity.world_wide(),
        ids: Vec::new(),
        paths: Vec::new(),
        arrays: Vec::new(),
        contents: contents(&part.path, part.size),
        size: part.size,
        sector: disk.sector,
        read_only: disk.read_only,
        partition: Some((disk.name.clone(), part.number)),
        start: part.start,
        mapped: None,
        holders: part.holders,
        table: None,
        entry: part.guid.map(|guid| (part.label, guid)),
        number,
        path: part.path,
        name: part.name,
    })
}

/// Asks disks for what [`contents`] reads of them and their partitions.
fn ask<'w>(world: &'w World, disks: &[Disk]) -> Heard<'w> {
    let reads = disks.iter().flat_map(|disk| {
        let parts = disk.partitions.iter().map(|part| &part.path);
        let all = std::iter::once(&disk.path).chain(parts);
        all.map(move |path| {
            let stretches = vec![(0, HEAD)];
            let path = path.clone();
            (disk.name.clone(), Reads { path, stretches })
        })
    });
    block::ask(world, reads)
}

/// The file systems on a device; none where it cannot be read.
fn contents(path: &Path, size: u64) -> Vec<Found> {
    File::open(path)
        .ok()
        .and_then(|file| filesystem::read(Stretch::whole(&file, size)).ok())
        .unwrap_or_default()
}

/// The names of an array. The kernel itself has none; the members' metadata has.
fn arrays(world: &World, array: &Device, devices: &[Device]) -> Vec<String> {
    let folder = world.sys.join("class/block").join(&array.name);
    if !folder.join("md").exists() {
        return Vec::new();
    }
    let links = world.dev.join("md");
    let is_its = |link: &String| {
        let target = fs::read_link(links.join(link)).ok();
        target.is_some_and(|target| target.ends_with(&array.name))
    };
    let mut out: Vec<String> = block::entries(&links).into_iter().filter(is_its).collect();
    let slaves = block::entries(&folder.join("slaves"));
    let by_metadata = slaves.first().and_then(|slave| {
        let member = devices.iter().find(|device| device.name == *slave)?;
        let file = File::open(&member.path).ok()?;
        md::read(Stretch::whole(&file, member.size)).ok()?
    });
    out.extend(by_metadata.map(|member| member.name));
    out
}

/// Device numbers of all mounted file systems and swap devices. The source in mountinfo is a text that need not
/// resolve; it is read for file systems with a device number of their own (btrfs).
fn used(world: &World) -> BTreeSet<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let number_of = |path: &str| {
        let path = match path.strip_prefix("/dev/") {
            Some(below) => world.dev.join(below),
            None => return None,
        };
        let meta = fs::metadata(path).ok()?;
        let device = meta.rdev();
        meta.file_type().is_block_device().then(|| {
            format!(
                "{}:{}",
                nix::sys::stat::major(device),
                nix::sys::stat::minor(device)
            )
        })
    };
    let mounts = mount::table(world).unwrap_or_default();
    let mut out = BTreeSet::new();
    for mount in mounts {
        out.extend(number_of(&mount.source));
        out.insert(mount.device);
    }
    let swaps = fs::read_to_string(world.proc.join("swaps")).unwrap_or_default();
    out.extend(
        swaps
            .lines()
            .skip(1)
            .filter_map(|line| number_of(line.split_whitespace().next()?)),
    );
    out
}

/// The devices that a name refers to, among the present ones.
pub fn find<'a>(devices: &'a [Device], name: &Name) -> Vec<&'a Device> {
    let part_of = |disk: &Device, number: Option<u32>| match number {
        None => devices.iter().find(|device| device.name == disk.name),
        Some(number) => {
            let wanted = Some((disk.name.clone(), number));
            devices.iter().find(|device| device.partition == wanted)
        }
    };
    let numbered = |names: fn(&Device) -> &Vec<String>, name: &String, number: Option<u32>| {
        devices
            .iter()
            .filter(|device| names(device).contains(name))
            .filter_map(|disk| part_of(disk, number))
            .collect()
    };
    let by = |matches: &dyn Fn(&Device) -> bool| {
        devices.iter().filter(|device| matches(device)).collect()
    };
    match name {
        Name::Kernel(name) => by(&|device| device.name == *name),
        Name::Id(id, number) => numbered(|device| &device.ids, id, *number),
        Name::Path(path, number) => numbered(|device| &device.paths, path, *number),
        Name::Label(label) => {
            by(&|device| device.contents.iter().any(|found| found.label == *label))
        }
        Name::Uuid(uuid) => by(&|device| device.contents.iter().any(|found| found.uuid == *uuid)),
        Name::PartLabel(label) => by(&|device| {
            device
                .entry
                .as_ref()
                .is_some_and(|(found, _)| found == label)
        }),
        Name::PartUuid(guid) => by(&|device| {
            device
                .entry
                .as_ref()
                .is_some_and(|(_, found)| found.to_string() == *guid)
        }),
        Name::Array(name) => by(&|device| device.arrays.contains(name)),
        Name::Mapped(name) => by(&|device| device.mapped.as_ref() == Some(name)),
    }
}

/// Waits for the device with a file system or volume of this UUID; `None` if it does not appear in time. `what` is its
/// description for the console.
pub(crate) fn wait_for_uuid(
    root: &Programs,
    modules: &Modules,
    what: &str,
    uuid: &str,
) -> Result<Option<PathBuf>> {
    let name = Name::Uuid(uuid.to_owned());
    uevent::wait_for(&root.world, what, Some(DEADLINE), || {
        let devices = all(&root.world);
        let found = uppermost(&devices, &find(&devices, &name));
        match found[..] {
            [] => {
                modules.load_for_disks();
                modules.load_for_devices(Network::Without);
                Ok(None)
            }
            [device] => Ok(Some(device.path.clone())),
            _ => Err(ambiguous(what, &found).into()),
        }
    })
}

/// Those of `found` that none of the others is built from: the members of an array or of a multipath device show its
/// content too.
fn uppermost<'a>(devices: &[Device], found: &[&'a Device]) -> Vec<&'a Device> {
    let is_below = |device: &Device| {
        let above = above(devices, device);
        found.iter().any(|other| {
            let disk = other.partition.as_ref().map(|(disk, _)| disk);
            above.contains(&other.name) || disk.is_some_and(|disk| above.contains(disk))
        })
    };
    found
        .iter()
        .filter(|device| !is_below(device))
        .copied()
        .collect()
}

/// The names of all devices that are built from a device, or from the disk that it is a partition of.
fn above(devices: &[Device], device: &Device) -> BTreeSet<String> {
    let by_name = |name: &String| devices.iter().find(|device| device.name == *name);
    let disk = device
        .partition
        .as_ref()
        .and_then(|(disk, _)| by_name(disk));
    let mut out = BTreeSet::new();
    let mut below: Vec<&Device> = disk.into_iter().chain([device]).collect();
    while let Some(device) = below.pop() {
        for holder in &device.holders {
            if out.insert(holder.clone()) {
                below.extend(by_name(holder));
            }
        }
    }
    out
}

fn ambiguous(what: &str, found: &[&Device]) -> Fault {
    let names = found
        .iter()
        .map(|device| format!("{} ({})", device.name, device.stable()));
    Fault::new(format!("several devices hold {what}"))
        .expected("one device with this UUID")
        .found(names.collect::<Vec<_>>().join(", "))
        .fix("detach the copy")
}

/// The node of a mapped device.
pub(crate) fn mapped(world: &World, name: &str) -> Result<PathBuf> {
    let mut devices = all(world).into_iter();
    let found = devices.find(|device| device.mapped.as_deref() == Some(name));
    found
        .map(|device| device.path)
        .with_context(|| format!("no mapped device {name}"))
}
