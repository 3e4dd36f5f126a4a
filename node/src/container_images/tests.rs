//! containerd's data after one boot and several.

mod again;

use super::*;
use crate::bolt::{self, Bucket};
use linux::world::Clock;

const CONFIG: &str = r#"{"architecture":"amd64"}"#;

fn image(name: &str, hex: char) -> ContainerImage {
    let config = content(CONFIG).digest;
    let chain_id = format!("sha256:{}", hex.to_string().repeat(64));
    ContainerImage {
        names: vec![
            format!("slipway.local/{name}:1"),
            format!("slipway.local/{name}:baked"),
        ],
        manifest: format!(
            r#"{{"mediaType":"application/x","config":{{"digest":"{config}"}},"layers":[]}}"#
        ),
        config: CONFIG.to_owned(),
        folder: image::container_images::folder(&chain_id),
        chain_id,
    }
}

/// A node whose root has these images.
fn world(folder: &Path, key: &str, images: Vec<ContainerImage>) -> World {
    let world = World::below(folder, Clock::Fake(std::sync::atomic::AtomicI64::new(0)));
    let index = world.in_initrd(INDEX);
    fs::create_dir_all(index.parent().unwrap()).unwrap();
    let list = ContainerImages {
        key: key.to_owned(),
        images,
    };
    fs::write(index, serde_json::to_vec(&list).unwrap()).unwrap();
    world
}

fn data(world: &World, file: &str) -> Bucket {
    let path = world.in_initrd(CONTAINERD).join(file);
    bolt::read(&fs::read(path).unwrap()).unwrap()
}

const META: &str = "io.containerd.metadata.v1.bolt/meta.db";
const BACKEND: &str = "io.containerd.snapshotter.v1.overlayfs/metadata.db";

fn names(world: &World) -> Vec<String> {
    let meta = data(world, META);
    let v1 = meta
        .bucket("v1")
        .and_then(|v1| v1.bucket("k8s.io"))
        .unwrap();
    let images = v1.bucket("images").unwrap().buckets();
    images
        .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[test]
fn an_image_leads_to_its_files_in_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let image = image("etcd", 'a');
    let world = world(folder.path(), "0123456789abcdef", vec![image.clone()]);
    run(&world).unwrap();
    let meta = data(&world, META);
    let k8s = meta
        .bucket("v1")
        .and_then(|v1| v1.bucket("k8s.io"))
        .unwrap();
    let entry = k8s
        .bucket("images")
        .and_then(|all| all.bucket(&image.names[0]))
        .unwrap();
    let digest = entry.bucket("target").unwrap().value("digest").unwrap();
    let digest = std::str::from_utf8(digest).unwrap();
    let root = world.in_initrd(CONTAINERD);
    let blob = |digest: &str| {
        let name = digest.trim_start_matches("sha256:");
        fs::read_to_string(
            root.join("io.containerd.content.v1.content/blobs/sha256")
                .join(name),
        )
    };
    assert_eq!(blob(digest).unwrap(), image.manifest);
    assert_eq!(blob(&content(CONFIG).digest).unwrap(), CONFIG);
    let snapshot = k8s
        .bucket("snapshots")
        .and_then(|s| s.bucket("overlayfs"))
        .unwrap();
    let name = snapshot
        .bucket(&image.chain_id)
        .unwrap()
        .value("name")
        .unwrap();
    let backend = data(&world, BACKEND);
    let all = backend
        .bucket("v1")
        .and_then(|v1| v1.bucket("snapshots"))
        .unwrap();
    let id = all
        .bucket(std::str::from_utf8(name).unwrap())
        .unwrap()
        .value("id");
    assert_eq!(id, Some(&[1][..]));
    let link = root.join("io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs");
    assert_eq!(fs::read_link(link).unwrap(), Path::new(&image.folder));
}

#[test]
fn another_roots_images_take_the_place_of_the_earlier_ones_and_what_was_pulled_stays() {
    let folder = tempfile::tempdir().unwrap();
    let first = world(
        folder.path(),
        "1111111111111111",
        vec![image("etcd", 'a'), image("old", 'b')],
    );
    run(&first).unwrap();
    // A pulled image, and a snapshot of a container on a baked one.
    let path = first.in_initrd(CONTAINERD).join(META);
    let mut meta = bolt::read(&fs::read(&path).unwrap()).unwrap();
    meta.at(&["v1", "k8s.io", "images", "pulled:1", "target"])
        .put("digest", "sha256:0");
    meta.at(&["v1", "k8s.io", "snapshots", "overlayfs"])
        .sequence = 40;
    fs::write(&path, bolt::write(&meta)).unwrap();
    let second = world(
        folder.path(),
        "2222222222222222",
        vec![image("etcd", 'a'), image("new", 'c')],
    );
    run(&second).unwrap();
    let config = content(CONFIG).digest;
    assert_eq!(
        names(&second),
        [
            "pulled:1",
            config.as_str(),
            "slipway.local/etcd:1",
            "slipway.local/etcd:baked",
            "slipway.local/new:1",
            "slipway.local/new:baked"
        ]
    );
    let meta = data(&second, META);
    let snapshots = meta
        .bucket("v1")
        .and_then(|v1| v1.bucket("k8s.io"))
        .and_then(|k8s| k8s.bucket("snapshots"))
        .and_then(|all| all.bucket("overlayfs"))
        .unwrap();
    let new = snapshots
        .bucket(&image("new", 'c').chain_id)
        .unwrap()
        .value("name")
        .unwrap();
    assert!(new.starts_with(b"k8s.io/41/"), "{new:?}");
    let before = files(&second);
    run(&second).unwrap();
    assert_eq!(files(&second), before);
}

/// containerd's two files: number of the inode, and content.
fn files(world: &World) -> [(u64, Vec<u8>); 2] {
    use std::os::unix::fs::MetadataExt as _;
    [META, BACKEND].map(|name| {
        let path = world.in_initrd(CONTAINERD).join(name);
        (fs::metadata(&path).unwrap().ino(), fs::read(&path).unwrap())
    })
}

/// The snapshots that containerd knows, by their names.
fn snapshots(world: &World) -> Vec<(String, Bucket)> {
    let mut meta = data(world, META);
    let all = meta.at(&["v1", "k8s.io", "snapshots", "overlayfs"]);
    all.buckets()
        .map(|(name, of)| (String::from_utf8_lossy(name).into_owned(), of.clone()))
        .collect()
}

/// Its files are gone, so nothing may lead to them: neither what containerd unpacked on top of it, nor a container.
#[test]
fn a_snapshot_whose_folder_the_root_has_no_more_is_given_up_with_all_on_top_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (etcd, old) = (image("etcd", 'a'), image("old", 'b'));
    let both = vec![etcd.clone(), old.clone()];
    let first = world(folder.path(), "1111111111111111", both.clone());
    run(&first).unwrap();
    let path = first.in_initrd(CONTAINERD).join(META);
    let mut meta = bolt::read(&fs::read(&path).unwrap()).unwrap();
    for (name, parent) in [
        ("layer", old.chain_id.as_str()),
        ("on-layer", "layer"),
        ("on-etcd", etcd.chain_id.as_str()),
    ] {
        let all = meta.at(&["v1", "k8s.io", "snapshots", "overlayfs"]);
        all.at(&[parent, "children"]).put(name, "");
        let snapshot = all.at(&[name]);
        snapshot.put("name", format!("k8s.io/9/{name}"));
        snapshot.put("parent", parent);
        snapshot.at(&["labels"]).put("containerd.io/gc.root", "now");
    }
    fs::write(&path, bolt::write(&meta)).unwrap();
    let before = snapshots(&first);
    let second = world(folder.path(), "2222222222222222", vec![etcd.clone()]);
    run(&second).unwrap();
    let after = snapshots(&second);
    let names: Vec<&str> = after.iter().map(|(name, _)| name.as_str()).collect();
    let gone = format!("slipway.local/gone/{}", old.chain_id);
    assert_eq!(
        names,
        [
            "on-etcd",
            &*etcd.chain_id,
            "slipway.local/gone/layer",
            "slipway.local/gone/on-layer",
            &*gone
        ]
    );
    for (name, snapshot) in &after {
        let key = name.trim_start_matches("slipway.local/gone/");
        let (_, was) = before.iter().find(|(name, _)| name == key).unwrap();
        assert_eq!(snapshot.value("name"), was.value("name"), "{name}");
        match key == name {
            true => assert_eq!(snapshot, was),
            false => assert!(
                snapshot.value("parent").is_none() && snapshot.buckets().next().is_none(),
                "{name}: {snapshot:?}"
            ),
        }
    }
    // The earlier root again, before containerd's garbage collection: another snapshot, that of a root which has the folder.
    let again = world(folder.path(), "1111111111111111", both);
    run(&again).unwrap();
    let all = snapshots(&again);
    assert_eq!(all.len(), after.len() + 1, "{all:?}");
    let (_, new) = all.iter().find(|(name, _)| *name == old.chain_id).unwrap();
    assert!(new.value("name").unwrap().starts_with(b"k8s.io/3/"));
    let links = "io.containerd.snapshotter.v1.overlayfs/snapshots";
    let link = again.in_initrd(CONTAINERD).join(links).join("3/fs");
    assert_eq!(fs::read_link(link).unwrap(), Path::new(&old.folder));
}

/// An earlier Slipway's root says by a mark that containerd knows its images, which is true no more.
#[test]
fn another_root_leaves_no_mark_of_an_earlier_slipway() {
    let folder = tempfile::tempdir().unwrap();
    let world = world(folder.path(), "2222222222222222", vec![image("new", 'a')]);
    let mark = world
        .in_initrd(CONTAINERD)
        .join("slipway-images-1111111111111111");
    fs::create_dir_all(mark.parent().unwrap()).unwrap();
    fs::write(&mark, "").unwrap();
    let temporary = world.in_initrd(CONTAINERD).join(META);
    let temporary = temporary.with_file_name(".meta.db.new");
    // In place of the temporary file: the second of the two files cannot be written.
    fs::create_dir_all(&temporary).unwrap();
    run(&world).unwrap_err();
    assert!(!mark.exists());
    fs::remove_dir(&temporary).unwrap();
    run(&world).unwrap();
    assert!(names(&world).contains(&"slipway.local/new:1".to_owned()));
}

#[test]
fn a_boot_that_was_cut_off_between_the_files_takes_up_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let world = world(folder.path(), "1111111111111111", vec![image("etcd", 'a')]);
    run(&world).unwrap();
    fs::remove_file(world.in_initrd(CONTAINERD).join(META)).unwrap();
    run(&world).unwrap();
    let backend = data(&world, BACKEND);
    let all = backend
        .bucket("v1")
        .and_then(|v1| v1.bucket("snapshots"))
        .unwrap();
    assert_eq!(all.buckets().count(), 1);
    assert_eq!(all.sequence, 1);
}

#[test]
fn data_that_is_not_understood_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let world = world(folder.path(), "1111111111111111", vec![image("etcd", 'a')]);
    run(&world).unwrap();
    let path = world.in_initrd(CONTAINERD).join(META);
    let good = fs::read(&path).unwrap();
    let mut other = bolt::read(&good).unwrap();
    // Version 5, of a containerd behind 2.2.
    other.at(&["v1"]).put("version", [10]);
    for wrong in [b"not bbolt".to_vec(), bolt::write(&other)] {
        fs::write(&path, &wrong).unwrap();
        run(&world).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), wrong);
    }
}
