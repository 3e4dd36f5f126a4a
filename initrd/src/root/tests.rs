//! The search for the root beside a disk that does not answer.

use std::fs;
use std::path::Path;
use std::time::Instant;

use image::layout::{self, root_guid, verity_guid};
use linux::disk_answers;
use linux::disk_reader::Readers;
use linux::samples::{self, hanging, wake};
use linux::world::Clock;

use super::*;

const HASH: RootHash = RootHash([0xab; 32]);
const SIZE: u64 = 64 * layout::MIB;

/// Adds a disk with the root of [`HASH`].
fn add(world: &World, name: &str) {
    let folder = world.sys.join("block").join(name);
    let mut table = samples::table(512, SIZE);
    for (number, guid, type_guid) in [
        (1, root_guid(&HASH), layout::TYPE_ROOT_X86_64),
        (3, verity_guid(&HASH), layout::TYPE_ROOT_VERITY_X86_64),
    ] {
        let entry = table.entries.get_mut(&number).unwrap();
        (entry.guid, entry.type_guid) = (guid, type_guid);
        let part = folder.join(format!("{name}{number}"));
        fs::create_dir_all(&part).unwrap();
        for (file, value) in [
            ("partition", u64::from(number)),
            ("start", entry.first),
            ("size", entry.last + 1 - entry.first),
        ] {
            fs::write(part.join(file), format!("{value}\n")).unwrap();
        }
    }
    fs::write(folder.join("size"), format!("{}\n", SIZE / 512)).unwrap();
    let node = File::create_new(world.dev.join(name)).unwrap();
    node.set_len(SIZE).unwrap();
    table.write(&node).unwrap();
}

/// A machine whose root is on `vdb`, and whose disk `vda` hangs; that disk's own node is `copy`.
fn machine(folder: &Path) -> Boot {
    let mut world = World::below(folder, Clock::Real);
    world.readers = Readers::with_patience(Duration::from_secs(2));
    fs::create_dir_all(&world.dev).unwrap();
    fs::write(world.dev.join("console"), "").unwrap();
    for name in ["vda", "vdb"] {
        add(&world, name);
    }
    let node = world.dev.join("vda");
    fs::rename(&node, world.dev.join("copy")).unwrap();
    hanging(&node);
    let mut boot = Boot::of_tests(&Arc::new(world));
    boot.cmdline.roothash = Some(HASH);
    boot
}

#[test]
fn a_disk_that_hangs_keeps_no_root_from_being_found() {
    let folder = tempfile::tempdir().unwrap();
    let boot = machine(folder.path());
    let world = &boot.world;
    let (halves, disk, search) = find(&boot, &HASH).unwrap();
    assert_eq!((halves.data.as_str(), disk.name.as_str()), ("vdb1", "vdb"));
    assert_eq!(search.examined, ["vdb"]);
    let console = fs::read_to_string(world.dev.join("console")).unwrap();
    assert!(
        console.starts_with("slipway: vda has not answered for "),
        "{console}"
    );
    let root = Root {
        programs: Programs::of_image(Arc::clone(world)),
        disk: Some(disk),
        verity: None,
        search,
    };
    // A node that was provisioned goes on, at once.
    let began = Instant::now();
    refuse_copies(&boot, &root).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
    // The disk answers, and is a copy.
    let node = world.dev.join("vda");
    let awake = wake(&node);
    fs::rename(world.dev.join("copy"), &node).unwrap();
    while !disk_answers::still_silent(world).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(awake);
    let text = refuse_copies(&boot, &root).unwrap_err().to_string();
    assert!(text.contains("vda") && text.contains("vdb"), "{text}");
}

#[test]
fn a_report_of_a_root_that_is_absent_names_the_disk_that_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let boot = machine(folder.path());
    let world = &boot.world;
    // The disk with the root is the one that hangs.
    let other = File::options().write(true).open(world.dev.join("vdb"));
    let (other, zeros) = (other.unwrap(), vec![0_u8; 1 << 20]);
    for at in [0, SIZE - layout::MIB] {
        other.write_all_at(&zeros, at).unwrap();
    }
    let disks = block::disks(world);
    let fault = with_silent(world, find::absent(&disks, &HASH, None));
    assert_eq!(fault.what, "the root is on no disk of this machine");
    let found = fault.found.unwrap();
    assert!(
        found.starts_with("vdb (") && found.contains("; and vda, which has not answered for "),
        "{found}"
    );
    assert!(
        fault
            .fix
            .unwrap()
            .starts_with("examine the disk that does not answer")
    );
}
