//! The search among disks: by each name, with doubles, copies, and disks that hang.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::*;
use linux::block::Partition;
use linux::disk_reader::Readers;
use linux::samples::hanging;
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
fn a_disk_that_hangs_at_its_superblock_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::below(folder.path(), Clock::Real);
    world.readers = Readers::with_patience(Duration::from_secs(1));
    let mut disks = ["vda", "vdb"].map(|name| disk(name, None, &[]));
    for disk in &mut disks {
        disk.path = folder.path().join(&disk.name);
        std::fs::create_dir_all(world.sys.join("block").join(&disk.name)).unwrap();
    }
    hanging(&disks[0].path);
    let file = std::fs::File::create(&disks[1].path).unwrap();
    file.set_len(8192).unwrap();
    file.write_all_at(b"\x53\xef", 1080).unwrap();
    file.write_all_at(b"kept", 1144).unwrap();
    let found = matching(&world, &disks, &EtcdFind::Label("kept".into()), None).unwrap();
    let names: Vec<&str> = found.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["vdb"]);
    let silent = linux::disk_answers::silent(&world);
    assert_eq!(silent[0].disk, "vda");
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
