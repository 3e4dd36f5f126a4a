//! Partitions on real disks: loop devices, which need root and `/dev/loop-control`.

use std::os::unix::fs::FileExt;

use image::guid::Guid;

use super::*;
use linux::gpt::Entry;
use linux::gpt::Table;
use linux::host::{LoopDisk, skipped};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;

/// A disk of [`SIZE`] bytes.
struct Disk {
    sector: u64,
    loop_disk: LoopDisk,
}

impl Disk {
    fn new(sector: u32) -> Option<Self> {
        Some(Self {
            sector: sector.into(),
            loop_disk: LoopDisk::new(SIZE, sector)?,
        })
    }

    /// All of its bytes.
    fn content(&self) -> Vec<u8> {
        self.loop_disk.device.sync_all().unwrap();
        let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
        self.loop_disk.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn table(&self) -> Option<Table> {
        Table::read(&self.loop_disk.device, self.sector, SIZE).ok()
    }

    /// Applies a config's partitions to the disk.
    fn run(&self, storage: &str, journal: &mut DiskJournal) -> Result<Vec<String>> {
        let storage = storage.replace("DISK", &self.loop_disk.name);
        let text = format!(r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{{storage}}}}}"#);
        let (config, _) = ignition::Config::parse(text.as_bytes(), "t").unwrap();
        let storage = config.model().unwrap().storage.unwrap();
        let world = World::real();
        let devices = device::all(&world);
        let inputs = Inputs {
            storage: &storage,
            keys: &[],
            devices: &devices,
            system: None,
            rules: crate::target::Rules::NODE,
            journal,
        };
        let plan = plan::plan(&inputs, &mut || world.random_guid())
            .map_err(|problems| anyhow!(problems.lines.join("\n")))?;
        partitions(&world, &plan, journal)?;
        let actions = plan.tables.iter().flat_map(|change| &change.actions);
        Ok(actions
            .map(|(number, action)| format!("{number} {action:?}"))
            .collect())
    }

    /// The kernel's partitions: number, start and size in MiB.
    fn kernel(&self) -> Vec<(u32, u64, u64)> {
        let disk = block::disk(&World::real(), &self.loop_disk.name).unwrap();
        let parts = disk.partitions.iter();
        parts
            .map(|part| (part.number, part.start / MIB, part.size / MIB))
            .collect()
    }
}

/// Whether a partition of 5 MiB, labelled `data`, exists; the config's entry for it; the action, none if it is refused.
const ROWS: &[(bool, &str, Option<&str>)] = &[
    (false, r#""shouldExist": false"#, Some("1 Absent")),
    (
        false,
        r#""shouldExist": false, "wipePartitionEntry": true"#,
        Some("1 Absent"),
    ),
    (false, r#""label": "data", "sizeMiB": 5"#, Some("1 Create")),
    (
        false,
        r#""label": "data", "sizeMiB": 5, "wipePartitionEntry": true"#,
        Some("1 Create"),
    ),
    (true, r#""shouldExist": false"#, None),
    (
        true,
        r#""shouldExist": false, "wipePartitionEntry": true"#,
        Some("1 Delete"),
    ),
    (true, r#""label": "data", "sizeMiB": 5"#, Some("1 Keep")),
    (true, r#""label": "data", "sizeMiB": 6"#, None),
    (
        true,
        r#""label": "data", "sizeMiB": 6, "resize": true"#,
        Some("1 Resize"),
    ),
    (
        true,
        r#""label": "data", "sizeMiB": 4, "resize": true"#,
        Some("1 Resize"),
    ),
    (true, r#""label": "x", "sizeMiB": 6, "resize": true"#, None),
    (
        true,
        r#""label": "data", "sizeMiB": 5, "wipePartitionEntry": true"#,
        Some("1 Keep"),
    ),
    (
        true,
        r#""label": "x", "sizeMiB": 6, "wipePartitionEntry": true"#,
        Some("1 Recreate"),
    ),
];

/// The rows of the operator notes' table, and resizing, on a disk with one partition or none.
#[test]
fn the_wipe_and_exist_matrix_on_a_real_disk() {
    let there = |entry: &str| {
        format!(r#""disks": [{{"device": "/dev/DISK", "partitions": [{{"number": 1, {entry}}}]}}]"#)
    };
    for &(present, entry, expected) in ROWS {
        let Some(disk) = Disk::new(512) else { return };
        let mut journal = DiskJournal::default();
        if present {
            let first = there(r#""label": "data", "sizeMiB": 5"#);
            disk.run(&first, &mut journal).unwrap();
            assert_eq!(disk.kernel(), [(1, 1, 5)]);
        }
        let before = disk.content();
        let done = disk.run(&there(entry), &mut DiskJournal::default());
        match expected {
            Some(expected) => assert_eq!(done.unwrap(), [expected], "{entry}"),
            None => {
                let error = done.unwrap_err().to_string();
                assert!(
                    error.starts_with("$.storage.disks.0.partitions.0: partition 1"),
                    "{error}"
                );
                assert!(
                    disk.content() == before,
                    "{entry}: a refused disk was changed"
                );
            }
        }
        let size = match expected.map(|text| &text[2..]) {
            Some("Absent" | "Delete") => None,
            Some("Create" | "Keep") | None => Some(5),
            Some(_) if entry.contains(": 4") => Some(4),
            Some(_) => Some(6),
        };
        let kernel: Vec<_> = size.map(|size| (1, 1, size)).into_iter().collect();
        assert_eq!(disk.kernel(), kernel, "{entry}");
        let entries = disk.table().map_or(0, |table| table.entries.len());
        assert_eq!(entries, kernel.len(), "{entry}");
        if matches!(expected, Some("1 Keep" | "1 Absent")) {
            assert!(disk.content() == before, "{entry}: nothing was to be done");
        }
    }
}

#[test]
fn a_second_run_writes_nothing_on_disks_of_either_sector_size() {
    const WANTED: &str = r#""disks": [{"device": "/dev/DISK", "partitions": [
        {"label": "a", "number": 2, "sizeMiB": 10}, {"label": "b", "sizeMiB": 20}, {"label": "c"}]}]"#;
    for sector in [512, 4096] {
        let Some(disk) = Disk::new(sector) else {
            return;
        };
        let done = disk.run(WANTED, &mut DiskJournal::default()).unwrap();
        assert_eq!(done, ["2 Create", "1 Create", "3 Create"]);
        let kernel = disk.kernel();
        assert_eq!(kernel[..2], [(1, 11, 20), (2, 1, 10)]);
        let before = disk.content();
        let again = disk.run(WANTED, &mut DiskJournal::default()).unwrap();
        assert!(
            again.iter().all(|action| action.ends_with("Keep")),
            "{again:?}"
        );
        assert!(disk.content() == before);
    }
}

#[test]
fn a_partition_in_use_stays_and_its_neighbours_change() {
    let Some(disk) = Disk::new(512) else { return };
    let two = r#""disks": [{"device": "/dev/DISK", "partitions": [
        {"label": "a", "number": 1, "sizeMiB": 16}, {"label": "b", "number": 2, "sizeMiB": 10}]}]"#;
    disk.run(two, &mut DiskJournal::default()).unwrap();
    // Held by another device, as a mounted one is; the loop device is detached when it is closed.
    let path = format!("/dev/{}p1", disk.loop_disk.name);
    let folder = tempfile::tempdir().unwrap();
    let root = Programs {
        world: std::sync::Arc::new(World::real()),
        sysroot: "/".into(),
        in_image: false,
    };
    let Ok(program) = linux::tools::Tool::MkfsExt4.find(&root) else {
        skipped("this host has no mkfs.ext4");
        return;
    };
    linux::programs::succeed(&root, &program, &["-q", "-F", &path]).unwrap();
    let mounted = linux::mount::mount(
        &path,
        folder.path(),
        "ext4",
        linux::mount::Flags::empty(),
        "",
    );
    if let Err(error) = mounted {
        skipped(&format!("this host does not mount: {error:#}"));
        return;
    }
    let run = |storage: &str| disk.run(storage, &mut DiskJournal::default());
    let wiped = run(r#""disks": [{"device": "/dev/DISK", "wipeTable": true}]"#);
    let gone = run(
        r#""disks": [{"device": "/dev/DISK", "partitions": [{"number": 1, "shouldExist": false, "wipePartitionEntry": true}]}]"#,
    );
    let beside = run(r#""disks": [{"device": "/dev/DISK", "partitions": [
            {"number": 2, "label": "c", "sizeMiB": 15, "wipePartitionEntry": true}]}]"#);
    let kernel = disk.kernel();
    linux::mount::unmount(folder.path()).unwrap();
    assert!(wiped.unwrap_err().to_string().contains("in use"));
    assert!(gone.unwrap_err().to_string().contains("in use"));
    assert_eq!(beside.unwrap(), ["2 Recreate"]);
    assert_eq!(kernel, [(1, 1, 16), (2, 17, 15)]);
}

#[test]
fn tables_are_wiped_mended_and_taken_up_again() {
    let Some(disk) = Disk::new(512) else { return };
    let mut old = Table::empty(512, SIZE, Guid([1; 16])).unwrap();
    let entry = |first: u64| Entry {
        type_guid: image::layout::TYPE_LINUX,
        guid: Guid([2; 16]),
        first: first * 2048,
        last: (first + 10) * 2048 - 1,
        attributes: 0,
        label: "old".to_owned(),
    };
    old.entries.insert(1, entry(1));
    old.entries.insert(5, entry(20));
    old.write(&disk.loop_disk.device).unwrap();
    // The backup header is damaged: a config that only names the present partitions repairs it.
    disk.loop_disk
        .device
        .write_all_at(b"x", SIZE - 512 + 60)
        .unwrap();
    assert!(!disk.table().unwrap().sound);
    let same =
        r#""disks": [{"device": "/dev/DISK", "partitions": [{"number": 5, "label": "old"}]}]"#;
    assert_eq!(
        disk.run(same, &mut DiskJournal::default()).unwrap(),
        ["5 Keep"]
    );
    assert!(disk.table().unwrap().sound);
    assert_eq!(disk.kernel(), [(1, 1, 10), (5, 20, 10)]);
    // Bytes between the tables are never wiped.
    disk.loop_disk
        .device
        .write_all_at(b"data", 40 * MIB)
        .unwrap();
    let anew = r#""disks": [{"device": "/dev/DISK", "wipeTable": true, "partitions": [{"number": 1, "sizeMiB": 20}]}]"#;
    let mut journal = DiskJournal::default();
    assert_eq!(disk.run(anew, &mut journal).unwrap(), ["1 Create"]);
    assert_eq!(disk.kernel(), [(1, 1, 20)]);
    let (before, guid) = (disk.content(), disk.table().unwrap().guid);
    assert_eq!(
        disk.run(anew, &mut journal).unwrap(),
        ["1 Keep"],
        "the journal knows that it was wiped"
    );
    assert!(disk.content() == before);
    assert_eq!(disk.table().unwrap().guid, guid);
    let mut data = [0; 4];
    disk.loop_disk
        .device
        .read_exact_at(&mut data, 40 * MIB)
        .unwrap();
    assert_eq!(&data, b"data");
    let none = r#""disks": [{"device": "/dev/DISK", "wipeTable": true}]"#;
    disk.run(none, &mut DiskJournal::default()).unwrap();
    assert_eq!((disk.kernel(), disk.table().is_none()), (Vec::new(), true));
}

#[test]
fn nothing_is_planned_while_a_disk_does_not_answer() {
    let silent = Silent {
        disk: "vdb".to_owned(),
        shown: "vdb (serial x)".to_owned(),
        seconds: 10,
    };
    let none = with_doubt(Ok(DiskPlan::default()), &[]);
    assert!(none.is_ok());
    // It is waited for, as for a device that is missing.
    let problems = with_doubt(Ok(DiskPlan::default()), std::slice::from_ref(&silent)).unwrap_err();
    assert!(problems.missing);
    let line = "vdb (serial x) does not answer, and may be meant";
    assert_eq!(problems.lines, [line]);
    // A mistake in the config is reported at once.
    let wrong = plan::PlanProblems {
        lines: vec!["wrong".to_owned()],
        missing: false,
    };
    let problems = with_doubt(Err(wrong), &[silent]).unwrap_err();
    assert!(!problems.missing);
    assert_eq!(problems.lines, ["wrong", line]);
}
