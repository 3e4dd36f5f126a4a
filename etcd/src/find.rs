//! Finding the etcd volume: by serial number, a name in `/dev/disk/by-id`, file system label or partition label, never by the kernel's name of a device,
//! which changes between boots.

#[cfg(test)]
mod tests;

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use image::node::EtcdFind;

use image::fault::Fault;
use linux::block::{self, Disk};
use linux::disk_answers::Heard;
use linux::disk_identity;
use linux::disk_names;
use linux::disk_reader::Reads;
use linux::filesystem::ext;
use linux::world::World;

/// A disk or partition, as a candidate for the etcd volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The kernel's name in this boot.
    pub name: String,
    /// Its device node.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// A name that survives a reboot: serial of the disk, and number of the partition.
    pub stable: String,
    /// Whether the disk refuses writes.
    pub read_only: bool,
    /// The kernel's name of its disk.
    pub disk: String,
    /// The devices that the kernel has built from it or from its disk, by the kernel's names.
    pub holders: Vec<String>,
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.stable)
    }
}

impl Volume {
    fn disk(disk: &Disk) -> Self {
        Self {
            name: disk.name.clone(),
            path: disk.path.clone(),
            size: disk.size,
            stable: disk.serial.as_ref().map_or_else(
                || "serial none".to_owned(),
                |serial| format!("serial {serial}"),
            ),
            read_only: disk.read_only,
            disk: disk.name.clone(),
            holders: disk.holders.clone(),
        }
    }

    fn partitions(disk: &Disk) -> impl Iterator<Item = (&str, Self)> {
        disk.partitions.iter().map(|partition| {
            let identity = partition.guid.map_or_else(
                || format!("partition {}", partition.number),
                |guid| format!("partition {guid}"),
            );
            let volume = Self {
                name: partition.name.clone(),
                path: partition.path.clone(),
                size: partition.size,
                stable: identity,
                read_only: disk.read_only,
                disk: disk.name.clone(),
                holders: [&disk.holders[..], &partition.holders].concat(),
            };
            (partition.label.as_str(), volume)
        })
    }
}

/// The volumes among `disks` that the settings name. `system` is the disk of the root.
///
/// # Errors
/// A [`Fault`] if the system disk is among them.
pub fn matching(
    world: &World,
    disks: &[Disk],
    wanted: &EtcdFind,
    system: Option<&Disk>,
) -> Result<Vec<Volume>, Fault> {
    let is_system = |disk: &&Disk| system.is_some_and(|system| system.name == disk.name);
    let matches = match wanted {
        EtcdFind::Serial(_) | EtcdFind::Id(_) => {
            let is_meant = |disk: &&Disk| is_called(world, disk, wanted);
            if let Some(disk) = disks.iter().filter(is_meant).find(is_system) {
                return Err(Fault::new("the etcd disk is the system disk")
                    .expected(format!("another disk with the {}", describe(wanted)))
                    .found(format!("{}, which holds the root", disk.name))
                    .fix("give the etcd disk another name, or name a partition by partlabel"));
            }
            disks.iter().filter(is_meant).map(Volume::disk).collect()
        }
        EtcdFind::Partlabel(label) => disks
            .iter()
            .flat_map(Volume::partitions)
            .filter(|(found, _)| found == label)
            .map(|(_, volume)| volume)
            .collect(),
        EtcdFind::Label(label) => labelled(world, disks, label),
    };
    Ok(matches)
}

/// The volumes with a file system of this label. A device that cannot be read now counts as absent: the search is repeated.
fn labelled(world: &World, disks: &[Disk], label: &str) -> Vec<Volume> {
    let all = disks.iter().flat_map(|disk| {
        let parts = Volume::partitions(disk).map(|(_, volume)| volume);
        std::iter::once(Volume::disk(disk)).chain(parts)
    });
    let mut volumes: Vec<Volume> = all.collect();
    let heard = ask(world, &volumes);
    let has_label = |volume: &Volume| {
        let found = ext::read(&volume.path).ok().flatten();
        found.is_some_and(|found| found.label == label)
    };
    volumes.retain(|volume| heard.has(&volume.disk) && has_label(volume));
    volumes
}

/// Asks the disks of these volumes for their superblocks, which are read next.
pub(crate) fn ask<'w>(world: &'w World, volumes: &[Volume]) -> Heard<'w> {
    let reads = volumes.iter().map(|volume| {
        let reads = Reads {
            path: volume.path.clone(),
            stretches: vec![ext::STRETCH],
        };
        (volume.disk.clone(), reads)
    });
    block::ask(world, reads)
}

/// Whether a disk has the serial number or the name that the settings give.
fn is_called(world: &World, disk: &Disk, wanted: &EtcdFind) -> bool {
    match wanted {
        EtcdFind::Serial(serial) => disk.serial.as_deref() == Some(serial),
        EtcdFind::Id(id) => {
            let folders = ["/dev/disk/by-id/", "/dev/disk/"];
            let below = folders.iter().find_map(|folder| id.strip_prefix(folder));
            let id = below.unwrap_or(id);
            disk_names::of(world, disk).iter().any(|name| name == id)
        }
        EtcdFind::Label(_) | EtcdFind::Partlabel(_) => false,
    }
}

/// The only one of `volumes`; none if there is none. `wanted` says in a message what each of them is.
///
/// # Errors
/// A [`Fault`] if there are several, or several paths to one.
pub fn only(world: &World, volumes: Vec<Volume>, wanted: &str) -> Result<Option<Volume>, Fault> {
    if let [] | [_] = volumes[..] {
        return Ok(volumes.into_iter().next());
    }
    let names: Vec<String> = volumes.iter().map(ToString::to_string).collect();
    let disks: Vec<&str> = volumes.iter().map(|volume| volume.disk.as_str()).collect();
    if let Some(name) = disk_identity::shared_by(world, &disks) {
        return Err(Fault::new("the etcd volume is there by several paths to one disk (multipath), which are not supported")
            .expected(format!("one path to the volume with the {wanted}"))
            .found(format!("{}, which are all the disk {name}", names.join(", ")))
            .fix("let the storage present the disk by one path: mask the other paths, or leave multipath to the hypervisor or the adapter"));
    }
    Err(Fault::new("more than one volume matches [etcd]")
        .expected(format!("one volume with the {wanted}"))
        .found(names.join(", "))
        .fix("detach all but the right one, or name it unambiguously in [etcd]"))
}

/// Refuses a volume that the kernel has built another device from: what is written to it would be missing there.
///
/// # Errors
/// A [`Fault`] that names the other device.
pub fn free(world: &World, volume: &Volume) -> Result<(), Fault> {
    if volume.holders.is_empty() {
        return Ok(());
    }
    let holders: Vec<String> = volume
        .holders
        .iter()
        .map(|name| block::describe_stacked(world, name))
        .collect();
    Err(Fault::new("the etcd volume is a part of another device")
        .expected("a disk or partition of its own: etcd on multipath maps, arrays, LVM or encrypted volumes is not supported")
        .found(format!("{volume}, which {} is built from", holders.join(" and ")))
        .fix("name another volume in [etcd], or take the device above it out of the node's config"))
}

/// The search criterion, for messages.
pub fn describe(wanted: &EtcdFind) -> String {
    match wanted {
        EtcdFind::Serial(serial) => format!("serial number {serial:?}"),
        EtcdFind::Id(id) => format!("id {id:?}"),
        EtcdFind::Label(label) => format!("file system label {label:?}"),
        EtcdFind::Partlabel(label) => format!("partition label {label:?}"),
    }
}

/// The disks of this machine, so that the message about an absent volume shows a misspelled name.
pub fn list(disks: &[Disk]) -> String {
    let mut text = String::new();
    for disk in disks {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let serial = disk.serial.as_deref().unwrap_or("none");
        // Writing to a string does not fail.
        write!(
            text,
            "{} (serial {serial}, {} MiB",
            disk.name,
            disk.size >> 20
        )
        .unwrap_or_default();
        for partition in disk.partitions.iter().filter(|p| !p.label.is_empty()) {
            write!(text, ", {}", partition.label).unwrap_or_default();
        }
        text.push(')');
    }
    if text.is_empty() {
        text.push_str("no disks");
    }
    text
}
