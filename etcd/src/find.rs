//! Finding the etcd volume: by serial number, a name in `/dev/disk/by-id`, file system label or partition label, never by the kernel's name of a device,
//! which changes between boots.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use image::node::EtcdFind;

use image::fault::Fault;
use linux::block::{self, Disk};
use linux::disk_identity;
use linux::disk_names;
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
        EtcdFind::Label(label) => disks
            .iter()
            .flat_map(|disk| {
                let parts = Volume::partitions(disk).map(|(_, volume)| volume);
                std::iter::once(Volume::disk(disk)).chain(parts)
            })
            // A device that cannot be read now counts as absent: the search is repeated.
            .filter(|volume| {
                ext::read(&volume.path)
                    .ok()
                    .flatten()
                    .is_some_and(|found| found.label == *label)
            })
            .collect(),
    };
    Ok(matches)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use linux::block::Partition;
    use linux::world::Clock;

    fn disk(name: &str, serial: Option<&str>, labels: &[&str]) -> Disk {
        let partitions = labels
            .iter()
            .zip(1..)
            .map(|(label, number)| Partition {
                number,
                name: format!("{name}{number}"),
                path: format!("/dev/{name}{number}").into(),
                label: (*label).to_owned(),
                size: 1 << 30,
                ..Partition::default()
            })
            .collect();
        Disk {
            name: name.to_owned(),
            path: format!("/dev/{name}").into(),
            serial: serial.map(str::to_owned),
            size: 1 << 30,
            sector: 512,
            partitions,
            ..Disk::default()
        }
    }

    #[test]
    fn a_volume_is_found_by_its_stable_name_only() {
        let world = World::real();
        let disks = [
            disk("vda", Some("root"), &["ESP", "etcd"]),
            disk("vdb", Some("etcd"), &[]),
            disk("vdc", None, &[]),
        ];
        let by = |wanted| {
            let volumes = matching(&world, &disks, &wanted, Some(&disks[0])).unwrap();
            only(&world, volumes, "x")
                .unwrap()
                .map(|volume| volume.name)
        };
        assert_eq!(by(EtcdFind::Serial("etcd".into())).as_deref(), Some("vdb"));
        assert_eq!(
            by(EtcdFind::Partlabel("etcd".into())).as_deref(),
            Some("vda2")
        );
        for id in ["virtio-etcd", "/dev/disk/by-id/virtio-etcd"] {
            assert_eq!(by(EtcdFind::Id(id.into())).as_deref(), Some("vdb"));
        }
        assert_eq!(by(EtcdFind::Id("etcd".into())), None);
        assert_eq!(by(EtcdFind::Id("/dev/vdb".into())), None);
        assert_eq!(by(EtcdFind::Serial("vdb".into())), None);
        assert_eq!(by(EtcdFind::Serial(String::new())), None);
        assert_eq!(by(EtcdFind::Label("etcd".into())), None);
    }

    #[test]
    fn two_volumes_and_the_system_disk_are_refused() {
        let world = World::real();
        let disks = [
            disk("vda", Some("x"), &["etcd"]),
            disk("vdb", Some("y"), &["etcd"]),
            disk("vdc", Some("y"), &[]),
        ];
        for wanted in [
            EtcdFind::Serial("y".into()),
            EtcdFind::Partlabel("etcd".into()),
        ] {
            let volumes = matching(&world, &disks, &wanted, None).unwrap();
            let fault = only(&world, volumes, &describe(&wanted)).unwrap_err();
            assert!(fault.found.unwrap().contains("vdb"), "{wanted:?}");
        }
        for wanted in [
            EtcdFind::Serial("x".into()),
            EtcdFind::Id("virtio-x".into()),
        ] {
            let fault = matching(&world, &disks, &wanted, Some(&disks[0])).unwrap_err();
            assert!(fault.what.contains("system disk"));
        }
    }

    #[test]
    fn two_paths_to_one_disk_are_told_from_two_disks() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let known_as = |name: &str, wwid: &str| {
            let device = world.sys.join("block").join(name).join("device");
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("wwid"), wwid).unwrap();
        };
        let wanted = EtcdFind::Partlabel("etcd".into());
        let disks = ["sda", "sdb"].map(|name| disk(name, Some("lun"), &["etcd"]));
        let what = || {
            let volumes = matching(&world, &disks, &wanted, None).unwrap();
            only(&world, volumes, &describe(&wanted)).unwrap_err()
        };
        known_as("sda", "naa.600a098038304437415d4b6a59684a52\n");
        assert!(what().what.contains("more than one volume"));
        known_as("sdb", "naa.600a098038304437415d4b6a59684a53\n");
        assert!(what().what.contains("more than one volume"));
        known_as("sdb", "naa.600a098038304437415d4b6a59684a52\n");
        let fault = what();
        assert!(fault.what.contains("several paths to one disk (multipath)"));
        let found = fault.found.unwrap();
        for word in ["sda1", "sdb1", "wwn 600a098038304437415d4b6a59684a52"] {
            assert!(found.contains(word), "{word}: {found}");
        }
        // Two partitions of one disk are no paths to it.
        let one = [disk("sda", Some("lun"), &["etcd", "etcd"])];
        let volumes = matching(&world, &one, &wanted, None).unwrap();
        let fault = only(&world, volumes, "x").unwrap_err();
        assert!(fault.what.contains("more than one volume"), "{fault:?}");
    }

    #[test]
    fn a_part_of_another_device_is_refused_by_that_devices_name() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let dm = world.sys.join("block/dm-0/dm");
        std::fs::create_dir_all(&dm).unwrap();
        let found = |disk: &Disk, wanted: &EtcdFind| {
            let disks = std::slice::from_ref(disk);
            let mut volumes = matching(&world, disks, wanted, None).unwrap();
            free(&world, &volumes.remove(0)).map_err(|fault| fault.found.unwrap())
        };
        let by = [
            EtcdFind::Serial("x".into()),
            EtcdFind::Partlabel("etcd".into()),
        ];
        let mut one = disk("sda", Some("x"), &["etcd", "other"]);
        // What is built from another partition does not count.
        one.partitions[1].holders.push("md0".into());
        assert_eq!(by.each_ref().map(|by| found(&one, by)), [Ok(()), Ok(())]);
        one.partitions[0].holders.push("md127".into());
        let text = found(&one, &by[1]).unwrap_err();
        assert!(
            text.contains("sda1") && text.contains("the array md127"),
            "{text}"
        );
        // What is built from the whole disk has its partitions too.
        one.partitions[0].holders.clear();
        one.holders.push("dm-0".into());
        for (uuid, kind) in [
            ("mpath-3600a", "the multipath map dm-0 (data)"),
            ("CRYPT-LUKS2-1", "the encrypted volume dm-0 (data)"),
            ("LVM-1", "the logical volume dm-0 (data)"),
        ] {
            std::fs::write(dm.join("uuid"), format!("{uuid}\n")).unwrap();
            std::fs::write(dm.join("name"), "data\n").unwrap();
            for by in &by {
                let text = found(&one, by).unwrap_err();
                assert!(text.contains(kind), "{text}");
            }
        }
    }

    #[test]
    fn a_file_system_label_is_read_from_the_volume() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let mut disks = [disk("vda", None, &[]), disk("vdb", None, &["data"])];
        for (disk, at) in disks.iter_mut().zip([0, 1]) {
            disk.path = folder.path().join(&disk.name);
            let file = std::fs::File::create(&disk.path).unwrap();
            file.set_len(8192).unwrap();
            if at == 1 {
                file.write_all_at(b"\x53\xef", 1080).unwrap();
                file.write_all_at(b"kept", 1144).unwrap();
            }
        }
        let found = matching(&world, &disks, &EtcdFind::Label("kept".into()), None).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "vdb");
        assert!(
            list(&disks).contains("vdb (serial none, 1024 MiB, data)"),
            "{}",
            list(&disks)
        );
    }
}
