//! Tells containerd of the container images in the root before it starts: nothing is imported, and no file is copied.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use data_encoding::HEXLOWER;
use image::container_images::{ContainerImage, ContainerImages, INDEX, mark};
use linux::atomic_file;
use linux::world::World;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::containerd::{Containerd, Content};

/// containerd's data.
const CONTAINERD: &str = "/var/lib/containerd";

/// Writes the images of the root into containerd's data, in place of those of an earlier root, and marks that it did.
pub(crate) fn run(world: &World) -> Result<()> {
    let index = world.in_initrd(INDEX);
    let text = atomic_file::read(&index)?.with_context(|| format!("{INDEX} is missing"))?;
    let list: ContainerImages =
        serde_json::from_slice(&text).with_context(|| format!("reading {INDEX}"))?;
    let root = world.in_initrd(CONTAINERD);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut containerd = Containerd::open(&root, now)?;
    containerd.forget_ours();
    for image in &list.images {
        let name = image.names.first().map_or("", String::as_str);
        add(&mut containerd, image, &list.key).with_context(|| format!("the image {name}"))?;
    }
    containerd.write()?;
    tracing::info!("containerd knows {} images of the root", list.images.len());
    leave_mark(world, &root, &list.key)
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

fn add(containerd: &mut Containerd, image: &ContainerImage, key: &str) -> Result<()> {
    let read: Manifest = serde_json::from_str(&image.manifest).context("reading its manifest")?;
    let (manifest, config) = (content(&image.manifest), content(&image.config));
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
    containerd.add_content(&config, &[snapshot])?;
    let refers = (
        "containerd.io/gc.ref.content.config",
        config.digest.as_str(),
    );
    containerd.add_content(&manifest, &[refers])?;
    for name in image.names.iter().chain([&config.digest]) {
        containerd.add_image(name, &manifest, &read.media_type, key);
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

/// Marks these images as known, and no others.
fn leave_mark(world: &World, root: &Path, key: &str) -> Result<()> {
    let ours = world.in_initrd(&mark(key));
    let prefix = mark("");
    let prefix = Path::new(&prefix)
        .file_name()
        .unwrap_or_default()
        .to_owned();
    for entry in std::fs::read_dir(root)?.flatten() {
        let name = entry.file_name();
        if name
            .to_string_lossy()
            .starts_with(&*prefix.to_string_lossy())
            && entry.path() != ours
        {
            atomic_file::remove(&entry.path())?;
        }
    }
    Ok(atomic_file::write(&ours, b"", 0o600)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bolt::{self, Bucket};
    use linux::world::Clock;
    use std::fs;

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
        assert!(world.in_initrd(&mark("0123456789abcdef")).exists());
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
        assert!(!second.in_initrd(&mark("1111111111111111")).exists());
        assert!(second.in_initrd(&mark("2222222222222222")).exists());
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
        // The same again changes nothing but times.
        run(&second).unwrap();
        assert_eq!(names(&second).len(), 6);
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
