//! A search while a disk does not answer.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Instant;

use image::node::{EtcdSettings, EtcdVolume};
use linux::disk_reader::Readers;
use linux::samples::{hanging, wake};
use linux::world::Clock;

use super::*;

const DOUBT: &str = "a disk that does not answer may be the etcd volume";

/// A machine with an etcd disk, `vda`, whose file system's UUID consists of ones, and a disk `vdb` that hangs.
fn machine(folder: &Path) -> Arc<World> {
    let mut world = World::below(folder, Clock::Real);
    world.readers = Readers::with_patience(Duration::from_secs(2));
    fs::create_dir_all(&world.dev).unwrap();
    for name in ["vda", "vdb"] {
        let folder = world.sys.join("block").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("size"), "16384\n").unwrap();
    }
    fs::write(world.sys.join("block/vda/serial"), "etcd\n").unwrap();
    let disk = File::create(world.dev.join("vda")).unwrap();
    disk.set_len(8 << 20).unwrap();
    for (at, bytes) in [(1080, &b"\x53\xef\x01"[..]), (1128, &[1; 16])] {
        disk.write_all_at(bytes, at).unwrap();
    }
    hanging(&world.dev.join("vdb"));
    Arc::new(world)
}

/// Why a search fails.
fn failure(world: &Arc<World>, state: &Path) -> String {
    let timeline = Timeline::new(Arc::clone(world));
    let root = Programs::of_image(Arc::clone(world));
    let modules = Modules::none(Arc::clone(world));
    let settings: EtcdSettings = serde_json::from_str(r#"{"serial": "etcd"}"#).unwrap();
    let context = Context {
        world,
        timeline: &timeline,
        root: &root,
        system_disk: None,
        modules: &modules,
        settings: &settings,
        cluster: "prod",
        adopt: None,
        state,
        machine_id: "",
    };
    let mut settling = None;
    loop {
        let disks = block::disks(world);
        match search(context, &disks, &mut settling) {
            Ok(Search::Unsettled) => std::thread::sleep(Settling::pause()),
            Ok(_) => panic!("it is mounted, or absent"),
            Err(error) => return format!("{error:#}"),
        }
    }
}

fn record(state: &Path, filesystem: &str) {
    let volume = EtcdVolume {
        version: own::VERSION,
        filesystem: filesystem.to_owned(),
        cluster: "prod".to_owned(),
        member: None,
        adopted: None,
    };
    own::write(state, None, None, volume).unwrap();
}

#[test]
fn no_volume_is_formatted_or_adopted_while_a_disk_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (world, state) = (machine(folder.path()), folder.path().join("state"));
    fs::create_dir(&state).unwrap();
    // The node has no volume yet, or has another one, which may be on the other disk.
    for own in [None, Some("02020202-0202-0202-0202-020202020202")] {
        if let Some(uuid) = own {
            record(&state, uuid);
        }
        let text = failure(&world, &state);
        assert!(text.starts_with(DOUBT), "{own:?}: {text}");
        assert!(
            text.ends_with("found vda (serial etcd); vdb, which does not answer"),
            "{text}"
        );
    }
    let _awake = wake(&world.dev.join("vdb"));
    let until = Instant::now() + Duration::from_secs(30);
    while failure(&world, &state).starts_with(DOUBT) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    let text = failure(&world, &state);
    assert!(text.contains("is not this node's etcd volume"), "{text}");
}

#[test]
fn the_nodes_own_volume_is_taken_though_another_disk_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (world, state) = (machine(folder.path()), folder.path().join("state"));
    fs::create_dir(&state).unwrap();
    record(&state, "01010101-0101-0101-0101-010101010101");
    // Its device has no number here, without which nothing is mounted.
    let text = failure(&world, &state);
    assert!(text.contains("sys/class/block/vda/dev"), "{text}");
}
