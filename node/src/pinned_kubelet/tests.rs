//! A registry on loopback that serves the container as registries do, and what a node makes of it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use fetch::oci::architecture;
use image::kubelet::{LINKS, MOUNTS, PROGRAM, Source};
use image::paths::VAR_LINKS;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::*;
use crate::object;
use crate::samples::{machine, put};

const SHORT: Duration = Duration::from_secs(20);
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";

fn digest(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

/// A layer of everything that a kubelet's container has, but for the paths in `without`.
fn layer(without: &[&str], program: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut put = |kind, path: &str, mode, content: &str, target: &str| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        if kind == EntryType::Symlink {
            header.set_link_name(target).unwrap();
        }
        let path = path.trim_start_matches('/');
        builder
            .append_data(&mut header, path, content.as_bytes())
            .unwrap();
    };
    for mount in MOUNTS
        .iter()
        .filter(|mount| !without.contains(&mount.target))
    {
        match mount.source {
            Source::File(_) => put(EntryType::Regular, mount.target, 0o644, "", ""),
            _ => put(EntryType::Directory, mount.target, 0o755, "", ""),
        }
    }
    for (link, target) in LINKS.iter().chain(VAR_LINKS) {
        if !without.contains(link) {
            put(EntryType::Symlink, link, 0o777, "", target);
        }
    }
    put(EntryType::Regular, PROGRAM, 0o755, program, "");
    builder.into_inner().unwrap()
}

/// What a registry has: paths below the repository, and the bytes there.
type Shelf = BTreeMap<String, Vec<u8>>;

/// Puts an image on a shelf; returns the digest of its manifest.
fn shelve(
    shelf: &mut Shelf,
    layers: &[(&str, Vec<u8>)],
    architecture: &str,
    version: &str,
) -> String {
    let mut blob = |kind: &str, bytes: Vec<u8>| {
        let digest = format!("sha256:{}", digest(&bytes));
        let size = bytes.len();
        shelf.insert(format!("blobs/{digest}"), bytes);
        json!({"mediaType": kind, "digest": digest, "size": size})
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Labels": {"org.opencontainers.image.version": version}},
    });
    let config = blob(
        "application/vnd.oci.image.config.v1+json",
        config.to_string().into(),
    );
    let layers: Vec<Value> = layers
        .iter()
        .map(|(kind, bytes)| blob(kind, bytes.clone()))
        .collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    let digest = digest(manifest.as_bytes());
    shelf.insert(format!("manifests/sha256:{digest}"), manifest.into());
    digest
}

/// What a registry serves, and which paths it was asked for.
type Served = Arc<Mutex<Shelf>>;
type Asked = Arc<Mutex<Vec<String>>>;

/// A registry with a repository `kubelet`; returns its address, its shelf and the paths that were asked for.
fn registry(shelf: Shelf) -> (String, Served, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let shelf = Arc::new(Mutex::new(shelf));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (kept, log) = (Arc::clone(&shelf), Arc::clone(&asked));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut first = String::new();
            stream.read_line(&mut first).unwrap();
            let mut line = first.clone();
            while line.trim() != "" {
                line.clear();
                stream.read_line(&mut line).unwrap();
            }
            let path = first.split(' ').nth(1).unwrap_or_default();
            let path = path.trim_start_matches("/v2/kubelet/").to_owned();
            let found = kept.lock().unwrap().get(&path).cloned();
            let status = if found.is_some() {
                "200 OK"
            } else {
                "404 Not Found"
            };
            let body = found.unwrap_or_default();
            let head = format!(
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            log.lock().unwrap().push(path);
            let stream = stream.get_mut();
            // A client may hang up over what it does not want.
            drop(
                stream
                    .write_all(head.as_bytes())
                    .and_then(|()| stream.write_all(&body)),
            );
        }
    });
    (address, shelf, asked)
}

/// A node of version 1.36.3 whose object pins this image.
struct Node {
    _folder: tempfile::TempDir,
    world: World,
    object: Object,
}

fn node(registry: &str, digest: &str) -> Node {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "version = \"1.36.3\"\nimage-repository = \"r.example\"\n[node]\naddress = \"10.0.0.7\"\n[kubelet]\nimage = \"{registry}/kubelet@sha256:{digest}\"\n"
    );
    let world = machine(folder.path(), &text);
    put(&world.dev.join("console"), "");
    let object = object::read(&world, Duration::ZERO)
        .unwrap()
        .unwrap()
        .object;
    Node {
        _folder: folder,
        world,
        object,
    }
}

impl Node {
    fn choose(&self) -> String {
        choose(&self.world, Some(&self.object), SHORT).unwrap()
    }

    /// The reason why the image's own kubelet is started.
    fn refused(&self) -> String {
        assert_eq!(self.choose(), KUBELET_ROOTFS);
        assert!(!self.folder().join(PINNED_CURRENT).exists());
        let console = fs::read_to_string(self.world.dev.join("console")).unwrap();
        let reason = record(&self.world).unwrap().refused.unwrap();
        assert!(console.contains(&reason), "{console}");
        assert_eq!(version(&self.world), Version::parse("v1.36.3"));
        reason
    }

    fn folder(&self) -> std::path::PathBuf {
        self.world.in_initrd(PINNED)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn a_pinned_container_is_fetched_once_and_found_without_its_registry_later() {
    let mut shelf = Shelf::new();
    let mut upper = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    upper
        .append_data(&mut header, "usr/bin/.wh.old", &b""[..])
        .unwrap();
    let mut lower = Builder::new(layer(&[], "the kubelet"));
    // Over the end of the stream that the layer has.
    let end = lower.get_ref().len() - 1024;
    lower.get_mut().truncate(end);
    header.set_cksum();
    lower
        .append_data(&mut header, "usr/bin/old", &b""[..])
        .unwrap();
    let layers = [
        (
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
            packed(&lower.into_inner().unwrap()),
        ),
        (TAR, upper.into_inner().unwrap()),
    ];
    let manifest = shelve(&mut shelf, &layers, architecture(), "v1.35.2");
    // An index of several platforms leads to it.
    let index = json!({"schemaVersion": 2, "manifests": [
        {"mediaType": "m", "digest": format!("sha256:{}", "0".repeat(64)), "size": 1, "platform": {"os": "linux", "architecture": "riscv64"}},
        {"mediaType": "m", "digest": format!("sha256:{manifest}"), "size": 1, "platform": {"os": "linux", "architecture": architecture()}},
    ]})
    .to_string();
    let pinned = digest(index.as_bytes());
    shelf.insert(format!("manifests/sha256:{pinned}"), index.into());
    let (address, shelf, asked) = registry(shelf);
    let node = node(&address, &pinned);
    // Of another pin, and of one that was cut.
    put(&node.folder().join(format!("{}/usr/x", "1".repeat(64))), "");
    put(
        &node
            .folder()
            .join(format!("{}.part/rootfs/x", "2".repeat(64))),
        "",
    );
    put(
        &node.folder().join(format!("{pinned}.part/rootfs/half")),
        "",
    );

    let root = node.choose();
    assert_eq!(root, format!("{PINNED}/{pinned}"));
    let files = node.world.in_initrd(&root);
    let program = files.join(PROGRAM.trim_start_matches('/'));
    assert_eq!(fs::read_to_string(program).unwrap(), "the kubelet");
    assert!(!files.join("usr/bin/old").exists() && !files.join("half").exists());
    let mut expected = [
        pinned.clone(),
        format!("{pinned}.version"),
        PINNED_CURRENT.to_owned(),
    ];
    expected.sort();
    assert_eq!(node.names(), expected);
    assert_eq!(
        fs::read_link(node.folder().join(PINNED_CURRENT)).unwrap(),
        Path::new(&pinned)
    );
    assert_eq!(record(&node.world).unwrap().refused, None);
    assert_eq!(version(&node.world), Version::parse("v1.35.2"));

    shelf.lock().unwrap().clear();
    let before = asked.lock().unwrap().len();
    assert_eq!(node.choose(), root);
    assert_eq!(asked.lock().unwrap().len(), before);
    // Without a pin all of it goes.
    assert_eq!(choose(&node.world, None, SHORT).unwrap(), KUBELET_ROOTFS);
    assert_eq!(node.names(), [""; 0]);
    assert_eq!(record(&node.world), None);
    assert_eq!(version(&node.world), Version::parse("v1.36.3"));
}

#[test]
fn the_images_own_kubelet_runs_where_the_pinned_one_is_wrong() {
    let good = layer(&[], "k");
    let mut outside = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    outside.append_link(&mut header, "usr", "/etc").unwrap();
    let mut outside = outside.into_inner().unwrap();
    outside.truncate(outside.len() - 1024);
    outside.extend(&good);
    for (layers, architecture, version, expected) in [
        (
            vec![(TAR, good.clone())],
            "riscv64",
            "v1.36.3",
            "it is for linux/riscv64, expected linux/",
        ),
        (
            vec![(TAR, good.clone())],
            architecture(),
            "v1.37.0",
            "the kubelet v1.37.0 is newer than the API server, v1.36.3",
        ),
        (
            vec![(TAR, good.clone())],
            architecture(),
            "newest",
            "is not a version of Kubernetes",
        ),
        (
            vec![("application/vnd.oci.image.layer.v1.tar+zstd", good.clone())],
            architecture(),
            "v1.36.3",
            "expected tar or tar+gzip",
        ),
        (
            vec![(TAR, layer(&["/var/lib/kubelet", "/etc/resolv.conf"], "k"))],
            architecture(),
            "v1.36.3",
            "the folder /var/lib/kubelet is missing",
        ),
        (
            vec![(TAR, layer(&["/etc/resolv.conf"], "k"))],
            architecture(),
            "v1.36.3",
            "/etc/resolv.conf is not a link to ../run/systemd/resolve/resolv.conf",
        ),
        (
            vec![(TAR, outside)],
            architecture(),
            "v1.36.3",
            "leads through /usr, which is not a folder",
        ),
        (
            vec![(TAR, good[..700].to_vec())],
            architecture(),
            "v1.36.3",
            "unpacking sha256:",
        ),
    ] {
        let mut shelf = Shelf::new();
        let pinned = shelve(&mut shelf, &layers, architecture, version);
        let (address, _, _) = registry(shelf);
        let node = node(&address, &pinned);
        let reason = node.refused();
        assert!(reason.contains(expected), "{expected}: {reason}");
        // Nothing half, and the blobs for the next attempt.
        assert!(!node.folder().join(&pinned).exists(), "{expected}");
        assert!(!node.folder().join(format!("{pinned}.part/rootfs")).exists());
    }
}

#[test]
fn what_a_registry_gives_counts_only_with_its_digest() {
    let mut shelf = Shelf::new();
    let layers = [(TAR, layer(&[], "k"))];
    let pinned = shelve(&mut shelf, &layers, architecture(), "v1.36.3");
    let blob = format!("blobs/sha256:{}", digest(&layers[0].1));
    let manifest = format!("manifests/sha256:{pinned}");
    let mut other = layers[0].1.clone();
    other[600] ^= 1;
    let half = layers[0].1[..900].to_vec();
    for (path, bytes, expected) in [
        (&manifest, None, "404 Not Found"),
        (&manifest, Some(b"{}".to_vec()), "digest mismatch"),
        (&blob, None, "404 Not Found"),
        (&blob, Some(other), "digest mismatch"),
        (&blob, Some(half), "digest mismatch"),
    ] {
        let mut broken = shelf.clone();
        match &bytes {
            Some(bytes) => broken.insert(path.clone(), bytes.clone()),
            None => broken.remove(path),
        };
        let (address, served, asked) = registry(broken);
        let node = node(&address, &pinned);
        let reason = node.refused();
        assert!(reason.contains(expected), "{path}: {reason}");
        // The next start takes what is right then, and asks for no verified blob twice.
        *served.lock().unwrap() = shelf.clone();
        assert_eq!(node.choose(), format!("{PINNED}/{pinned}"));
        let asked = asked.lock().unwrap();
        let configs = asked
            .iter()
            .filter(|path| path.starts_with("blobs/") && **path != blob);
        assert_eq!(configs.count(), 1, "{asked:?}");
    }
}

#[test]
fn a_registry_that_is_not_there_costs_the_patience_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let node = node(&address, &"0".repeat(64));
    let found = choose(&node.world, Some(&node.object), Duration::from_secs(1)).unwrap();
    assert_eq!(found, KUBELET_ROOTFS);
    let reason = record(&node.world).unwrap().refused.unwrap();
    assert!(reason.contains(&address), "{reason}");
}

#[test]
fn a_pinned_kubelet_has_three_starts_until_it_is_ready() {
    let mut shelf = Shelf::new();
    let pinned = shelve(
        &mut shelf,
        &[(TAR, layer(&[], "k"))],
        architecture(),
        "v1.36.3",
    );
    let (address, _, _) = registry(shelf);
    let node = node(&address, &pinned);
    let root = format!("{PINNED}/{pinned}");
    for _ in 0..2 {
        assert_eq!(node.choose(), root);
    }
    ready(&node.world).unwrap();
    for _ in 0..3 {
        assert_eq!(node.choose(), root);
    }
    for _ in 0..2 {
        assert!(node.refused().contains("did not get READY in 3 starts"));
    }
    // It is kept, and the next boot has no record.
    assert!(node.folder().join(&pinned).is_dir());
    fs::remove_file(node.world.in_run(RUN_PINNED_KUBELET)).unwrap();
    assert_eq!(node.choose(), root);
}

#[test]
fn a_root_that_cannot_be_shown_is_named_and_the_images_own_is_started() {
    let node = node("r.example", &"0".repeat(64));
    put(&node.world.proc.join("self/mountinfo"), "");
    put(&node.folder().join("absent.version"), "v1.35.2\n");
    symlink("absent", node.folder().join(PINNED_CURRENT)).unwrap();
    assert_eq!(version(&node.world), Version::parse("v1.35.2"));
    show(&node.world, &format!("{PINNED}/absent")).unwrap();
    assert_eq!(version(&node.world), Version::parse("v1.36.3"));
    let reason = record(&node.world).unwrap().refused.unwrap();
    assert!(reason.starts_with("binding "), "{reason}");
    let console = fs::read_to_string(node.world.dev.join("console")).unwrap();
    assert!(console.contains(&reason), "{console}");
}
