//! Tells containerd of the container images in the root before it starts: nothing is imported, and no file is copied.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use data_encoding::HEXLOWER;
use image::container_images::{ContainerImage, ContainerImages, INDEX};
use linux::atomic_file;
use linux::world::World;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::containerd::{Containerd, Content};

/// containerd's data.
const CONTAINERD: &str = "/var/lib/containerd";

/// What roots of an earlier Slipway leave beside containerd's data, before their key: they take the images of that root for known as long
/// as it is there, whatever containerd has.
const MARK: &str = "slipway-images-";

/// Writes the images of the root into containerd's data, in place of those of an earlier root, and what is missing or different of them
/// now. Nothing is written where all is as it should be.
pub(crate) fn run(world: &World) -> Result<()> {
    let index = world.in_initrd(INDEX);
    let text = atomic_file::read(&index)?.with_context(|| format!("{INDEX} is missing"))?;
    let list: ContainerImages =
        serde_json::from_slice(&text).with_context(|| format!("reading {INDEX}"))?;
    let root = world.in_initrd(CONTAINERD);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut containerd = Containerd::open(&root, now)?;
    let contents: Vec<Contents> = list.images.iter().map(Contents::of).collect();
    let names = contents.iter().flat_map(Contents::names).collect();
    containerd.forget_ours_but(&names);
    let folders: BTreeSet<&str> = list.images.iter().map(|image| &*image.folder).collect();
    let gone = containerd.give_up_snapshots(&folders);
    for contents in &contents {
        let name = contents.image.names.first().map_or("", String::as_str);
        add(&mut containerd, contents, &list.key).with_context(|| format!("the image {name}"))?;
    }
    let number = list.images.len();
    if !containerd.is_changed() {
        tracing::info!("containerd knows the {number} images of the root");
        return Ok(());
    }
    // Before anything else: an earlier Slipway's root that boots next would stay with this one's images.
    forget_marks(&root)?;
    containerd.write()?;
    tracing::info!(
        "containerd is told of {number} images of the root; {gone} snapshots of earlier roots are given up"
    );
    Ok(())
}

/// An image and what containerd has of it.
struct Contents<'a> {
    image: &'a ContainerImage,
    manifest: Content<'a>,
    config: Content<'a>,
}

impl<'a> Contents<'a> {
    fn of(image: &'a ContainerImage) -> Self {
        Self {
            manifest: content(&image.manifest),
            config: content(&image.config),
            image,
        }
    }

    /// Its names, and that by its config, by which the kubelet knows it.
    fn names(&self) -> impl Iterator<Item = String> {
        let names = self.image.names.iter().chain([&self.config.digest]);
        names.cloned()
    }
}

/// The parts of a manifest that are needed here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    media_type: String,
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    digest: String,
}

fn add(containerd: &mut Containerd, contents: &Contents, key: &str) -> Result<()> {
    let Contents {
        image,
        manifest,
        config,
    } = contents;
    let read: Manifest = serde_json::from_str(&image.manifest).context("reading its manifest")?;
    ensure!(
        read.config.digest == config.digest,
        "its manifest names the config {}, the list has {}",
        read.config.digest,
        config.digest
    );
    containerd.add_snapshot(&image.chain_id, &image.folder)?;
    // What belongs to what, for containerd's garbage collection: image, manifest, config, snapshot.
    let snapshot = (
        "containerd.io/gc.ref.snapshot.overlayfs",
        image.chain_id.as_str(),
    );
    containerd.add_content(config, &[snapshot])?;
    let refers = (
        "containerd.io/gc.ref.content.config",
        config.digest.as_str(),
    );
    containerd.add_content(manifest, &[refers])?;
    for name in contents.names() {
        containerd.add_image(&name, manifest, &read.media_type, key);
    }
    Ok(())
}

fn content(text: &str) -> Content<'_> {
    let digest = Sha256::digest(text.as_bytes());
    Content {
        digest: format!("sha256:{}", HEXLOWER.encode(&digest)),
        bytes: text.as_bytes(),
    }
}

/// Removes the marks of all roots.
fn forget_marks(root: &Path) -> Result<()> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("reading {}", root.display()))?,
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(MARK) {
            atomic_file::remove(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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

    /// What became of an image after its first boot, and is to be as the root has it at the next one.
    #[test]
    fn an_image_that_was_removed_or_replaced_is_the_roots_again_at_the_next_boot() {
        type Change = fn(&Path, &mut Bucket, &ContainerImage);
        fn k8s<'a>(meta: &'a mut Bucket, what: &str) -> &'a mut Bucket {
            meta.at(&["v1", "k8s.io", what])
        }
        fn blob(root: &Path, text: &str) -> std::path::PathBuf {
            let digest = content(text).digest;
            root.join("io.containerd.content.v1.content/blobs/sha256")
                .join(digest.trim_start_matches("sha256:"))
        }
        const FILES: &str = "io.containerd.snapshotter.v1.overlayfs/snapshots/1";
        let changes: [(&str, Change); 7] = [
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
        for (what, change) in changes {
            let folder = tempfile::tempdir().unwrap();
            let image = image("etcd", 'a');
            let world = world(folder.path(), "1111111111111111", vec![image.clone()]);
            run(&world).unwrap();
            let root = world.in_initrd(CONTAINERD);
            let mut meta = data(&world, META);
            change(&root, &mut meta, &image);
            fs::write(root.join(META), bolt::write(&meta)).unwrap();
            run(&world).unwrap();
            let again = files(&world);
            // It is whole, and so the next boot writes nothing.
            let mut meta = data(&world, META);
            let config = content(CONFIG).digest;
            let all = [&*config, &*image.names[0], &*image.names[1]];
            assert_eq!(names(&world), all, "{what}");
            for name in names(&world) {
                let target = k8s(&mut meta, "images").at(&[&name, "target"]);
                let manifest = content(&image.manifest).digest;
                assert_eq!(target.value("digest"), Some(manifest.as_bytes()), "{what}");
            }
            let all = k8s(&mut meta, "content").at(&["blob"]).clone();
            for text in [&image.manifest, &image.config] {
                assert_eq!(
                    fs::read_to_string(blob(&root, text)).unwrap(),
                    *text,
                    "{what}"
                );
                let entry = all.bucket(&content(text).digest).unwrap();
                assert!(entry.bucket("labels").is_some(), "{what}");
            }
            let key = image.chain_id.as_str();
            let snapshot = k8s(&mut meta, "snapshots").at(&["overlayfs"]).bucket(key);
            let backend = data(&world, BACKEND);
            let entries = backend.bucket("v1").and_then(|v1| v1.bucket("snapshots"));
            let name = snapshot.unwrap().value("name").unwrap();
            let entry = entries.unwrap().bucket(std::str::from_utf8(name).unwrap());
            let [id] = entry.unwrap().value("id").unwrap() else {
                panic!("{what}: {entry:?}");
            };
            let link = root.join(FILES).with_file_name(id.to_string()).join("fs");
            assert_eq!(
                fs::read_link(link).unwrap(),
                Path::new(&image.folder),
                "{what}"
            );
            run(&world).unwrap();
            assert_eq!(files(&world), again, "{what}");
        }
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
}
