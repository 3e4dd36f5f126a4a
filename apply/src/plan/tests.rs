use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::device;
use crate::fake::{Machine, write};
use crate::journal::disks::Stage;
use crate::partitions::table as partition_table;
use linux::filesystem::Kind;
use linux::gpt::Entry;
use linux::samples::filesystem as superblock;

mod adopt;
mod again;
mod stack;

const GIB: u64 = 1 << 30;

/// A system disk `vda` with the image's partitions and two blank disks with serial numbers.
struct Lab {
    machine: Machine,
    system: SystemDisk,
    journal: DiskJournal,
}

fn entry(label: &str, start: u64, size: u64) -> Entry {
    Entry {
        type_guid: layout::TYPE_LINUX,
        guid: Guid([9; 16]),
        first: start * 2048,
        last: (start + size) * 2048 - 1,
        attributes: 0,
        label: label.to_owned(),
    }
}

fn lab() -> Lab {
    let machine = Machine::new();
    let mut table = Table::empty(512, 4 * GIB, Guid([1; 16])).unwrap();
    let (_, file) = machine.add("vda", "virtio0/block/vda", "254:0", 0, 4 * GIB);
    for (number, label) in (1..).zip(IMAGE_LABELS) {
        table
            .entries
            .insert(number, entry(label, u64::from(number) * 100, 100));
    }
    // The other slot and `state` do not exist yet.
    let mut written = table.clone();
    written.entries.retain(|number, _| *number <= 3);
    written.write(&file).unwrap();
    for (name, number) in [("vdb", "254:16"), ("vdc", "254:32")] {
        let (real, _) = machine.add(name, &format!("virtio1/block/{name}"), number, 0, GIB);
        write(&real.join("serial"), &format!("serial-{name}"));
    }
    machine.mounted("");
    Lab {
        machine,
        system: SystemDisk {
            disk: "vda".to_owned(),
            table,
            var_minimum: GIB,
        },
        journal: DiskJournal::default(),
    }
}

impl Lab {
    fn plan(&self, storage: &str) -> Result<DiskPlan, PlanProblems> {
        self.plan_as(Rules::NODE, storage)
    }

    fn plan_as(&self, rules: Rules, storage: &str) -> Result<DiskPlan, PlanProblems> {
        let text = format!(r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{{storage}}}}}"#);
        let (config, _) = ignition::Config::parse(text.as_bytes(), "t").unwrap();
        let storage = config.model().unwrap().storage.unwrap();
        let devices = device::all(&self.machine.world);
        let volumes = storage.luks.iter().flatten();
        let keys: Vec<VolumeKeys> = volumes
            .map(|volume| VolumeKeys {
                file: volume.key_file.as_ref().map(|_| b"SECRET".to_vec()),
                ..VolumeKeys::default()
            })
            .collect();
        let inputs = Inputs {
            storage: &storage,
            keys: &keys,
            devices: &devices,
            system: (rules == Rules::NODE).then_some(&self.system),
            rules,
            journal: &self.journal,
        };
        plan(&inputs, &mut || Ok(Guid([7; 16])))
    }

    fn refused(&self, storage: &str, because: &str) {
        self.refused_as(Rules::NODE, storage, because);
    }

    fn refused_as(&self, rules: Rules, storage: &str, because: &str) {
        let problems = self.plan_as(rules, storage).expect_err(because);
        let text = problems.lines.join("\n");
        assert!(text.contains(because), "{storage}: {text}");
    }

    fn put(&self, disk: &str, start: u64, kind: Kind) {
        let file = File::options()
            .write(true)
            .open(self.machine.world.dev.join(disk))
            .unwrap();
        for (at, bytes) in superblock(kind) {
            file.write_all_at(&bytes, start + at).unwrap();
        }
    }

    /// Puts data of no known kind on a disk: more than lies between two samples of a probe.
    fn scatter(&self, disk: &str, at: u64) {
        let path = self.machine.world.dev.join(disk);
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&vec![7; 20 << 20], at).unwrap();
    }

    fn table(&self, disk: &str, entries: &[(u32, Entry)]) {
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.machine.world.dev.join(disk))
            .unwrap();
        let mut table = Table::empty(512, GIB, Guid([2; 16])).unwrap();
        table.entries = entries.iter().cloned().collect();
        table.write(&file).unwrap();
    }
}

/// By what a disk of the [`lab`] is known again.
fn key(disk: &str) -> String {
    format!("serial serial-{disk} of {GIB} bytes")
}

/// As [`key`], of a partition in the table with this byte in its GUID.
fn part_key(disk: &str, number: u32, table: u8) -> String {
    let guid = Guid([table; 16]);
    format!("{} partition {number} of GPT {guid}", key(disk))
}

const TWO: &str = r#""disks": [{"device": "/dev/disk/by-id/virtio-serial-vdb", "wipeTable": true, "partitions": [
    {"label": "a", "number": 1, "sizeMiB": 100}, {"label": "b", "number": 2}]}],
  "filesystems": [
    {"device": "/dev/disk/by-partlabel/a", "format": "ext4", "path": "/var/lib/a", "mountOptions": ["noatime"]},
    {"device": "/dev/vdb2", "format": "swap"},
    {"device": "/dev/vdc", "format": "xfs", "path": "/var/lib/c"}]"#;

#[test]
fn two_paths_to_one_disk_are_refused_as_such() {
    let lab = lab();
    for disk in ["vdb", "vdc"] {
        let wwid = lab
            .machine
            .world
            .sys
            .join("block")
            .join(disk)
            .join("device/wwid");
        write(&wwid, "naa.5000c500\n");
        lab.put(disk, 0, Kind::Xfs);
    }
    let because = "vdb or vdc, which are several paths to one disk (multipath, wwn 5000c500)";
    lab.refused(
        r#""disks": [{"device": "/dev/disk/by-id/wwn-0x5000c500"}]"#,
        because,
    );
    let because = "several paths to one disk (multipath, wwn 5000c500)";
    lab.refused(
        r#""filesystems": [{"device": "/dev/disk/by-label/data", "format": "xfs"}]"#,
        because,
    );
}

#[test]
fn partitions_that_do_not_exist_yet_are_found_by_every_name() {
    let plan = lab().plan(TWO).unwrap();
    let change = &plan.tables[0];
    assert!(change.wipe && change.write);
    assert_eq!(change.table.as_ref().unwrap().entries.len(), 2);
    let part = |number| DeviceRef::Partition("vdb".to_owned(), number);
    let targets: Vec<&DeviceRef> = plan.filesystems.iter().map(|job| &job.target).collect();
    assert_eq!(
        targets,
        [&part(1), &part(2), &DeviceRef::Device("vdc".to_owned())]
    );
    assert!(
        plan.filesystems
            .iter()
            .all(|job| job.action == Some(FilesystemAction::Make))
    );
    assert_eq!(plan.filesystems[0].stable, "virtio-serial-vdb partition 1");
    let mounts: Vec<&str> = plan
        .mounts
        .iter()
        .map(|(mount, _)| mount.path.as_str())
        .collect();
    assert_eq!(mounts, ["/var/lib/a", "/var/lib/c"]);
    for name in [
        "/dev/disk/by-id/virtio-serial-vdb-part1",
        "/dev/disk/by-partuuid/07070707-0707-4707-8707-070707070707",
    ] {
        let guid = "07070707-0707-4707-8707-070707070707";
        let text = format!(
            r#""disks": [{{"device": "/dev/vdb", "partitions": [{{"number": 1, "guid": "{guid}"}}]}}],
               "filesystems": [{{"device": "{name}", "format": "ext4"}}]"#
        );
        assert_eq!(lab().plan(&text).unwrap().filesystems[0].target, part(1));
    }
}

#[test]
fn all_problems_of_all_disks_are_told_at_once() {
    let lab = lab();
    lab.table("vdb", &[(1, entry("old", 1, 100))]);
    lab.put("vdc", 0, Kind::Xfs);
    let problems = lab
        .plan(
            r#""disks": [{"device": "/dev/vdb", "partitions": [{"number": 1, "label": "new"}]}],
               "filesystems": [{"device": "/dev/vdc", "format": "ext4"},
                 {"device": "/dev/vdd", "format": "ext4"},
                 {"device": "/dev/disk/by-partlabel/none", "format": "ext4"}]"#,
        )
        .unwrap_err();
    let text = problems.lines.join("\n");
    assert_eq!(problems.lines.len(), 4, "{text}");
    for spec in [
        "$.storage.disks.0.partitions.0: partition 1 does not match",
        "$.storage.filesystems.0: /dev/vdc (virtio-serial-vdc) holds something else",
        "expected ext4, or a blank device; found xfs, label \"data\"",
        "$.storage.filesystems.1.device: /dev/vdd does not exist",
        "vdb (1024 MiB, virtio-serial-vdb)",
        "by-partlabel/none does not exist",
    ] {
        assert!(text.contains(spec), "{spec}: {text}");
    }
    assert!(problems.missing);
}

#[test]
fn content_is_looked_at_where_the_partition_will_be() {
    let lab = lab();
    lab.put("vdb", 101 << 20, Kind::Ext4);
    let spec = |extra: &str| {
        format!(
            r#""disks": [{{"device": "/dev/vdb", "wipeTable": true, "partitions": [
                {{"number": 1, "startMiB": 101, "sizeMiB": 100}}]}}],
               "filesystems": [{{"device": "/dev/vdb1", {extra}}}]"#
        )
    };
    let action = |extra| {
        lab.plan(&spec(extra)).unwrap().filesystems[0]
            .action
            .clone()
    };
    assert_eq!(
        action(r#""format": "ext4", "label": "data""#),
        Some(FilesystemAction::Keep)
    );
    assert_eq!(
        action(r#""format": "xfs", "wipeFilesystem": true"#),
        Some(FilesystemAction::Remake)
    );
    lab.refused(&spec(r#""format": "xfs""#), "found ext4");
    lab.refused(
        &spec(r#""format": "ext4", "label": "other""#),
        "label \"other\"",
    );
}

#[test]
fn nothing_is_made_over_data_of_no_known_kind_without_consent() {
    let lab = lab();
    lab.scatter("vdb", 100 << 20);
    let whole = r#""filesystems": [{"device": "/dev/vdb", "format": "FORMAT"}]"#;
    let consent =
        |text: &str, key: &str| text.replace(r#""format""#, &format!(r#""{key}": true, "format""#));
    for rules in [Rules::NODE, Rules::ignition(true)] {
        for format in ["ext4", "swap"] {
            let text = whole.replace("FORMAT", format);
            let because = format!(
                "$.storage.filesystems.0: /dev/vdb (virtio-serial-vdb) holds something else and wipeFilesystem is not set; \
                 expected {format}, or a blank device; found data of no known kind (first seen at byte "
            );
            lab.refused_as(rules, &text, &because);
            let wiped = lab
                .plan_as(rules, &consent(&text, "wipeFilesystem"))
                .unwrap();
            assert_eq!(wiped.filesystems[0].action, Some(FilesystemAction::Remake));
        }
    }
    // Nothing is written for a device that is to hold no file system.
    lab.plan(&whole.replace("FORMAT", "none")).unwrap();
    // A table that is wiped, and a partition that is made, say nothing of the bytes below.
    let part = r#""disks": [{"device": "/dev/vdb", "wipeTable": true, "partitions": [{"number": 1}]}],
        "filesystems": [{"device": "/dev/vdb1", "format": "xfs"}]"#;
    lab.refused(
        part,
        "/dev/vdb1 (virtio-serial-vdb partition 1) holds something else",
    );
    lab.plan(&consent(part, "wipeFilesystem")).unwrap();
    let beside = part.replace(r#""number": 1"#, r#""number": 1, "sizeMiB": 90"#);
    let plan = lab.plan(&beside).unwrap();
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Make));
    let volume =
        r#""luks": [{"name": "v", "device": "/dev/vdb", "keyFile": {"source": "data:,SECRET"}}]"#;
    lab.refused(
        volume,
        "/dev/vdb (virtio-serial-vdb) cannot be used as it is and wipeVolume is not set",
    );
    let wiped = volume.replace(r#""keyFile""#, r#""wipeVolume": true, "keyFile""#);
    let plan = lab.plan(&wiped).unwrap();
    assert_eq!(plan.volumes[0].action, Some(volumes::VolumeAction::Remake));
}

#[test]
fn tables_that_go_are_no_data() {
    let lab = lab();
    lab.table("vdb", &[(1, entry("old", 1, 100))]);
    let whole = r#""disks": [{"device": "/dev/vdb", "wipeTable": true}], "filesystems": [{"device": "/dev/vdb", "format": "ext4"}]"#;
    let plan = lab.plan(whole).unwrap();
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Make));
    // The superblock goes with the table: the file system is not there any more, and its data is not given up.
    lab.put("vdb", 0, Kind::Xfs);
    lab.scatter("vdb", 100 << 20);
    lab.refused(whole, "no known kind");
    // A disk that has grown keeps the backup of its table where its end was: here where the second partition will be.
    let mut table = Table::empty(512, GIB / 2, Guid([2; 16])).unwrap();
    table.entries.insert(1, entry("old", 1, 510));
    let path = lab.machine.world.dev.join("vdc");
    let file = File::options().read(true).write(true).open(path).unwrap();
    table.write(&file).unwrap();
    let grown = r#""disks": [{"device": "/dev/vdc", "partitions": [{"number": 2, "startMiB": 511}]}],
        "filesystems": [{"device": "/dev/vdc2", "format": "ext4"}]"#;
    let plan = lab.plan(grown).unwrap();
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Make));
    lab.scatter("vdc", 600 << 20);
    lab.refused(grown, "no known kind");
}

#[test]
fn a_disk_without_a_gpt_is_taken_only_blank_or_with_consent() {
    let lab = lab();
    let plain = r#""disks": [{"device": "/dev/vdb", "partitions": [{"number": 1}]}]"#;
    let wiped =
        r#""disks": [{"device": "/dev/vdb", "wipeTable": true, "partitions": [{"number": 1}]}]"#;
    assert!(lab.plan(plain).unwrap().tables[0].write);
    lab.scatter("vdb", 100 << 20);
    lab.refused(
        plain,
        "vdb (virtio-serial-vdb) has no GPT; expected one, a blank disk, or `wipeTable: true`; found data of no known kind",
    );
    assert!(lab.plan(wiped).unwrap().tables[0].wipe);
    lab.put("vdb", 0, Kind::Xfs);
    lab.refused(plain, "found xfs");
    assert!(lab.plan(wiped).unwrap().tables[0].wipe);
    lab.table("vdc", &[(1, entry("a", 1, 10))]);
    let file = File::options()
        .write(true)
        .open(lab.machine.world.dev.join("vdc"))
        .unwrap();
    for at in [512 + 60, GIB - 512 + 60] {
        file.write_all_at(b"x", at).unwrap();
    }
    lab.refused(
        &plain.replace("vdb", "vdc"),
        "both copies of the GPT on vdc (virtio-serial-vdc) are damaged",
    );
}

#[test]
fn a_damaged_copy_is_mended_and_a_sound_table_is_left_alone() {
    let lab = lab();
    let same = r#""disks": [{"device": "/dev/vdb", "partitions": [{"number": 1, "label": "a"}]}]"#;
    lab.table("vdb", &[(1, entry("a", 1, 10))]);
    assert!(!lab.plan(same).unwrap().tables[0].changes());
    let file = File::options()
        .write(true)
        .open(lab.machine.world.dev.join("vdb"))
        .unwrap();
    file.write_all_at(b"x", GIB - 512 + 60).unwrap();
    let plan = lab.plan(same).unwrap();
    assert!(
        plan.tables[0].write
            && plan.tables[0].actions == [(1, partition_table::PartitionAction::Keep)]
    );
    // Wiping without partitions leaves no table.
    let none = lab
        .plan(r#""disks": [{"device": "/dev/vdb", "wipeTable": true}]"#)
        .unwrap();
    assert!(none.tables[0].wipe && none.tables[0].table.is_none());
}

#[test]
fn the_boot_disk_of_coreos_is_the_one_that_the_root_is_on() {
    let lab = lab();
    let disk = "/dev/disk/by-id/coreos-boot-disk";
    // A partition that the config makes, and one that is there already.
    let storage = |number: u32, part: &str| {
        format!(
            r#""disks": [{{"device": "{disk}", "partitions": [{{"number": {number}, "label": "data", "sizeMiB": 1000}}]}}],
               "filesystems": [{{"device": "{disk}-part{part}", "format": "ext4", "path": "/var/data"}}]"#
        )
    };
    let plan = lab.plan(&storage(9, "9")).unwrap();
    assert_eq!(plan.tables[0].disk.name, "vda");
    assert_eq!(
        plan.filesystems[0].target,
        DeviceRef::Partition("vda".to_owned(), 9)
    );
    // The image's own partitions are refused by every name, as is a name that is nothing.
    lab.refused(
        &storage(1, "1"),
        "coreos-boot-disk-part1 belongs to the node itself",
    );
    lab.refused(
        &storage(9, "2"),
        "coreos-boot-disk-part2 belongs to the node itself",
    );
    lab.refused(&storage(9, "8"), "coreos-boot-disk-part8 does not exist");
    lab.refused(
        &format!(r#""disks": [{{"device": "{disk}"}}, {{"device": "/dev/vda"}}]"#),
        "the same disk",
    );
    // No disk of another system is the image's own.
    lab.refused_as(
        Rules::ignition(true),
        &format!(r#""disks": [{{"device": "{disk}"}}]"#),
        "coreos-boot-disk does not exist",
    );
}

#[test]
fn the_system_disk_keeps_what_is_the_nodes_own() {
    let lab = lab();
    lab.refused(
        r#""disks": [{"device": "/dev/vda", "wipeTable": true}]"#,
        "holds the running root",
    );
    for number in 1..=6 {
        let gone = format!(
            r#""disks": [{{"device": "/dev/vda", "partitions": [{{"number": {number}, "shouldExist": false, "wipePartitionEntry": true}}]}}]"#
        );
        lab.refused(&gone, "in use");
    }
    for label in IMAGE_LABELS {
        lab.refused(
            &format!(r#""filesystems": [{{"device": "/dev/disk/by-partlabel/{label}", "format": "ext4"}}]"#),
            "belongs to the node itself",
        );
    }
    lab.refused(
        r#""filesystems": [{"device": "/dev/vda", "format": "ext4", "wipeFilesystem": true}]"#,
        "belongs to the node",
    );
    let more =
        r#""disks": [{"device": "/dev/vda", "partitions": [{"label": "data", "sizeMiB": 1000}]}]"#;
    let plan = lab.plan(more).unwrap();
    let table = plan.tables[0].table.as_ref().unwrap();
    assert_eq!(table.entries.len(), 7);
    assert_eq!(table.entries[&7].first, 700 * 2048);
}

#[test]
fn room_for_var_is_kept_unless_the_config_brings_it() {
    let lab = lab();
    let filled = |format: &str, path: &str| {
        format!(
            r#""disks": [{{"device": "/dev/vda", "partitions": [{{"label": "data"}}]}}],
               "filesystems": [{{"device": "/dev/disk/by-partlabel/data", "format": "{format}", "path": "{path}"}}]"#
        )
    };
    lab.refused(
        &filled("xfs", "/var/lib/x"),
        "no space is left for var on vda",
    );
    lab.plan(&filled("xfs", "/var")).unwrap();
    let named = r#""disks": [{"device": "/dev/vda", "partitions": [{"label": "var"}]}]"#;
    lab.plan(named).unwrap();
}

#[test]
fn what_is_in_use_and_what_is_named_twice_is_refused() {
    let lab = lab();
    lab.table("vdb", &[(1, entry("a", 1, 10))]);
    lab.machine.add(
        "vdb1",
        "virtio1/block/vdb/vdb1",
        "254:17",
        1 << 20,
        10 << 20,
    );
    lab.machine
        .mounted("25 1 254:17 / /x rw - ext4 /dev/root rw\n");
    lab.refused(
        r#""disks": [{"device": "/dev/vdb", "wipeTable": true}]"#,
        "vdb1 in use",
    );
    lab.refused(
        r#""filesystems": [{"device": "/dev/vdb1", "format": "ext4"}]"#,
        "/dev/vdb1 is in use",
    );
    lab.refused(
        r#""filesystems": [{"device": "/dev/vdb", "format": "ext4", "wipeFilesystem": true}]"#,
        "/dev/vdb is in use",
    );
    lab.refused(
        r#""disks": [{"device": "/dev/vdc"}, {"device": "/dev/disk/by-id/virtio-serial-vdc"}]"#,
        "the same disk as that of $.storage.disks.0",
    );
    lab.refused(
        r#""filesystems": [{"device": "/dev/vdc", "format": "ext4"}, {"device": "/dev/disk/by-id/virtio-serial-vdc", "format": "ext4"}]"#,
        "the same device as that of $.storage.filesystems.0",
    );
    lab.refused(
        r#""disks": [{"device": "/dev/vdb1"}]"#,
        "expected a whole disk",
    );
    lab.refused(
        r#""disks": [{"device": "/dev/vdc", "partitions": [{"number": 1}]}], "filesystems": [{"device": "/dev/vdc", "format": "ext4"}]"#,
        "has partitions",
    );
    lab.table("vdc", &[(1, entry("a", 1, 10))]);
    lab.refused(
        r#""filesystems": [{"device": "/dev/disk/by-partlabel/a", "format": "ext4"}]"#,
        "virtio-serial-vdb partition 1 or virtio-serial-vdc partition 1",
    );
    lab.refused(
        r#""filesystems": [{"device": "/srv/x", "format": "ext4"}]"#,
        "not a device name",
    );
    lab.refused(
        r#""filesystems": [{"device": "/dev/vdc1", "format": "ext4", "path": "/home/x"}]"#,
        "/var/home/x",
    );
}
