//! Devices by every form of name, arrays, several paths, copies, and disks that hang.

use std::os::unix::fs::FileExt;

use std::sync::Arc;

use super::*;
use crate::fake::{Machine, write};
use linux::disk_answers::{silent, still_silent};
use linux::disk_reader::Readers;
use linux::samples::{hanging, table as sample, wake};
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
    machine
        .mounted("25 1 254:3 / / ro - xfs /dev/root ro\n26 1 0:23 / /x ro - btrfs nonsense ro\n");
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
fn a_disk_that_hangs_where_a_file_system_begins_is_left_out_until_it_answers() {
    let mut machine = machine();
    machine.world.readers = Readers::with_patience(Duration::from_secs(2));
    let names = || -> Vec<String> {
        let devices = all(&machine.world).into_iter();
        devices.map(|device| device.name).collect()
    };
    assert_eq!(names(), ["nvme0n1", "sda", "vda", "vda1", "vda3"]);
    let before = silent(&machine.world);
    assert!(before.is_empty(), "{before:?}");
    // The table of its disk can be read.
    let pci = "pci0000:00/0000:00:04.0/virtio1/block/vda";
    machine.add("vda2", &format!("{pci}/vda2"), "254:2", 2 << 20, 1 << 20);
    let node = machine.world.dev.join("vda2");
    fs::remove_file(&node).unwrap();
    hanging(&node);
    assert_eq!(names(), ["nvme0n1", "sda"]);
    assert_eq!(silent(&machine.world)[0].disk, "vda");
    let _awake = wake(&node);
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !still_silent(&machine.world).is_empty() {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    let all = ["nvme0n1", "sda", "vda", "vda1", "vda2", "vda3"];
    assert_eq!(names(), all);
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
