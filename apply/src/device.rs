//! The block devices of this machine with their names, use and content, and the lookup by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use image::fault::Fault;
use image::guid::Guid;

use crate::device_name::Name;
use linux::block::{Disk, Partition};
use linux::disk_identity::{self, DiskIdentity};
use linux::disk_names;
use linux::filesystem;
use linux::filesystem::Found;
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
    fn disk(&self) -> &str {
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

/// All devices with a size, by name.
pub fn all(world: &World) -> Vec<Device> {
    let used = used(world);
    let mut out = Vec::new();
    for mut disk in block::devices(world) {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use std::sync::Arc;

    use super::*;
    use crate::fake::{Machine, write};
    use linux::samples::table as sample;
    use linux::world::Clock;

    /// A machine with three disks; `vda` has the table of [`sample`].
    fn machine() -> Machine {
        let machine = Machine::new();
        let table = sample(512, 64 << 20);
        let pci = "pci0000:00/0000:00:04.0/virtio1/block/vda";
        let (real, file) = machine.add("vda", pci, "254:0", 0, 64 << 20);
        table.write(&file).unwrap();
        write(&real.join("serial"), "etcd disk\n");
        machine.add("vda1", &format!("{pci}/vda1"), "254:1", 1 << 20, 1 << 20);
        let (_, file) = machine.add("vda3", &format!("{pci}/vda3"), "254:3", 3 << 20, 1 << 20);
        for (at, bytes) in linux::samples::filesystem(filesystem::Kind::Xfs) {
            file.write_all_at(&bytes, at).unwrap();
        }
        let nvme = "pci0000:00/0000:00:05.0/nvme/nvme0/nvme0n1";
        let (real, _) = machine.add("nvme0n1", nvme, "259:0", 0, 1 << 20);
        for (file, text) in [
            ("device/serial", "S1 \n"),
            ("device/model", "QEMU NVMe Ctrl   \n"),
            ("nsid", "1\n"),
            ("wwid", "eui.00a0\n"),
        ] {
            write(&real.join(file), text);
        }
        let scsi = "pci0000:00/0000:00:06.0/virtio2/host2/target2:0:1/2:0:1:0/block/sda";
        let (real, _) = machine.add("sda", scsi, "8:0", 0, 1 << 20);
        write(&real.join("device/wwid"), "naa.5000c500\n");
        write(&real.join("device/serial"), "K7\n");
        write(&real.join("device/vendor"), "QEMU    \n");
        write(&real.join("device/model"), "QEMU HARDDISK   \n");
        write(&real.join("holders/dm-0/dev"), "253:0");
        machine.mounted(
            "25 1 254:3 / / ro - xfs /dev/root ro\n26 1 0:23 / /x ro - btrfs nonsense ro\n",
        );
        machine
    }

    #[test]
    fn every_form_of_name_finds_its_device() {
        let machine = machine();
        let devices = all(&machine.world);
        let guid = image::guid::Guid([3; 16]).to_string();
        for (path, name) in [
            ("/dev/vda", "vda"),
            ("/dev/vda1", "vda1"),
            ("/dev/disk/by-id/virtio-etcd_disk", "vda"),
            ("/dev/disk/by-id/virtio-etcd_disk-part3", "vda3"),
            ("/dev/disk/by-id/google-etcd_disk", "vda"),
            ("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_S1", "nvme0n1"),
            ("/dev/disk/by-id/nvme-eui.00a0", "nvme0n1"),
            ("/dev/disk/by-id/wwn-0x5000c500", "sda"),
            ("/dev/disk/by-id/scsi-35000c500", "sda"),
            ("/dev/disk/by-id/scsi-SQEMU_QEMU_HARDDISK_K7", "sda"),
            ("/dev/disk/by-path/pci-0000:00:04.0", "vda"),
            ("/dev/disk/by-path/virtio-pci-0000:00:04.0-part1", "vda1"),
            ("/dev/disk/by-path/pci-0000:00:05.0-nvme-1", "nvme0n1"),
            ("/dev/disk/by-path/pci-0000:00:06.0-scsi-0:0:1:0", "sda"),
            ("/dev/disk/by-partlabel/root-a", "vda3"),
            (&format!("/dev/disk/by-partuuid/{guid}"), "vda3"),
            ("/dev/disk/by-label/data", "vda3"),
            (
                "/dev/disk/by-uuid/abababab-abab-abab-abab-abababababab",
                "vda3",
            ),
        ] {
            let found = find(&devices, &Name::parse(path).unwrap());
            let names: Vec<&str> = found.iter().map(|device| device.name.as_str()).collect();
            assert_eq!(names, [name], "{path}");
        }
        let none = find(
            &devices,
            &Name::parse("/dev/disk/by-id/virtio-etcd_disk-part9").unwrap(),
        );
        assert!(none.is_empty());
    }

    #[test]
    fn two_paths_to_one_disk_are_told_apart_from_two_disks_of_one_name() {
        let machine = machine();
        let said = || {
            let name = Name::parse("/dev/disk/by-id/scsi-SQEMU_QEMU_HARDDISK_K7").unwrap();
            let devices = all(&machine.world);
            let found = find(&devices, &name);
            (found.len(), one_disk(found.iter().copied()))
        };
        assert_eq!(said(), (1, String::new()));
        let scsi = "pci0000:00/0000:00:07.0/virtio3/host3/target3:0:1/3:0:1:0/block/sdb";
        let (real, _) = machine.add("sdb", scsi, "8:16", 0, 1 << 20);
        write(&real.join("device/serial"), "K7\n");
        write(&real.join("device/vendor"), "QEMU\n");
        write(&real.join("device/model"), "QEMU HARDDISK\n");
        assert_eq!(said(), (2, String::new()));
        write(&real.join("device/wwid"), "naa.5000c500\n");
        let (count, text) = said();
        assert_eq!(count, 2);
        assert!(text.contains("(multipath, wwn 5000c500)"), "{text}");
        // Two partitions of one disk are no paths to it.
        let wwid = machine.world.sys.join("block/vda/device/wwid");
        write(&wwid, "naa.5000c501\n");
        let devices = all(&machine.world);
        let parts = devices.iter().filter(|device| device.disk() == "vda");
        let parts: Vec<_> = parts.filter(|device| device.partition.is_some()).collect();
        assert!(parts.len() > 1 && parts.iter().all(|part| part.world_wide.is_some()));
        assert_eq!(one_disk(parts.into_iter()), "");
    }

    #[test]
    fn an_array_is_known_by_its_members_and_by_links() {
        let machine = Machine::new();
        machine.mounted("");
        let (_, member) = machine.add("vdb", "x/block/vdb", "254:16", 0, 4 << 20);
        let bytes = linux::samples::member(4096, 7, "any:pair", 1, 2);
        member.write_all_at(&bytes, 4096).unwrap();
        let names = |path: &str| {
            let devices = all(&machine.world);
            let found = find(&devices, &Name::parse(path).unwrap());
            found.iter().map(|device| device.name.clone()).collect()
        };
        let none: Vec<String> = names("/dev/md/pair");
        assert!(none.is_empty(), "a member is no array");
        let (real, _) = machine.add("md127", "virtual/block/md127", "9:127", 0, 2 << 20);
        write(&real.join("md/array_state"), "clean\n");
        write(&real.join("slaves/vdb/dev"), "254:16\n");
        let links = machine.world.dev.join("md");
        fs::create_dir_all(&links).unwrap();
        std::os::unix::fs::symlink("../md127", links.join("other")).unwrap();
        for path in [
            "/dev/md/pair",
            "/dev/md/other",
            "/dev/disk/by-id/md-name-any:pair",
        ] {
            assert_eq!(names(path), ["md127"], "{path}");
        }
        assert!(names("/dev/md/third").is_empty());
    }

    #[test]
    fn the_device_of_a_uuid_is_the_uppermost_one_and_copies_are_named() {
        let machine = machine();
        let modules = Modules::none(Arc::new(World::below(Path::new("/nowhere"), Clock::Real)));
        let root = |world: &World| Programs {
            world: Arc::new(World::below(world.sys.parent().unwrap(), Clock::Real)),
            sysroot: "/".into(),
            in_image: false,
        };
        let root = root(&machine.world);
        let uuid = "abababab-abab-abab-abab-abababababab";
        let wait = || wait_for_uuid(&root, &modules, "the file system", uuid);
        let node = |name: &str| Some(machine.world.dev.join(name));
        assert_eq!(wait().unwrap(), node("vda3"));
        let add = |name: &str, number: &str| {
            let (real, file) = machine.add(name, &format!("x/block/{name}"), number, 0, 1 << 20);
            for (at, bytes) in linux::samples::filesystem(filesystem::Kind::Xfs) {
                file.write_all_at(&bytes, at).unwrap();
            }
            real
        };
        // A device that is built from the disk, and another one above that.
        let holders = machine.world.sys.join("block/vda/holders/dm-1/dev");
        write(&holders, "253:1");
        let multipath = add("dm-1", "253:1");
        write(&multipath.join("holders/dm-2/dev"), "253:2");
        add("dm-2", "253:2");
        assert_eq!(wait().unwrap(), node("dm-2"));
        // A copy.
        add("vdc", "254:32");
        let fault: Fault = wait().unwrap_err().downcast().unwrap();
        let found = fault.found.unwrap();
        assert!(found.contains("dm-2") && found.contains("vdc"), "{found}");
        assert!(!found.contains("vda3"), "{found}");
    }

    #[test]
    fn use_is_known_by_device_numbers_and_a_source_that_leads_nowhere_stops_nothing() {
        let machine = machine();
        let busy: Vec<String> = all(&machine.world)
            .into_iter()
            .filter(Device::busy)
            .map(|device| device.name)
            .collect();
        assert_eq!(busy, ["sda", "vda3"]);
        let devices = all(&machine.world);
        let sda = devices.iter().find(|device| device.name == "sda").unwrap();
        assert!(!sda.busy_but(Some("dm-0")) && sda.busy_but(Some("dm-1")));
    }
}
