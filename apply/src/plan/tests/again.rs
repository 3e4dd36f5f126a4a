//! A plan after earlier runs: cut off, of another config, on disks that nothing names.

use super::*;

#[test]
fn a_run_that_was_cut_off_is_taken_up_where_it_ended() {
    let mut lab = lab();
    let device = &key("vdb");
    let device = Some(device.as_str());
    // The table was written and one file system begun: nothing is wiped again, the half-made one is made anew.
    lab.table("vdb", &[(1, entry("a", 1, 100)), (2, entry("b", 101, 922))]);
    let numbers = BTreeMap::from([
        ("$.storage.disks.0.partitions.0".to_owned(), 1),
        ("$.storage.disks.0.partitions.1".to_owned(), 2),
    ]);
    lab.journal
        .note_table("$.storage.disks.0", device, numbers, true)
        .unwrap();
    assert!(lab.plan(TWO).unwrap().tables[0].wipe, "begun is not done");
    lab.journal
        .note("$.storage.disks.0", device, Stage::Done)
        .unwrap();
    lab.put("vdb", 1 << 20, Kind::Xfs);
    let first = &part_key("vdb", 1, 2);
    let first = Some(first.as_str());
    lab.journal
        .note("$.storage.filesystems.0", first, Stage::Started)
        .unwrap();
    let unnumbered = TWO
        .replace(r#""number": 1, "#, "")
        .replace(r#", "number": 2"#, r#", "sizeMiB": 922"#);
    for text in [
        TWO.replace(r#""number": 2"#, r#""number": 2, "sizeMiB": 922"#),
        unnumbered,
    ] {
        let plan = lab.plan(&text).unwrap();
        assert!(!plan.tables[0].changes(), "{:?}", plan.tables[0]);
        assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
    }
    lab.journal
        .note("$.storage.filesystems.0", first, Stage::Done)
        .unwrap();
    let text = TWO.replace(r#""number": 2"#, r#""number": 2, "sizeMiB": 922"#);
    assert_eq!(
        lab.plan(&text).unwrap().filesystems[0].action,
        Some(FilesystemAction::Keep)
    );
    // Another disk at its place does not belong to that run.
    let real = lab.machine.world.sys.join("block/vdb");
    write(&real.join("serial"), "other");
    let other = text.replace("serial-vdb", "other");
    lab.refused(&other, "found xfs");
}

#[test]
fn what_a_run_of_another_config_made_is_in_nobodys_way() {
    let mut lab = lab();
    // An earlier attempt with another config made a table and file systems on the disk.
    lab.table("vdb", &[(1, entry("x", 1, 300)), (2, entry("y", 301, 500))]);
    lab.put("vdb", 1 << 20, Kind::Xfs);
    let kept = TWO.replace(r#""wipeTable": true"#, r#""wipeTable": false"#);
    assert_ne!(kept, TWO);
    lab.refused(&kept, "expected label");
    let state = tempfile::tempdir().unwrap();
    let mut before = DiskJournal::open(Some(state.path()), "another").unwrap();
    let at = "$.storage.disks.0";
    before
        .note_table(at, Some(&key("vdb")), BTreeMap::new(), true)
        .unwrap();
    lab.journal = DiskJournal::open(Some(state.path()), "this").unwrap();
    let plan = lab.plan(&kept).unwrap();
    assert!(plan.tables[0].wipe && plan.tables[0].fresh);
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
    // After this config made the table, the run is resumed as usual.
    lab.table("vdb", &[(1, entry("a", 1, 100)), (2, entry("b", 101, 922))]);
    lab.journal
        .note_table(at, Some(&key("vdb")), BTreeMap::new(), true)
        .unwrap();
    lab.journal
        .note(at, Some(&key("vdb")), Stage::Done)
        .unwrap();
    let text = kept.replace(r#""number": 2"#, r#""number": 2, "sizeMiB": 922"#);
    assert!(!lab.plan(&text).unwrap().tables[0].wipe);
}

/// Cut off while a file system was made on `vdb`; at the next boot another disk may have that name.
#[test]
fn a_disk_that_nothing_names_needs_consent_again() {
    const WHOLE: &str = r#""filesystems": [{"device": "/dev/vdb", "format": "ext4"}]"#;
    let mut lab = lab();
    let serial = lab.machine.world.sys.join("block/vdb/serial");
    let begun = |lab: &mut Lab| {
        lab.journal = DiskJournal::default();
        let plan = lab.plan(WHOLE).unwrap();
        let job = &plan.filesystems[0];
        lab.journal
            .note(&job.spec.at, job.key.as_deref(), Stage::Started)
            .unwrap();
    };
    // With a serial number: the same disk is taken up, another one is not.
    begun(&mut lab);
    lab.scatter("vdb", 0);
    let taken_up = |lab: &Lab| lab.plan(WHOLE).unwrap().filesystems[0].action.clone();
    assert_eq!(taken_up(&lab), Some(FilesystemAction::Remake));
    write(&serial, "other");
    lab.refused(WHOLE, "no known kind");
    write(&serial, "serial-vdb");
    write(
        &lab.machine.world.sys.join("block/vdc/serial"),
        "serial-vdb",
    );
    lab.refused(WHOLE, "no known kind");
    // Without: whatever is there needs consent, which the config can give.
    let mut lab = self::lab();
    let serial = lab.machine.world.sys.join("block/vdb/serial");
    std::fs::remove_file(&serial).unwrap();
    begun(&mut lab);
    lab.scatter("vdb", 0);
    lab.refused(
        WHOLE,
        "/dev/vdb (vdb) holds something else and wipeFilesystem is not set",
    );
    let consent = WHOLE.replace(r#""format""#, r#""wipeFilesystem": true, "format""#);
    lab.plan(&consent).unwrap();
}

/// Cut off while the first table of a disk was written: its remains are nobody's data.
#[test]
fn a_first_table_that_was_cut_off_is_written_again() {
    const PARTS: &str = r#""disks": [{"device": "/dev/vdb", "partitions": [{"number": 1}]}]"#;
    let mut lab = lab();
    let plan = lab.plan(PARTS).unwrap();
    let change = &plan.tables[0];
    lab.journal
        .note_table(&change.at, change.key.as_deref(), BTreeMap::new(), true)
        .unwrap();
    let path = lab.machine.world.dev.join("vdb");
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(b"half an array", GIB - (20 << 10))
        .unwrap();
    assert!(lab.plan(PARTS).unwrap().tables[0].write);
    write(&lab.machine.world.sys.join("block/vdb/serial"), "other");
    lab.refused(PARTS, "no known kind");
}

/// What an attempt with another config made on a disk that nothing names is known by the table that it wrote.
#[test]
fn what_another_config_made_on_a_disk_without_a_name_is_in_nobodys_way() {
    let mut lab = lab();
    std::fs::remove_file(lab.machine.world.sys.join("block/vdb/serial")).unwrap();
    lab.table("vdb", &[(1, entry("x", 1, 300))]);
    lab.scatter("vdb", 1 << 20);
    let config = r#""disks": [{"device": "/dev/vdb", "partitions": [{"number": 1, "label": "a", "sizeMiB": 500}]}],
        "filesystems": [{"device": "/dev/vdb1", "format": "ext4"}]"#;
    lab.refused(config, "expected");
    let state = tempfile::tempdir().unwrap();
    let mut before = DiskJournal::open(Some(state.path()), "another").unwrap();
    let key = format!("GPT {} of {GIB} bytes", Guid([2; 16]));
    before
        .note_table("$.storage.disks.0", Some(&key), BTreeMap::new(), true)
        .unwrap();
    lab.journal = DiskJournal::open(Some(state.path()), "this").unwrap();
    let plan = lab.plan(config).unwrap();
    assert!(plan.tables[0].wipe);
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
}

/// A partition is known by its disk's table where nothing names the disk, as on plain QEMU.
#[test]
fn a_partition_is_known_by_its_table() {
    let parts = r#""disks": [{"device": "/dev/vdb", "partitions": [{"number": 1, "label": "a", "sizeMiB": 100}]}],
        "filesystems": [{"device": "/dev/vdb1", "format": "ext4"}]"#;
    for named in [true, false] {
        let mut lab = lab();
        if !named {
            std::fs::remove_file(lab.machine.world.sys.join("block/vdb/serial")).unwrap();
        }
        let plan = lab.plan(parts).unwrap();
        let (change, job) = (&plan.tables[0], &plan.filesystems[0]);
        lab.journal
            .note_table(&change.at, change.key.as_deref(), BTreeMap::new(), true)
            .unwrap();
        lab.journal
            .note(&change.at, change.key.as_deref(), Stage::Done)
            .unwrap();
        lab.journal
            .note(&job.spec.at, job.key.as_deref(), Stage::Started)
            .unwrap();
        let file = File::options()
            .read(true)
            .write(true)
            .open(lab.machine.world.dev.join("vdb"))
            .unwrap();
        let mut table = change.table.clone().unwrap();
        table.write(&file).unwrap();
        lab.scatter("vdb", 1 << 20);
        let again = lab.plan(parts).unwrap();
        assert_eq!(again.filesystems[0].action, Some(FilesystemAction::Remake));
        // Another disk in the same slot, with a table of the same form.
        table.guid = Guid([8; 16]);
        table.write(&file).unwrap();
        lab.refused(parts, "no known kind");
    }
}

/// A disk was enlarged and its node replaced: the table, and the partition to its end, are older than the config's run.
#[test]
fn a_partition_to_the_former_end_of_a_disk_that_has_grown_is_kept() {
    use partition_table::PartitionAction;
    const REST: &str = r#""disks": [{"device": "/dev/vdb", "partitions": [
        {"number": 1, "label": "rest", "startMiB": 0, "sizeMiB": 0}]}]"#;
    let lab = lab();
    let path = lab.machine.world.dev.join("vdb");
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut made = lab.plan(REST).unwrap().tables.remove(0).table.unwrap();
    made.write(&file).unwrap();
    let end = made.last_usable;
    assert_eq!(made.entries[&1].last, end);
    file.set_len(2 * GIB).unwrap();
    let sectors = (2 * GIB / 512).to_string();
    write(&lab.machine.world.sys.join("block/vdb/size"), &sectors);
    let outcome = |text: &str| {
        let change = lab.plan(text).unwrap().tables.remove(0);
        let last = change.table.as_ref().unwrap().entries[&1].last;
        (change.actions, change.write, last)
    };
    let keep = (1, PartitionAction::Keep);
    assert_eq!(outcome(REST), (vec![keep], false, end));
    let resized = REST.replace(r#""label""#, r#""resize": true, "label""#);
    let all = Table::empty(512, 2 * GIB, Guid([1; 16])).unwrap();
    assert_eq!(
        outcome(&resized),
        (vec![(1, PartitionAction::Resize)], true, all.last_usable)
    );
    let anew = REST.replace(r#""device""#, r#""wipeTable": true, "device""#);
    assert_eq!(outcome(&anew).2, all.last_usable);
    // A table that is written for another partition leaves the former end to the run after it.
    let (gone, rest) = (entry("gone", 1, 100), made.entries.get_mut(&1).unwrap());
    rest.first = 101 * 2048;
    made.entries.insert(2, gone);
    made.write(&file).unwrap();
    let text = REST.replace(
        r#""startMiB": 0, "sizeMiB": 0}"#,
        r#""startMiB": 101, "sizeMiB": 0}, {"number": 2, "shouldExist": false, "wipePartitionEntry": true}"#,
    );
    let change = lab.plan(&text).unwrap().tables.remove(0);
    assert_eq!(change.actions, [(2, PartitionAction::Delete), keep]);
    change.table.unwrap().write(&file).unwrap();
    let absent = (2, PartitionAction::Absent);
    assert_eq!(outcome(&text), (vec![absent, keep], false, end));
}
