//! Loading modules, without a kernel that has any.

use super::*;
use crate::disk_reader::Readers;
use crate::samples::{hanging, wake};
use crate::world::Clock;

fn module(name: &str, dependencies: &[&str], soft: &[&str], alias: &str) -> Module {
    Module {
        name: name.into(),
        path: format!("kernel/{name}.ko"),
        dependencies: dependencies.iter().map(|s| (*s).to_owned()).collect(),
        soft: soft.iter().map(|s| (*s).to_owned()).collect(),
        aliases: vec![alias.to_owned()],
        ..Module::default()
    }
}

fn index() -> ModuleIndex {
    ModuleIndex {
        release: "6.12".into(),
        modules: vec![
            module("dm_bufio", &["dm_mod"], &[], ""),
            module("dm_mod", &[], &[], ""),
            module("dm_verity", &["dm_bufio", "dm_mod"], &["sha256"], ""),
            module("sha256", &[], &[], ""),
            module("virtio_blk", &[], &[], "virtio:d00000002v*"),
        ],
        builtin: vec![],
        signed: false,
    }
}

fn order(threads: usize, done: &[&str]) -> Vec<String> {
    let index = index();
    let wanted: Vec<&Module> = ["dm_verity", "virtio_blk"]
        .iter()
        .filter_map(|name| index.module(name))
        .collect();
    let done = done.iter().map(|s| (*s).to_owned()).collect();
    let loaded = Mutex::new(Vec::new());
    Plan::new(&index, &wanted, &done).run(threads, |module| {
        loaded.lock().unwrap().push(module.name.clone());
    });
    loaded.into_inner().unwrap()
}

#[test]
fn each_module_comes_once_and_after_what_it_needs() {
    for threads in [1, 2, 4] {
        let order = order(threads, &[]);
        assert_eq!(order.len(), 5, "{order:?}");
        let at = |name: &str| order.iter().position(|n| n == name).unwrap();
        assert!(at("dm_mod") < at("dm_bufio"), "{order:?}");
        assert!(at("dm_bufio") < at("dm_verity"), "{order:?}");
        assert!(at("sha256") < at("dm_verity"), "{order:?}");
    }
    assert_eq!(order(1, &["dm_mod", "sha256"]).len(), 3);
}

#[test]
fn a_module_that_is_refused_for_its_signature_is_reported_with_the_key_that_keeps_it() {
    for refused in [Errno::EPERM, Errno::EKEYREJECTED] {
        assert!(unsigned(refused, false).is_some_and(|why| why.contains("module-signatures")));
        // Another reason then, as a key that the kernel does not know.
        assert_eq!(unsigned(refused, true), None);
    }
    assert_eq!(unsigned(Errno::ENOEXEC, false), None);
}

#[test]
fn a_circle_of_soft_dependencies_does_not_hang() {
    let index = ModuleIndex {
        modules: vec![module("a", &[], &["b"], ""), module("b", &[], &["a"], "")],
        ..ModuleIndex::default()
    };
    let wanted = [&index.modules[0]];
    let count = Mutex::new(0);
    Plan::new(&index, &wanted, &BTreeSet::new()).run(2, |_| *count.lock().unwrap() += 1);
    assert_eq!(*count.lock().unwrap(), 2);
}

#[test]
fn aliases_come_from_every_bus_and_a_missing_module_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let world = Arc::new(World::below(folder.path(), Clock::Real));
    let alias = "virtio:d00000002v00001AF4";
    let device = world.sys.join("bus/virtio/devices/virtio0");
    fs::create_dir_all(&device).unwrap();
    fs::write(device.join("modalias"), format!("{alias}\n")).unwrap();
    assert!(aliases(&world).contains(alias));
    let modules = world.in_initrd(image::paths::INITRD_MODULES).join("6.12");
    fs::create_dir_all(&modules).unwrap();
    let text = serde_json::to_string(&index()).unwrap();
    fs::write(modules.join(image::paths::INITRD_MODULES_INDEX), text).unwrap();
    let modules = Modules::open(Arc::clone(&world), "6.12").unwrap();
    // The file of virtio_blk does not exist, so loading it fails, with one message.
    assert_eq!(
        modules
            .load_for_devices(Network::Without)
            .into_iter()
            .collect::<Vec<_>>(),
        ["virtio_blk"]
    );
    assert!(!is_early(&modules.index.modules[4]));
    let error = modules
        .load(&["virtio_blk", "nothing"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("virtio_blk: opening"), "{error}");
    assert!(error.contains("nothing: neither"), "{error}");
}

#[test]
fn a_driver_is_not_waited_for_while_a_disk_has_stalled() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::below(folder.path(), Clock::Real);
    world.readers = Readers::with_patience(Duration::from_secs(3));
    let world = Arc::new(world);
    fs::create_dir_all(&world.dev).unwrap();
    fs::write(world.dev.join("console"), "").unwrap();
    let stalled = world.sys.join("block/vdb");
    let parameter = world.sys.join("module/module/parameters/async_probe");
    for place in [&stalled, parameter.parent().unwrap()] {
        fs::create_dir_all(place).unwrap();
    }
    let requests = |in_flight: u8| {
        let text = format!("1 0 8 0 0 0 0 0 {in_flight} 0 0\n");
        fs::write(stalled.join("stat"), text).unwrap();
    };
    let modules = world.in_initrd(image::paths::INITRD_MODULES).join("6.12");
    fs::create_dir_all(modules.join("kernel")).unwrap();
    let text = serde_json::to_string(&index()).unwrap();
    fs::write(modules.join(image::paths::INITRD_MODULES_INDEX), text).unwrap();
    let module = modules.join("kernel/virtio_blk.ko");
    hanging(&module);
    let load = || Modules::open(Arc::clone(&world), "6.12").unwrap();
    // Its own disk has stalled: the driver's start never ends.
    requests(1);
    let loaded = load();
    loaded.load(&["virtio_blk"]).unwrap();
    let console = fs::read_to_string(world.dev.join("console")).unwrap();
    let line = "slipway: vdb has not answered the kernel for 3 s: its driver is not waited for";
    assert_eq!(console.matches(line).count(), 1, "{console}");
    assert!(!world.readers.processes().is_empty());
    // A driver that has started meanwhile is not waited for as long again.
    let state = world.sys.join("module/dm_mod/initstate");
    fs::create_dir_all(state.parent().unwrap()).unwrap();
    hanging(&modules.join("kernel/dm_mod.ko"));
    fs::write(&state, "live\n").unwrap();
    let began = std::time::Instant::now();
    loaded.load(&["dm_mod"]).unwrap();
    assert!(began.elapsed() < Duration::from_secs(3));
    assert!(!parameter.exists());
    loaded.hand_over();
    assert_eq!(fs::read_to_string(&parameter).unwrap(), "Y");
    // Its process ends.
    drop(wake(&modules.join("kernel/dm_mod.ko")));
    // A driver that takes long for another reason is waited for.
    requests(0);
    let (said, heard) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = load();
            said.send(other.load(&["virtio_blk"]).is_err()).unwrap();
        });
        let waited = heard.recv_timeout(Duration::from_secs(5));
        let awake = wake(&module);
        assert!(waited.is_err(), "it was not waited for");
        // It is no module.
        assert!(heard.recv().unwrap());
        drop(awake);
    });
}

#[test]
fn the_command_line_gives_options_and_keeps_modules_out() {
    let folder = tempfile::tempdir().unwrap();
    let world = Arc::new(World::below(folder.path(), Clock::Real));
    let device = world.sys.join("bus/virtio/devices/virtio0");
    fs::create_dir_all(&device).unwrap();
    fs::write(device.join("modalias"), "virtio:d00000002v00001AF4\n").unwrap();
    fs::create_dir_all(&world.proc).unwrap();
    let cmdline =
        "bonding.max_bonds=2 dm-verity.prefetch_cluster=1 modprobe.blacklist=virtio-blk\n";
    fs::write(world.proc.join("cmdline"), cmdline).unwrap();
    let folder = world.in_initrd(image::paths::INITRD_MODULES).join("6.12");
    fs::create_dir_all(&folder).unwrap();
    let mut index = index();
    index.modules[2].options = "error_behavior=1".to_owned();
    index.modules[3].blacklisted = true;
    index.modules[3].aliases = index.modules[4].aliases.clone();
    let text = serde_json::to_string(&index).unwrap();
    fs::write(folder.join(image::paths::INITRD_MODULES_INDEX), text).unwrap();
    let modules = Modules::open(Arc::clone(&world), "6.12").unwrap();
    let both = "error_behavior=1 prefetch_cluster=1";
    assert_eq!(modules.options("dm_verity"), both);
    assert_eq!(modules.options("bonding"), "max_bonds=0 max_bonds=2");
    assert_eq!(modules.options("dm_mod"), "");
    // The device alone does not load it; its name does, here in vain.
    assert!(modules.load_for_devices(Network::With).is_empty());
    let error = modules.load(&["virtio_blk"]).unwrap_err().to_string();
    assert!(error.contains("virtio_blk: opening"), "{error}");
}
