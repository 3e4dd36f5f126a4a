//! What became of a container image after its first boot is made good at the next one.

use std::path::PathBuf;

use super::*;

/// What changes containerd's data: its folder, what its clients see, and the image.
type Change = fn(&Path, &mut Bucket, &ContainerImage);

/// The folder of the first snapshot.
const FILES: &str = "io.containerd.snapshotter.v1.overlayfs/snapshots/1";

const CHANGES: [(&str, Change); 7] = [
    ("removed, as by crictl rmi", |root, meta, image| {
        k8s(meta, "images").items.clear();
        k8s(meta, "content").at(&["blob"]).items.clear();
        k8s(meta, "snapshots").at(&["overlayfs"]).items.clear();
        for text in [&image.manifest, &image.config] {
            fs::remove_file(blob(root, text)).unwrap();
        }
        fs::remove_dir_all(root.join(FILES)).unwrap();
    }),
    ("one name is gone", |_, meta, image| {
        let name = image.names[1].as_bytes();
        k8s(meta, "images").items.remove(name).unwrap();
    }),
    ("pulled by the same name", |_, meta, image| {
        let entry = k8s(meta, "images").at(&[&image.names[0]]);
        entry.items.remove(b"labels".as_slice());
        entry.at(&["target"]).put("digest", "sha256:0");
    }),
    ("its config is another one", |root, _, image| {
        let file = blob(root, &image.config);
        fs::remove_file(&file).unwrap();
        fs::write(file, "{}").unwrap();
    }),
    ("its manifest lost what it refers to", |_, meta, image| {
        let digest = content(&image.manifest).digest;
        let blobs = k8s(meta, "content").at(&["blob", &digest]);
        blobs.items.remove(b"labels".as_slice()).unwrap();
    }),
    ("its files are elsewhere", |root, _, _| {
        let link = root.join(FILES).join("fs");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/var/tmp", link).unwrap();
    }),
    ("its files are nowhere", |root, _, _| {
        fs::remove_dir_all(root.join(FILES)).unwrap();
    }),
];

#[test]
fn an_image_that_was_removed_or_replaced_is_the_roots_again_at_the_next_boot() {
    for (what, change) in CHANGES {
        let folder = tempfile::tempdir().unwrap();
        let image = image("etcd", 'a');
        let world = world(folder.path(), "1111111111111111", vec![image.clone()]);
        run(&world).unwrap();
        let root = world.in_initrd(CONTAINERD);
        let mut meta = data(&world, META);
        change(&root, &mut meta, &image);
        fs::write(root.join(META), bolt::write(&meta)).unwrap();
        run(&world).unwrap();
        is_whole(&world, &image, what);
        // So the next boot writes nothing.
        let again = files(&world);
        run(&world).unwrap();
        assert_eq!(files(&world), again, "{what}");
    }
}

/// Names, contents, snapshot and files are those of the root.
fn is_whole(world: &World, image: &ContainerImage, what: &str) {
    let root = world.in_initrd(CONTAINERD);
    let mut meta = data(world, META);
    let config = content(CONFIG).digest;
    let all = [&*config, &*image.names[0], &*image.names[1]];
    assert_eq!(names(world), all, "{what}");
    for name in names(world) {
        let target = k8s(&mut meta, "images").at(&[&name, "target"]);
        let manifest = content(&image.manifest).digest;
        assert_eq!(target.value("digest"), Some(manifest.as_bytes()), "{what}");
    }
    let all = k8s(&mut meta, "content").at(&["blob"]).clone();
    for text in [&image.manifest, &image.config] {
        let found = fs::read_to_string(blob(&root, text)).unwrap();
        assert_eq!(found, *text, "{what}");
        let entry = all.bucket(&content(text).digest).unwrap();
        assert!(entry.bucket("labels").is_some(), "{what}");
    }
    let key = image.chain_id.as_str();
    let snapshot = k8s(&mut meta, "snapshots").at(&["overlayfs"]).bucket(key);
    let backend = data(world, BACKEND);
    let entries = backend.bucket("v1").and_then(|v1| v1.bucket("snapshots"));
    let name = snapshot.unwrap().value("name").unwrap();
    let entry = entries.unwrap().bucket(std::str::from_utf8(name).unwrap());
    let [id] = entry.unwrap().value("id").unwrap() else {
        panic!("{what}: {entry:?}");
    };
    let link = root.join(FILES).with_file_name(id.to_string()).join("fs");
    let files = fs::read_link(link).unwrap();
    assert_eq!(files, Path::new(&image.folder), "{what}");
}

/// A bucket of the kubelet's namespace.
fn k8s<'a>(meta: &'a mut Bucket, what: &str) -> &'a mut Bucket {
    meta.at(&["v1", "k8s.io", what])
}

/// The file of a content.
fn blob(root: &Path, text: &str) -> PathBuf {
    let digest = content(text).digest;
    root.join("io.containerd.content.v1.content/blobs/sha256")
        .join(digest.trim_start_matches("sha256:"))
}
