//! Devices that an earlier run in Ignition's place left.

use super::*;
use linux::samples::member;

const THEIRS: Rules = Rules::ignition(true);

const STACK: &str = r#""raid": [{"name": "pair", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"]}],
  "luks": [{"name": "vault", "device": "/dev/md/pair", "keyFile": {"source": "data:,SECRET"}}],
  "filesystems": [{"device": "/dev/mapper/vault", "format": "ext4", "path": "/srv"}]"#;

impl Lab {
    /// Makes a device a member of the array with this UUID, called `pair`.
    fn join(&self, disk: &str, array: u8) {
        self.join_at(disk, 0, array);
    }

    /// As [`Lab::join`], of a partition that begins at this byte.
    fn join_at(&self, disk: &str, start: u64, array: u8) {
        let path = self.machine.world.dev.join(disk);
        let file = File::options().write(true).open(path).unwrap();
        let bytes = member(4096, array, "any:pair", 1, 2);
        file.write_all_at(&bytes, start + 4096).unwrap();
    }

    /// Makes `holder` a holder of `disk`.
    fn holds(&self, holder: &str, disk: &str, place: &str) {
        let devices = self.machine.world.sys.join("devices");
        let (above, below) = (
            format!("virtual/block/{holder}/slaves/{disk}/dev"),
            format!("{place}/holders/{holder}/dev"),
        );
        write(&devices.join(above), "");
        write(&devices.join(below), "");
    }

    /// Starts the array, and opens the volume on it, which holds a file system.
    fn run(&self) {
        for disk in ["vdb", "vdc"] {
            self.join(disk, 7);
            self.holds("md127", disk, &format!("virtio1/block/{disk}"));
        }
        let place = "virtual/block/md127";
        let (real, _) = self.machine.add("md127", place, "9:127", 0, GIB / 2);
        write(&real.join("md/array_state"), "clean\n");
        self.put("md127", 0, Kind::Luks2);
        self.holds("dm-0", "md127", place);
        let place = "virtual/block/dm-0";
        let (real, _) = self.machine.add("dm-0", place, "253:0", 0, GIB / 4);
        write(&real.join("dm/name"), "vault\n");
        self.put("dm-0", 0, Kind::Ext4);
    }
}

#[test]
fn what_runs_and_is_open_is_used_as_it_is() {
    let lab = lab();
    let plan = lab.plan_as(THEIRS, STACK).unwrap();
    assert!(!plan.arrays[0].made && plan.volumes[0].open.is_none());
    lab.run();
    lab.machine
        .mounted("25 1 253:0 / /sysroot/srv rw - ext4 /dev/mapper/vault rw\n");
    let by_node = STACK.replace("/dev/mapper/vault", "/dev/dm-0");
    for storage in [STACK, &by_node] {
        let plan = lab.plan_as(THEIRS, storage).unwrap();
        let array = &plan.arrays[0];
        assert!(array.made && array.running.as_deref() == Some("md127"));
        let volume = &plan.volumes[0];
        assert_eq!(volume.target, DeviceRef::Array("pair".to_owned()));
        assert_eq!(volume.action, Some(volumes::VolumeAction::Open));
        assert_eq!(volume.open.as_deref(), Some("dm-0"));
        let job = &plan.filesystems[0];
        assert_eq!(job.target, DeviceRef::Volume("vault".to_owned()));
        assert_eq!(job.action, Some(FilesystemAction::Keep));
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    }
}

#[test]
fn what_is_used_is_not_made_anew() {
    let lab = lab();
    lab.run();
    lab.machine
        .mounted("25 1 253:0 / /sysroot/srv rw - ext4 /dev/mapper/vault rw\n");
    for (from, to, because) in [
        (
            r#""pair", "level""#,
            r#""other", "level""#,
            "$.storage.raid.0.devices.0: /dev/vdb is in use",
        ),
        ("raid1", "raid0", "/dev/vdc is in use"),
        (
            r#""keyFile""#,
            r#""wipeVolume": true, "keyFile""#,
            "$.storage.luks.0: /dev/md/pair is in use",
        ),
        (
            r#""keyFile""#,
            r#""label": "other", "keyFile""#,
            "wipeVolume is not set",
        ),
        (
            r#"{"name": "vault""#,
            r#"{"name": "second""#,
            "$.storage.luks.0: /dev/md/pair is in use",
        ),
        (
            r#""path""#,
            r#""wipeFilesystem": true, "path""#,
            "$.storage.filesystems.0: /dev/mapper/vault is in use",
        ),
        (r#""path""#, r#""label": "x", "path""#, "wipeFilesystem"),
        (
            r#""device": "/dev/md/pair""#,
            r#""device": "/dev/vda3""#,
            "/dev/mapper/vault exists already",
        ),
    ] {
        lab.refused_as(THEIRS, &STACK.replace(from, to), because);
    }
}

#[test]
fn an_array_that_stands_still_is_started_if_it_is_whole() {
    let lab = lab();
    lab.join("vdb", 7);
    let not_whole = "$.storage.raid.0: the array pair is there, but not whole";
    lab.refused_as(THEIRS, STACK, not_whole);
    lab.join("vdc", 8);
    lab.refused_as(THEIRS, STACK, not_whole);
    lab.join("vdc", 7);
    let plan = lab.plan_as(THEIRS, STACK).unwrap();
    let array = &plan.arrays[0];
    assert!(array.made && array.running.is_none());
    assert_eq!(plan.volumes[0].action, None);
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    // An array with another level is overwritten, as Ignition does.
    let other = STACK.replace("raid1", "raid0");
    for rules in [THEIRS, Rules::NODE] {
        let storage = other.replace("/srv", "/var/lib/vault");
        let plan = lab.plan_as(rules, &storage).unwrap();
        assert!(!plan.arrays[0].made);
        assert_eq!(plan.warnings.len(), 2, "{:?}", plan.warnings);
    }
}

/// `state` is in memory at a boot by PXE, and new after a new installation: the data of the other disks is older.
#[test]
fn a_node_without_its_journal_starts_an_array_that_is_whole() {
    const ARRAY: &str = r#""raid": [{"name": "pair", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"]}],
      "filesystems": [{"device": "/dev/md/pair", "format": "ext4"}]"#;
    let mut lab = lab();
    lab.join("vdb", 7);
    let not_whole = "$.storage.raid.0: the array pair is there, but not whole";
    lab.refused(ARRAY, not_whole);
    // The superblock of this disk goes with its table.
    lab.join("vdc", 7);
    let wiped = format!(r#""disks": [{{"device": "/dev/vdc", "wipeTable": true}}], {ARRAY}"#);
    lab.refused(&wiped, not_whole);
    let plan = lab.plan(ARRAY).unwrap();
    assert!(plan.arrays[0].made && plan.warnings.is_empty());
    assert_eq!(plan.filesystems[0].action, None);
    // Cut off while it was made: the members of a half-made array look the same.
    let array = &plan.arrays[0];
    let mut note = |stage| {
        let key = array.key.as_deref();
        lab.journal.note(&array.spec.at, key, stage).unwrap();
        let plan = lab.plan(ARRAY).unwrap();
        (plan.arrays[0].made, plan.filesystems[0].action.clone())
    };
    let anew = Some(FilesystemAction::Remake);
    assert_eq!(note(Stage::Started), (false, anew.clone()));
    // Made, and cut off before its file system.
    assert_eq!(note(Stage::Done), (true, anew));
}

#[test]
fn an_array_on_partitions_that_this_config_makes_is_made() {
    const PARTS: &str = r#""disks": [
        {"device": "/dev/vdb", "partitions": [{"number": 1, "label": "left", "sizeMiB": 500}]},
        {"device": "/dev/vdc", "partitions": [{"number": 1, "label": "right", "sizeMiB": 500}]}],
      "raid": [{"name": "pair", "level": "raid1", "devices": ["/dev/vdb1", "/dev/vdc1"]}]"#;
    let mut lab = lab();
    let made = |lab: &Lab, storage: &str| lab.plan(storage).unwrap().arrays[0].made;
    lab.table("vdb", &[(1, entry("left", 1, 500))]);
    lab.join_at("vdb", 1 << 20, 7);
    // The other disk is a new one.
    lab.refused(PARTS, "found virtio-serial-vdc partition 1 outside of it");
    lab.join_at("vdc", 1 << 20, 7);
    lab.table("vdc", &[(1, entry("right", 1, 500))]);
    assert!(made(&lab, PARTS));
    let wiped = PARTS.replace(r#""partitions""#, r#""wipeTable": true, "partitions""#);
    let plan = lab.plan(&wiped).unwrap();
    assert!(!plan.arrays[0].made);
    assert_eq!(plan.warnings.len(), 2, "{:?}", plan.warnings);
    // Cut off between the tables and the array.
    for change in &plan.tables {
        let (at, key) = (&change.at, change.key.as_deref());
        let numbers = BTreeMap::new();
        lab.journal.note_table(at, key, numbers, true).unwrap();
        lab.journal.note(at, key, Stage::Done).unwrap();
    }
    assert!(!made(&lab, &wiped));
}

#[test]
fn an_array_that_something_has_begun_to_start_is_waited_for() {
    let lab = lab();
    for disk in ["vdb", "vdc"] {
        lab.join(disk, 7);
    }
    lab.holds("md127", "vdb", "virtio1/block/vdb");
    let problems = lab.plan_as(THEIRS, STACK).unwrap_err();
    assert!(problems.missing);
    assert_eq!(
        problems.lines,
        ["$.storage.raid.0.devices.0: /dev/vdb is in use"]
    );
}

#[test]
fn one_mistake_is_told_once() {
    let lab = lab();
    lab.join("vdb", 7);
    let problems = lab.plan_as(THEIRS, STACK).unwrap_err();
    assert_eq!(problems.lines.len(), 1, "{:?}", problems.lines);
    let bad = STACK.replace(r#"{"name": "vault""#, r#"{"name": "va ult""#);
    let bad = bad.replace("/dev/mapper/vault", "/dev/mapper/va ult");
    let problems = lab.plan_as(THEIRS, &bad).unwrap_err();
    assert_eq!(problems.lines.len(), 2, "{:?}", problems.lines);
    assert!(!problems.missing, "nothing that may still come is missing");
}
