//! Block devices: sysfs, partition tables, and the names that survive a reboot.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::guid::Guid;

use crate::disk_answers::{self, Heard, Question, Silent};
use crate::disk_reader::Reads;
use crate::gpt;
use crate::world::World;

/// Bytes in the unit of sysfs's `size` and `start`, whatever the disk's own sectors are.
pub const SYSFS_SECTOR: u64 = 512;

/// Prefixes of names whose devices hold nothing permanent, or a removable medium.
const VOLATILE: [&str; 5] = ["ram", "zram", "sr", "fd", "nbd"];
/// Prefixes of names whose devices the kernel builds from others.
const STACKED: [&str; 3] = ["loop", "dm-", "md"];
/// Bytes at the begin and at the end of a disk that hold a GPT of the usual size, with sectors of either size.
const TABLE: u64 = 32 << 10;

/// A block device that is not a partition: a disk, or one that the kernel builds from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name, as `vda` or `nvme0n1`. It changes between boots.
    pub name: String,
    /// Its device node.
    pub path: PathBuf,
    /// `major:minor`.
    pub dev: Option<String>,
    /// Serial number of virtio, NVMe and SCSI disks.
    pub serial: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector: u64,
    /// Whether the device refuses writes.
    pub read_only: bool,
    /// The devices that are built from it, by the kernel's names.
    pub holders: Vec<String>,
    /// Name of a device of the device mapper.
    pub mapped: Option<String>,
    /// Its GPT, if one of its copies is readable.
    pub table: Option<gpt::Table>,
    /// Its partitions, by number.
    pub partitions: Vec<Partition>,
}

/// A partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Number in the table, from 1.
    pub number: u32,
    /// `major:minor`.
    pub dev: Option<String>,
    /// The devices that are built from it, by the kernel's names.
    pub holders: Vec<String>,
    /// The kernel's name, as `vda1`.
    pub name: String,
    /// Its device node.
    pub path: PathBuf,
    /// Label in the GPT; empty in an MBR.
    pub label: String,
    /// Its own GUID; none in an MBR.
    pub guid: Option<Guid>,
    /// GUID of its type; none in an MBR.
    pub type_guid: Option<Guid>,
    /// Attribute bits in the GPT.
    pub attributes: u64,
    /// Where it begins, bytes.
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

/// All disks that can hold data, by name: no loop, RAM, optical, mapped, hidden or empty devices, and none that does not
/// answer ([`unanswered`]).
pub fn disks(world: &World) -> Vec<Disk> {
    named(world, |name| !starts_with_any(name, &STACKED))
}

/// [`disks`] but those with these names, which are not read.
pub fn disks_except(world: &World, known: &[String]) -> Vec<Disk> {
    let is_known = |name: &str| known.iter().any(|known| known == name);
    named(world, |name| {
        !starts_with_any(name, &STACKED) && !is_known(name)
    })
}

/// The devices that were asked in this boot and have not answered until now. Disks that were not asked yet are asked.
#[must_use]
pub fn unanswered(world: &World) -> Vec<Silent> {
    drop(ask_for_tables(world, &disk_names(world)));
    disk_answers::still_silent(world)
}

/// Asks disks what is read of them and their partitions; each read comes with the kernel's name of its disk. Whoever reads
/// from several disks does so first, and leaves those out that have not answered.
#[must_use]
pub fn ask(world: &World, reads: impl IntoIterator<Item = (String, Reads)>) -> Heard<'_> {
    let mut disks: BTreeMap<String, Vec<Reads>> = BTreeMap::new();
    for (disk, one) in reads {
        disks.entry(disk).or_default().push(one);
    }
    let question = |(disk, reads): (String, Vec<Reads>)| Question {
        shown: shown(world, &disk),
        disk,
        reads,
    };
    disk_answers::ask(world, disks.into_iter().map(question).collect())
}

fn ask_for_tables<'w>(world: &'w World, names: &[String]) -> Heard<'w> {
    let read = |name: &String| {
        let size = size(&world.sys.join("block").join(name))?;
        let reads = Reads {
            path: world.dev.join(name),
            stretches: edges(size, TABLE),
        };
        Some((name.clone(), reads))
    };
    ask(world, names.iter().filter_map(read))
}

/// The first and the last bytes of a device with this size, as stretches that are read.
#[must_use]
pub fn edges(size: u64, each: u64) -> Vec<(u64, u64)> {
    let each = each.min(size);
    vec![(0, each), (size - each, each)]
}

/// A disk for people, before it has answered. The serial number of a virtio disk comes from the disk itself (`serial_show` in
/// the kernel's `drivers/block/virtio_blk.c`), those of others from the kernel's memory.
pub(crate) fn shown(world: &World, disk: &str) -> String {
    let folder = world.sys.join("block").join(disk);
    let known = match folder.join("serial").exists() {
        true => None,
        false => serial(&folder),
    };
    known.map_or_else(
        || disk.to_owned(),
        |serial| format!("{disk} (serial {serial})"),
    )
}

/// The kernel's name of the disk that a device is a partition of; its own if it is none.
#[must_use]
pub fn disk_of(world: &World, name: &str) -> String {
    let folder = world.sys.join("class/block").join(name);
    let disk = || {
        if !folder.join("partition").exists() {
            return None;
        }
        // The folder of a partition is in that of its disk.
        let real = fs::canonicalize(&folder).ok()?;
        Some(real.parent()?.file_name()?.to_str()?.to_owned())
    };
    disk().unwrap_or_else(|| name.to_owned())
}

/// [`disks`], and the devices that the kernel builds from others: arrays, mapped and loop devices.
pub fn devices(world: &World) -> Vec<Disk> {
    named(world, |_| true)
}

/// The kernel's names of [`disks`], empty ones among them; nothing is read from a disk.
pub fn disk_names(world: &World) -> Vec<String> {
    names(world, |name| !starts_with_any(name, &STACKED))
}

fn named(world: &World, wanted: impl Fn(&str) -> bool) -> Vec<Disk> {
    let names = names(world, wanted);
    let heard = ask_for_tables(world, &names);
    names
        .iter()
        .filter(|name| heard.has(name))
        .filter_map(|name| disk(world, name))
        .collect()
}

fn names(world: &World, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let folder = world.sys.join("block");
    let mut names = entries(&folder);
    names.retain(|name| {
        !starts_with_any(name, &VOLATILE) && wanted(name) && !is_hidden(&folder.join(name))
    });
    names.sort();
    names
}

/// Whether a block device, by its folder in sysfs, is a path to another one and has no node in `/dev`: with NVMe multipath the
/// namespace `nvme0n1` is the disk, and each `nvme0c0n1` a controller's way to it (`drivers/nvme/host/multipath.c`).
#[must_use]
pub fn is_hidden(folder: &Path) -> bool {
    number(&folder.join("hidden")) == Some(1)
}

fn starts_with_any(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Bytes of a device by its folder in sysfs; none if it has none.
fn size(folder: &Path) -> Option<u64> {
    let size = number(&folder.join("size"))?.checked_mul(SYSFS_SECTOR)?;
    (size > 0).then_some(size)
}

/// One disk by the kernel's name; none if there is no such disk or it has no size. For one that is needed: it is waited for
/// without an end.
pub fn disk(world: &World, name: &str) -> Option<Disk> {
    let folder = world.sys.join("block").join(name);
    let size = size(&folder)?;
    let mut disk = Disk {
        name: name.to_owned(),
        path: world.dev.join(name),
        dev: text(&folder.join("dev")),
        holders: entries(&folder.join("holders")),
        mapped: text(&folder.join("dm/name")),
        serial: serial(&folder),
        size,
        sector: number(&folder.join("queue/logical_block_size")).unwrap_or(SYSFS_SECTOR),
        read_only: number(&folder.join("ro")) == Some(1),
        table: None,
        partitions: Vec::new(),
    };
    disk.table = File::open(&disk.path)
        .ok()
        .and_then(|file| gpt::Table::read(&file, disk.sector, size).ok());
    disk.partitions = entries(&folder)
        .into_iter()
        .filter_map(|part| partition(world, &folder, part, disk.table.as_ref()))
        .collect();
    disk.partitions.sort_by_key(|part| part.number);
    Some(disk)
}

fn partition(
    world: &World,
    disk: &Path,
    name: String,
    table: Option<&gpt::Table>,
) -> Option<Partition> {
    let folder = disk.join(&name);
    let number_ = u32::try_from(number(&folder.join("partition"))?).ok()?;
    let start = number(&folder.join("start"))?.checked_mul(SYSFS_SECTOR)?;
    // An entry belongs to the kernel's partition only if both begin at the same place.
    let entry = table.and_then(|table| {
        let entry = table.entries.get(&number_)?;
        (entry.first.checked_mul(table.sector)? == start).then_some(entry)
    });
    Some(Partition {
        number: number_,
        dev: text(&folder.join("dev")),
        holders: entries(&folder.join("holders")),
        path: world.dev.join(&name),
        label: entry.map(|e| e.label.clone()).unwrap_or_default(),
        guid: entry.map(|e| e.guid),
        type_guid: entry.map(|e| e.type_guid),
        attributes: entry.map_or(0, |e| e.attributes),
        start,
        size: number(&folder.join("size"))?.checked_mul(SYSFS_SECTOR)?,
        name,
    })
}

/// A device that the kernel builds from others, by the kernel's name, in the words of a message. The kind of a mapped one is
/// the first word of its UUID (`dm/uuid`), as multipath-tools, cryptsetup and LVM write it.
pub fn describe_stacked(world: &World, name: &str) -> String {
    let mapped = |file: &str| text(&world.sys.join("block").join(name).join("dm").join(file));
    let Some(uuid) = mapped("uuid") else {
        let kind = if name.starts_with("md") {
            "the array "
        } else {
            ""
        };
        return format!("{kind}{name}");
    };
    let kind = match uuid.split('-').next() {
        Some("mpath") => "multipath map",
        Some("CRYPT") => "encrypted volume",
        Some("LVM") => "logical volume",
        _ => "mapped device",
    };
    format!("the {kind} {name} ({})", mapped("name").unwrap_or_default())
}

/// `major:minor` of a block device by the kernel's name, from sysfs.
///
/// # Errors
/// If there is no such device.
pub fn number_of(world: &World, name: &str) -> Result<String> {
    let path = world.sys.join("class/block").join(name).join("dev");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// virtio keeps the serial at the disk, NVMe at the controller, SCSI and ATA in vital product data page 0x80.
pub fn serial(folder: &Path) -> Option<String> {
    let text = ["serial", "device/serial"]
        .iter()
        .find_map(|name| fs::read(folder.join(name)).ok())
        .or_else(|| {
            let page = fs::read(folder.join("device/vpd_pg80")).ok()?;
            let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
            Some(page.get(4..4 + length)?.to_vec())
        })?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Names in a folder; none if it does not exist.
pub fn entries(folder: &Path) -> Vec<String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// The line in a file of sysfs; `None` if it cannot be read.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The number in a file of sysfs; `None` if it cannot be read.
#[must_use]
pub fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::disk_reader::Readers;
    use crate::samples::{hanging, wake};
    use crate::world::Clock;

    fn write(path: &Path, text: impl AsRef<[u8]>) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A fake disk in `world`: sysfs entries and a device file that holds `table`.
    fn fake_disk(world: &World, name: &str, serial: (&str, &[u8]), table: &gpt::Table) {
        let folder = world.sys.join("block").join(name);
        write(
            &folder.join("size"),
            format!("{}\n", table.size() / SYSFS_SECTOR),
        );
        write(&folder.join("ro"), "0\n");
        write(
            &folder.join("queue/logical_block_size"),
            format!("{}\n", table.sector),
        );
        write(&folder.join(serial.0), serial.1);
        fs::create_dir_all(&world.dev).unwrap();
        let file = File::create_new(world.dev.join(name)).unwrap();
        file.set_len(table.size()).unwrap();
        table.write(&file).unwrap();
        for (number, entry) in &table.entries {
            let part = folder.join(format!("{name}{number}"));
            let unit = table.sector / SYSFS_SECTOR;
            write(&part.join("partition"), format!("{number}\n"));
            write(&part.join("start"), format!("{}\n", entry.first * unit));
            write(
                &part.join("size"),
                format!("{}\n", (entry.last - entry.first + 1) * unit),
            );
        }
    }

    #[test]
    fn a_hidden_path_of_nvme_multipath_is_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let table = crate::samples::table(512, 64 << 20);
        for name in ["nvme0n1", "nvme0c0n1", "nvme0c1n1", "vda", "vdb"] {
            fake_disk(&world, name, ("serial", b"x"), &table);
        }
        for (name, hidden) in [
            ("nvme0n1", "0\n"),
            ("nvme0c0n1", "1\n"),
            ("nvme0c1n1", "1\n"),
            ("vdb", "1\n"),
        ] {
            write(&world.sys.join("block").join(name).join("hidden"), hidden);
        }
        assert_eq!(disk_names(&world), ["nvme0n1", "vda"]);
        let names =
            |disks: Vec<Disk>| -> Vec<String> { disks.into_iter().map(|d| d.name).collect() };
        assert_eq!(names(disks(&world)), ["nvme0n1", "vda"]);
        assert_eq!(names(devices(&world)), ["nvme0n1", "vda"]);
    }

    #[test]
    fn a_disk_that_does_not_answer_is_no_disk_until_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::below(folder.path(), Clock::Real);
        world.readers = Readers::with_patience(Duration::from_secs(2));
        let table = crate::samples::table(512, 64 << 20);
        for (name, serial) in [
            ("vda", ("serial", b"x".as_slice())),
            ("sdb", ("device/serial", b"WD-7".as_slice())),
        ] {
            fake_disk(&world, name, serial, &table);
        }
        let names =
            |disks: Vec<Disk>| -> Vec<String> { disks.into_iter().map(|disk| disk.name).collect() };
        let node = world.dev.join("sdb");
        fs::remove_file(&node).unwrap();
        hanging(&node);
        assert_eq!(names(disks(&world)), ["vda"]);
        assert_eq!(names(devices(&world)), ["vda"]);
        assert!(disks_except(&world, &["vda".to_owned()]).is_empty());
        let silent = unanswered(&world);
        assert_eq!(silent.len(), 1);
        assert_eq!(silent[0].shown, "sdb (serial WD-7)");
        // Its name in sysfs is no question to it.
        assert_eq!(disk_names(&world), ["sdb", "vda"]);
        let _awake = wake(&node);
        let until = Instant::now() + Duration::from_secs(30);
        while !unanswered(&world).is_empty() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(names(disks(&world)), ["sdb", "vda"]);
    }

    #[test]
    fn a_partition_is_on_the_disk_whose_folder_it_is_in() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let class = world.sys.join("class/block");
        let real = world.sys.join("devices/pci/block/nvme0n1/nvme0n1p1");
        write(&real.join("partition"), "1\n");
        fs::create_dir_all(&class).unwrap();
        for (name, real) in [
            ("nvme0n1p1", real.as_path()),
            ("nvme0n1", real.parent().unwrap()),
        ] {
            std::os::unix::fs::symlink(real, class.join(name)).unwrap();
        }
        for name in ["nvme0n1", "nvme0n1p1"] {
            assert_eq!(disk_of(&world, name), "nvme0n1");
        }
        assert_eq!(disk_of(&world, "sr0"), "sr0");
    }

    #[test]
    fn disks_are_read_with_serials_and_partitions() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let table = crate::samples::table(512, 64 << 20);
        fake_disk(&world, "vda", ("serial", b"etcd\n"), &table);
        let page = [b"\0\x80\0\x08".as_slice(), b"  WD-123"].concat();
        let wide = crate::samples::table(4096, 64 << 20);
        fake_disk(&world, "sda", ("device/vpd_pg80", &page), &wide);
        write(&world.sys.join("block/loop0/size"), "100\n");
        write(&world.sys.join("block/vdb/size"), "0\n");

        let disks = disks(&world);
        let names: Vec<_> = disks.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["sda", "vda"]);
        assert_eq!(disks[0].serial.as_deref(), Some("WD-123"));
        assert_eq!(disks[1].serial.as_deref(), Some("etcd"));
        for (disk, table) in disks.iter().zip([&wide, &table]) {
            let entry = &table.entries[&1];
            assert_eq!(disk.partitions[0].label, entry.label);
            assert_eq!(disk.partitions[0].guid, Some(entry.guid));
            assert_eq!(disk.partitions[0].type_guid, Some(entry.type_guid));
            assert_eq!(disk.partitions[0].start, entry.first * table.sector);
        }
    }
}
