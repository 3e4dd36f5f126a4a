//! Images of several layers: from a layout and from a registry on loopback, with what real ones have in them and with faults.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::EntryType;

use super::*;
use crate::host::cache::Cache;
use crate::host::progress::{Kind as Shown, Progress};
use crate::host::session::Session;
use crate::oci::{pull, read_layout};

const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// An entry of a layer: type, path as it stands in the archive, mode, and content or target.
type Item = (EntryType, &'static str, u32, &'static str);

const DIR: EntryType = EntryType::Directory;
const FILE: EntryType = EntryType::Regular;
const SYMLINK: EntryType = EntryType::Symlink;
const LINK: EntryType = EntryType::Link;

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(bytes)))
}

/// A layer as a plain tar. Paths and targets are written as they are, which tools do not.
fn tar(items: &[Item]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, path, mode, content) in items {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_uid(1000);
        header.set_gid(50);
        let data = match *kind {
            FILE => content.as_bytes(),
            _ => {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
                &[]
            }
        };
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// An image as blobs by their digests, and the digest of its index.
struct Built {
    blobs: Vec<(String, Vec<u8>)>,
    index: String,
}

impl Built {
    /// Of the layers, the lowest is packed by gzip, the next one by zstd, and the third is not packed, and so on. `change` may spoil config and manifest before they are hashed.
    fn new(layers: &[Vec<u8>], change: impl Fn(&mut Value, &mut Value)) -> Self {
        let mut blobs = Vec::new();
        let mut keep = |media_type: &str, bytes: Vec<u8>| {
            let descriptor =
                json!({"mediaType": media_type, "digest": sha256(&bytes), "size": bytes.len()});
            blobs.push((sha256(&bytes), bytes));
            descriptor
        };
        let ids: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
        let mut config = json!({
            "architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z",
            "config": {"Entrypoint": ["/app"], "Cmd": ["serve"], "Env": ["A=b"], "User": "nobody", "WorkingDir": "/data"},
            "rootfs": {"type": "layers", "diff_ids": ids}, "history": [{"created_by": "x"}],
        });
        let packed = layers.iter().enumerate().map(|(n, layer)| match n % 3 {
            0 => keep(GZIP, gzip(layer)),
            1 => keep(ZSTD, zstd::encode_all(layer.as_slice(), 1).unwrap()),
            _ => keep(TAR, layer.clone()),
        });
        let packed: Vec<Value> = packed.collect();
        let mut manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": packed});
        change(&mut config, &mut manifest);
        let media_type = manifest["config"]["mediaType"]
            .as_str()
            .unwrap_or(CONFIG)
            .to_owned();
        manifest["config"] = keep(&media_type, serde_json::to_vec_pretty(&config).unwrap());
        let mut one = keep(MANIFEST, serde_json::to_vec(&manifest).unwrap());
        one["platform"] = json!({"architecture": "amd64", "os": "linux"});
        let other = json!({"mediaType": MANIFEST, "digest": sha256(b"other"), "size": 5, "platform": {"architecture": "s390x", "os": "linux"}});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [other, one]});
        let index = keep(INDEX_TYPE, serde_json::to_vec(&index).unwrap());
        let index = index["digest"].as_str().unwrap().to_owned();
        Self { blobs, index }
    }

    fn blob(&mut self, wanted: impl Fn(&[u8]) -> bool) -> &mut Vec<u8> {
        let found = self.blobs.iter_mut().find(|(_, bytes)| wanted(bytes));
        &mut found.unwrap().1
    }

    /// Pulls it by its digest from a registry on loopback, and merges it.
    fn pulled(self, folder: &Path, architecture: &str) -> Result<Merged> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap();
        let (blobs, index) = (self.blobs, self.index);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let blobs = blobs.clone();
                std::thread::spawn(move || {
                    let mut request = Vec::new();
                    let mut piece = [0; 4096];
                    while !request.ends_with(b"\r\n\r\n") {
                        match connection.read(&mut piece) {
                            Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
                            _ => return,
                        }
                    }
                    let request = String::from_utf8(request).unwrap();
                    let path = request.split(' ').nth(1).unwrap_or_default();
                    let digest = path.rsplit('/').next().unwrap_or_default();
                    let found = blobs.iter().find(|(name, _)| name == digest);
                    let (status, body) = match found {
                        Some((_, body)) => ("200 OK", body.clone()),
                        None => ("404 Not Found", Vec::new()),
                    };
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        body.len()
                    );
                    // The client closes early what it refuses.
                    let _sent = connection
                        .write_all(head.as_bytes())
                        .and_then(|()| connection.write_all(&body));
                });
            }
        });
        let cache = Cache::at(folder.join("cache")).unwrap();
        let session = Session::new(cache, Progress::new(Shown::Quiet));
        let reference = format!("{host}/group/app:v1@{index}").parse().unwrap();
        let step = Progress::new(Shown::Quiet).step("pull");
        let image = pull(&session, &reference, architecture, &step)?;
        Merged::make(&image, architecture, folder)
    }

    /// Why it cannot be taken.
    fn refused(self, architecture: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let error = self.pulled(folder.path(), architecture).unwrap_err();
        format!("{error:#}")
    }
}

fn image(layers: &[&[Item]]) -> Built {
    let layers: Vec<Vec<u8>> = layers.iter().map(|items| tar(items)).collect();
    Built::new(&layers, |_, _| {})
}

/// Each entry as one line: path, mode, and what it is.
fn lines(merged: &Merged) -> Vec<String> {
    let line = |entry: &Entry| {
        let what = match &entry.kind {
            Kind::Directory => "folder".to_owned(),
            Kind::Symlink(target) => format!("-> {target}"),
            Kind::HardLink(target) => format!("= {target}"),
            Kind::File(Source::Range { file, offset, size }) => {
                let bytes = fs::read(file).unwrap();
                let at = usize::try_from(*offset).unwrap();
                let end = at + usize::try_from(*size).unwrap();
                format!("{:?}", String::from_utf8_lossy(&bytes[at..end]))
            }
            other => panic!("{other:?}"),
        };
        format!("{} {:o} {what}", entry.path, entry.mode)
    };
    merged.entries.iter().map(line).collect()
}

const BASE: &[Item] = &[
    (DIR, "./", 0o755, ""),
    (DIR, "usr/", 0o755, ""),
    (DIR, "usr/lib/", 0o755, ""),
    (SYMLINK, "lib", 0o777, "usr/lib"),
    (FILE, "usr/lib/a.so", 0o644, "old"),
    (LINK, "usr/lib/b.so", 0o644, "usr/lib/a.so"),
    (FILE, "etc/gone", 0o644, "x"),
    (FILE, "etc/kept", 0o600, "kept"),
    (DIR, "cache/", 0o700, ""),
    (FILE, "cache/one", 0o644, "1"),
    (FILE, "cache/deep/two", 0o644, "2"),
    (FILE, "folder/in", 0o644, "f"),
    (FILE, "usr/su", 0o4755, "su"),
    (EntryType::Char, "dev/null", 0o666, ""),
];
const TOP: &[Item] = &[
    (FILE, "etc/.wh.gone", 0o644, ""),
    (FILE, "cache/three", 0o644, "3"),
    (FILE, "cache/.wh..wh..opq", 0o644, ""),
    // Through the link of the layer below.
    (FILE, "lib/a.so", 0o755, "new"),
    (LINK, "lib/c.so", 0o755, "lib/a.so"),
    (FILE, "folder", 0o644, "now a file"),
];

#[test]
fn layers_are_merged_as_a_runtime_lays_them_over_one_another() {
    let folder = tempfile::tempdir().unwrap();
    let built = image(&[BASE, TOP]);
    let config = built
        .blobs
        .iter()
        .find(|(_, bytes)| bytes.starts_with(b"{\n"));
    let (id, config) = config.unwrap().clone();
    let merged = built.pulled(folder.path(), "amd64").unwrap();
    assert_eq!(
        lines(&merged),
        [
            "/cache 700 folder",
            "/cache/three 644 \"3\"",
            "/etc 755 folder",
            "/etc/kept 600 \"kept\"",
            "/folder 644 \"now a file\"",
            "/lib 777 -> usr/lib",
            "/usr 755 folder",
            "/usr/lib 755 folder",
            "/usr/lib/a.so 755 \"new\"",
            // The name of the old file stays, with its content.
            "/usr/lib/b.so 644 \"old\"",
            "/usr/lib/c.so 755 = /usr/lib/a.so",
            "/usr/su 755 \"su\"",
        ]
    );
    let kept = merged
        .entries
        .iter()
        .find(|entry| entry.path == "/etc/kept");
    assert_eq!(kept.map(|entry| (entry.uid, entry.gid)), Some((1000, 50)));
    // The image has its usual id: Entrypoint, Env and User are what they were.
    assert_eq!(merged.documents.config.as_bytes(), config);
    let manifest: Value = serde_json::from_str(&merged.documents.manifest).unwrap();
    assert_eq!(manifest["config"]["digest"], id);
    assert_eq!(manifest["layers"], json!([]));
    let ids = [sha256(&tar(BASE)), sha256(&tar(TOP))];
    let chain = sha256(format!("{} {}", ids[0], ids[1]).as_bytes());
    assert_eq!(merged.documents.chain_id, chain);
    // The folder may have been moved before it is used.
    let moved = folder.path().join("moved");
    fs::create_dir(&moved).unwrap();
    for name in ["layer-0.tar", "layer-1.tar", INDEX] {
        fs::rename(folder.path().join(name), moved.join(name)).unwrap();
    }
    assert_eq!(lines(&Merged::open(&moved).unwrap()).len(), 12);
}

#[test]
fn a_layout_of_another_tool_is_read_with_its_index_below_the_layouts() {
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let built = image(&[BASE, TOP]);
    for (digest, bytes) in &built.blobs {
        fs::write(layout.join("blobs").join(digest.replace(':', "/")), bytes).unwrap();
    }
    let write = |annotations: Value| {
        let inner = json!({"mediaType": INDEX_TYPE, "digest": built.index, "size": 1, "annotations": annotations});
        let text = json!({"schemaVersion": 2, "manifests": [inner]}).to_string();
        fs::write(layout.join("index.json"), text).unwrap();
    };
    let name = "r.example:5000/group/app:v1";
    for annotations in [
        json!({}),
        json!({"org.opencontainers.image.ref.name": "v1"}),
        json!({"io.containerd.image.name": name}),
    ] {
        write(annotations);
        let image = read_layout(&layout, name, "amd64").unwrap();
        assert_eq!(
            Merged::make(&image, "amd64", folder.path())
                .unwrap()
                .entries
                .len(),
            12
        );
    }
    write(json!({"org.opencontainers.image.ref.name": "v2"}));
    let error = format!("{:#}", read_layout(&layout, name, "amd64").unwrap_err());
    assert!(error.contains("there are [\"v2\"]"), "{error}");
}

/// The kubelet of an image of these layers, by the first of the places that the lock looks at.
fn kubelet(layers: &[&[Item]]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let layout = folder.path().join("layout");
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    let built = image(layers);
    for (digest, bytes) in &built.blobs {
        fs::write(layout.join("blobs").join(digest.replace(':', "/")), bytes)?;
    }
    let inner = json!({"mediaType": INDEX_TYPE, "digest": built.index, "size": 1});
    let text = json!({"schemaVersion": 2, "manifests": [inner]}).to_string();
    fs::write(layout.join("index.json"), text)?;
    let dest = folder.path().join("kubelet");
    let pulled = read_layout(&layout, "r.example/k:v1", "amd64")?;
    pulled.extract_file(&["usr/bin/kubelet", "kubelet"], 4, &dest)?;
    // The layers do not stay beside it.
    assert_eq!(fs::read_dir(folder.path())?.count(), 2);
    Ok(fs::read_to_string(dest)?)
}

#[test]
fn one_file_is_that_of_the_merged_layers() {
    let old: &[Item] = &[
        (SYMLINK, "bin", 0o777, "usr/bin"),
        (FILE, "usr/bin/kubelet", 0o755, "old"),
        (FILE, "kubelet", 0o755, "top"),
    ];
    let new = (FILE, "opt/kubelet", 0o755, "new");
    for (top, expected) in [
        (&[(FILE, "etc/x", 0o644, "x")][..], "old"),
        (&[(FILE, "usr/bin/kubelet", 0o755, "new")][..], "new"),
        (
            &[new, (SYMLINK, "usr/bin/kubelet", 0o777, "/opt/kubelet")],
            "new",
        ),
        (
            &[new, (LINK, "usr/bin/kubelet", 0o755, "opt/kubelet")],
            "new",
        ),
        (&[new, (SYMLINK, "usr/bin", 0o777, "../opt")][..], "new"),
        // Through the link of the layer below.
        (&[(FILE, "bin/kubelet", 0o755, "new")][..], "new"),
        (&[(FILE, "usr/bin/.wh.kubelet", 0o644, "")][..], "top"),
        (&[(FILE, "usr/.wh.bin", 0o644, "")][..], "top"),
        (&[(FILE, "usr/bin/.wh..wh..opq", 0o644, "")][..], "top"),
        (&[(FILE, "usr/.wh..wh..opq", 0o644, "")][..], "top"),
        (&[(SYMLINK, "usr/bin/kubelet", 0o777, "nowhere")][..], "top"),
    ] {
        assert_eq!(kubelet(&[old, top]).unwrap(), expected, "{top:?}");
    }
    for (layer, expected) in [
        ((FILE, "bin/kubelet", 0o755, "new"), "has none of"),
        ((FILE, "kubelet", 0o755, "large"), "expected at most 4"),
    ] {
        let error = format!("{:#}", kubelet(&[&[layer]]).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn bytes_that_are_not_those_of_the_digest_are_refused() {
    // A registry that answers with another index.
    let mut built = image(&[BASE]);
    built
        .blob(|bytes| bytes.windows(9).any(|word| word == b"manifests"))
        .push(b' ');
    assert!(built.refused("amd64").contains("digest mismatch"));
    // A layer that is cut off, and one of the right size that is another.
    let mut built = image(&[BASE]);
    let layer = built.blob(|bytes| bytes.starts_with(&[0x1f, 0x8b]));
    layer.truncate(layer.len() / 2);
    let said = built.refused("amd64");
    assert!(said.contains("digest mismatch"), "{said}");
    let mut built = image(&[BASE]);
    let layer = built.blob(|bytes| bytes.starts_with(&[0x1f, 0x8b]));
    let last = layer.len() - 1;
    layer[last] ^= 1;
    let said = built.refused("amd64");
    assert!(said.contains("digest mismatch"), "{said}");
    // A config whose digest of the unpacked layer is another's.
    let layers = [tar(BASE)];
    let built = Built::new(&layers, |config, _| {
        config["rootfs"]["diff_ids"] = json!([sha256(b"another")]);
    });
    let said = built.refused("amd64");
    assert!(
        said.contains("layer 0") && said.contains("as the image's config says"),
        "{said}"
    );
}

#[test]
fn what_is_no_image_for_this_machine_is_refused() {
    let said = image(&[BASE]).refused("arm64");
    assert!(
        said.contains("the index has linux/s390x, linux/amd64"),
        "{said}"
    );
    let layers = [tar(BASE)];
    let with = |change: fn(&mut Value, &mut Value)| Built::new(&layers, change).refused("amd64");
    // The index says amd64, the image does not.
    let said = with(|config, _| config["architecture"] = json!("s390x"));
    assert!(
        said.contains("an image for linux/s390x, expected linux/amd64"),
        "{said}"
    );
    let said = with(|_, manifest| {
        manifest["config"]["mediaType"] = json!("application/vnd.example.chart")
    });
    assert!(said.contains("is not a container image"), "{said}");
    let said = with(|_, manifest| {
        manifest["layers"][0]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+lzo");
    });
    assert!(said.contains("a layer of the unknown type"), "{said}");
    let said = with(|config, _| config["rootfs"]["diff_ids"] = json!([]));
    assert!(said.contains("names 0 layers, its manifest 1"), "{said}");
}

#[test]
fn no_path_leads_out_of_the_image() {
    for (items, expected) in [
        (&[(FILE, "../evil", 0o644, "x")][..], "leads upwards"),
        (&[(FILE, "a/../../evil", 0o644, "x")][..], "leads upwards"),
        (
            &[(LINK, "evil", 0o644, "../../etc/shadow")][..],
            "leads upwards",
        ),
        (
            &[(LINK, "evil", 0o644, "etc/shadow")][..],
            "which is not there",
        ),
        (&[(FILE, "a/.wh.", 0o644, "")][..], "removes no name"),
        (
            &[(EntryType::Block, "disk", 0o644, "")][..],
            "which only /dev/",
        ),
        (
            &[(FILE, "a", 0o644, ""), (FILE, "a/b", 0o644, "")][..],
            "which is not a folder",
        ),
        (
            &[(SYMLINK, "a", 0o777, "a"), (FILE, "a/b", 0o644, "")][..],
            "more than 40 links",
        ),
    ] {
        let said = image(&[items]).refused("amd64");
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(said.contains("layer 0 of sha256:"), "{said}");
    }
    // A link upwards ends at the image's own top, as in a container.
    let folder = tempfile::tempdir().unwrap();
    let built = image(&[
        &[(SYMLINK, "up", 0o777, "../../../tmp/x")],
        &[(FILE, "up/f", 0o644, "in")],
    ]);
    let merged = built.pulled(folder.path(), "amd64").unwrap();
    let found = lines(&merged);
    assert!(
        found.contains(&"/tmp/x/f 644 \"in\"".to_owned()),
        "{found:?}"
    );
    let inside = |path: &PathBuf| path.starts_with(folder.path());
    assert!(merged.entries.iter().all(|entry| match &entry.kind {
        Kind::File(Source::Range { file, .. }) => inside(file),
        _ => true,
    }));
}
