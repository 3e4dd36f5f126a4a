//! What containerd keeps of images, contents and snapshots, written while it does not run.
//!
//! Two files of bbolt, below containerd's folder: what its clients see (`metadata/buckets.go` describes it), and what its
//! overlayfs snapshotter has (`snapshots/storage/bolt.go`), both of containerd 1.7
//! (<https://github.com/containerd/containerd/tree/v1.7.24>).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use linux::atomic_file;

use crate::bolt::{self, Bucket};

/// The kubelet's namespace.
const NAMESPACE: &str = "k8s.io";
/// The snapshotter.
const SNAPSHOTTER: &str = "overlayfs";
/// What clients see.
const METADATA: &str = "io.containerd.metadata.v1.bolt/meta.db";
/// What the snapshotter has.
const SNAPSHOTS: &str = "io.containerd.snapshotter.v1.overlayfs/metadata.db";
/// The folder with a folder for each snapshot.
const SNAPSHOT_FOLDERS: &str = "io.containerd.snapshotter.v1.overlayfs/snapshots";
/// The folder of contents, named by their digests.
const BLOBS: &str = "io.containerd.content.v1.content/blobs/sha256";
/// The schema that is written: version 3 of `v1`. containerd 2 makes version 4 of it, which has the same of all that is written here,
/// and which 1.7 reads as its own.
const SCHEMA: i64 = 3;
/// The versions whose data are added to.
const KNOWN: [i64; 2] = [SCHEMA, 4];
/// A committed snapshot (`snapshots.KindCommitted`).
const COMMITTED: u8 = 3;
/// The label by which we know our own images again.
const OURS: &str = "slipway.local/baked";
/// Before the names of snapshots that are given up.
const GONE: &str = "slipway.local/gone/";

/// containerd's data: both files as they will be.
pub(crate) struct Containerd {
    root: PathBuf,
    metadata: Bucket,
    snapshots: Bucket,
    /// Both as they were read.
    found: (Bucket, Bucket),
    /// Time of all that is written, as Go writes it.
    now: [u8; 15],
}

impl Containerd {
    /// Reads the data below `root`, or begins it. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// If a file cannot be read, or is of a schema that is not known.
    pub(crate) fn open(root: &Path, now: u64) -> Result<Self> {
        let read = |name: &str| {
            let path = root.join(name);
            match atomic_file::read(&path) {
                Ok(Some(bytes)) => bolt::read(&bytes).with_context(|| path.display().to_string()),
                Ok(None) => Ok(Bucket::default()),
                Err(error) => Err(error).with_context(|| path.display().to_string()),
            }
        };
        let found = (read(METADATA)?, read(SNAPSHOTS)?);
        let mut this = Self {
            metadata: found.0.clone(),
            snapshots: found.1.clone(),
            found,
            root: root.to_owned(),
            now: go_time(now),
        };
        match this
            .metadata
            .bucket("v1")
            .and_then(|v1| v1.value("version"))
        {
            None => this.metadata.at(&["v1"]).put("version", varint(SCHEMA)),
            Some(found) => ensure!(
                KNOWN.map(varint).iter().any(|known| found == known),
                "containerd's data is of schema {found:?}, this program knows {KNOWN:?}"
            ),
        }
        Ok(this)
    }

    /// Forgets the images that an earlier image of the node brought, but those with one of these `names`. containerd removes what then
    /// belongs to nothing.
    pub(crate) fn forget_ours_but(&mut self, names: &BTreeSet<String>) {
        let images = self.metadata.at(&["v1", NAMESPACE, "images"]);
        let stays = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| names.contains(name));
        images.items.retain(|name, item| {
            let is_ours = matches!(item, bolt::Item::Bucket(image)
                if image.bucket("labels").is_some_and(|labels| labels.value(OURS).is_some()));
            !is_ours || stays(name)
        });
    }

    /// Gives up each snapshot that links to a folder of an earlier root, which is not among `folders`, and all snapshots on top of it.
    /// Dead containers and images that containerd itself pulled may still refer to them. While a snapshot has the name of a chain id,
    /// containerd takes those layers for unpacked: it would neither unpack nor pull them again, and no pod could start on the missing
    /// folder.
    ///
    /// They get names to which nothing refers, so that containerd's garbage collection removes them with their files. Gives their
    /// number.
    pub(crate) fn give_up_snapshots(&mut self, folders: &BTreeSet<&str>) -> usize {
        let place = self.root.join(SNAPSHOT_FOLDERS);
        let v1 = self.snapshots.bucket("v1");
        let all = v1.and_then(|v1| v1.bucket("snapshots"));
        let linked = |snapshot: &Bucket| -> Option<PathBuf> {
            let id = id(all?, snapshot)?;
            fs::read_link(place.join(id.to_string()).join("fs")).ok()
        };
        let is_there = |folder: &Path| folder.to_str().is_some_and(|path| folders.contains(path));
        let known = self
            .metadata
            .at(&["v1", NAMESPACE, "snapshots", SNAPSHOTTER]);
        let mut gone: BTreeSet<Vec<u8>> = known
            .buckets()
            .filter(|(key, _)| !key.starts_with(GONE.as_bytes()))
            .filter(|(_, snapshot)| linked(snapshot).is_some_and(|folder| !is_there(&folder)))
            .map(|(key, _)| key.to_vec())
            .collect();
        loop {
            let above: Vec<Vec<u8>> = known
                .buckets()
                .filter(|(key, _)| !gone.contains(*key))
                .filter(|(_, snapshot)| {
                    let parent = snapshot.value("parent");
                    parent.is_some_and(|parent| gone.contains(parent))
                })
                .map(|(key, _)| key.to_vec())
                .collect();
            if above.is_empty() {
                break;
            }
            gone.extend(above);
        }
        for key in &gone {
            if let Some(bolt::Item::Bucket(mut snapshot)) = known.items.remove(key) {
                let is_link = |key: &[u8]| matches!(key, b"parent" | b"children" | b"labels");
                snapshot.items.retain(|key, _| !is_link(key));
                let name = [GONE.as_bytes(), key.as_slice()].concat();
                known.items.insert(name, bolt::Item::Bucket(snapshot));
            }
        }
        gone.len()
    }

    /// Adds a content: its file, and its entry with these labels.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn add_content(&mut self, content: &Content, labels: &[(&str, &str)]) -> Result<()> {
        let folder = self.root.join(BLOBS);
        make_folder(&folder, 0o755)?;
        let name = content.digest.trim_start_matches("sha256:");
        let file = folder.join(name);
        let about = || file.display().to_string();
        if atomic_file::read(&file).with_context(about)?.as_deref() != Some(content.bytes) {
            atomic_file::write(&file, content.bytes, 0o444).with_context(about)?;
        }
        let all = self.metadata.at(&["v1", NAMESPACE, "content", "blob"]);
        // containerd and its clients have labels of their own there.
        let mut blob = all.bucket(&content.digest).cloned().unwrap_or_default();
        blob.put("size", varint(i64::try_from(content.bytes.len())?));
        for (key, value) in labels {
            blob.at(&["labels"]).put(key, *value);
        }
        put(all, &content.digest, blob, self.now);
        Ok(())
    }

    /// Adds a committed snapshot without a parent, named `chain_id`, whose files are the folder `files` of the root. One that is there
    /// leads to that folder again if it does not. A snapshot of that name that containerd unpacked itself is kept: its files are the same.
    ///
    /// # Errors
    /// If its folder cannot be made.
    pub(crate) fn add_snapshot(&mut self, chain_id: &str, files: &str) -> Result<()> {
        let known = self
            .metadata
            .at(&["v1", NAMESPACE, "snapshots", SNAPSHOTTER]);
        let place = self.root.join(SNAPSHOT_FOLDERS);
        let all = self.snapshots.at(&["v1", "snapshots"]);
        if let Some(id) = known.bucket(chain_id).and_then(|found| id(all, found)) {
            let there = place.join(id.to_string()).join("fs");
            let found = fs::read_link(&there);
            return match found {
                Ok(found) if found == Path::new(files) => Ok(()),
                Err(_) if there.is_dir() => Ok(()),
                _ => link(&place, id, files),
            };
        }
        known.sequence += 1;
        let backend = format!("{NAMESPACE}/{}/{chain_id}", known.sequence);
        let snapshot = known.at(&[chain_id]);
        times(snapshot, self.now);
        snapshot.put("name", backend.as_str());
        // A boot that was cut off between the two files may have left it.
        let id = match all.bucket(&backend).and_then(|it| it.value("id")) {
            Some(id) => unsigned(id),
            None => {
                all.sequence += 1;
                all.sequence
            }
        };
        let entry = all.at(&[&backend]);
        times(entry, self.now);
        entry.put("id", unsigned_varint(id));
        entry.put("kind", [COMMITTED]);
        // The files are the root's, not the disk's: they use a link.
        entry.put("inodes", varint(1));
        entry.put("size", varint(0));
        self.snapshots.at(&["v1", "parents"]);
        link(&place, id, files)
    }

    /// Adds or replaces an image: a name of a manifest.
    pub(crate) fn add_image(
        &mut self,
        name: &str,
        manifest: &Content,
        media_type: &str,
        key: &str,
    ) {
        let mut image = Bucket::default();
        let labels = image.at(&["labels"]);
        // By these the kubelet's part of containerd sees it as known, and the kubelet never removes it.
        labels.put("io.cri-containerd.image", "managed");
        labels.put("io.cri-containerd.pinned", "pinned");
        labels.put(OURS, key);
        let target = image.at(&["target"]);
        target.put("digest", manifest.digest.as_str());
        target.put("mediatype", media_type);
        let size = i64::try_from(manifest.bytes.len()).unwrap_or(i64::MAX);
        target.put("size", varint(size));
        let images = self.metadata.at(&["v1", NAMESPACE, "images"]);
        put(images, name, image, self.now);
    }

    /// Whether the files are to be other ones than those that were read.
    pub(crate) fn is_changed(&self) -> bool {
        (&self.metadata, &self.snapshots) != (&self.found.0, &self.found.1)
    }

    /// Writes both files: first what the other one refers to.
    ///
    /// # Errors
    /// If one cannot be written.
    pub(crate) fn write(&self) -> Result<()> {
        for (name, bucket) in [(SNAPSHOTS, &self.snapshots), (METADATA, &self.metadata)] {
            let file = self.root.join(name);
            let folder = file.parent().context("containerd's folder")?;
            make_folder(folder, 0o700)?;
            atomic_file::write(&file, &bolt::write(bucket), 0o600)
                .with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

/// A content by its digest.
pub(crate) struct Content<'a> {
    /// `sha256:…`.
    pub(crate) digest: String,
    /// Its bytes.
    pub(crate) bytes: &'a [u8],
}

/// The folder of a snapshot: in place of its files, a link to where they are.
fn link(folders: &Path, id: u64, files: &str) -> Result<()> {
    let folder = folders.join(id.to_string());
    make_folder(folders, 0o700)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    make_folder(&folder, 0o700)?;
    symlink(files, folder.join("fs")).with_context(|| folder.display().to_string())
}

fn make_folder(path: &Path, mode: u32) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .with_context(|| format!("making {}", path.display()))
}

/// The number of a snapshot's folder: clients' entry has the name of one of the snapshotter's, of which `all` are given.
fn id(all: &Bucket, snapshot: &Bucket) -> Option<u64> {
    let name = std::str::from_utf8(snapshot.value("name")?).ok()?;
    Some(unsigned(all.bucket(name)?.value("id")?))
}

/// Puts an entry with the time of now in place of the one of that name, unless that differs in its times alone.
fn put(bucket: &mut Bucket, name: &str, mut wanted: Bucket, now: [u8; 15]) {
    if let Some(found) = bucket.bucket(name) {
        for time in ["createdat", "updatedat"] {
            if let Some(value) = found.value(time) {
                wanted.put(time, value);
            }
        }
        if *found == wanted {
            return;
        }
    }
    times(&mut wanted, now);
    let name = name.as_bytes().to_vec();
    bucket.items.insert(name, bolt::Item::Bucket(wanted));
}

fn times(bucket: &mut Bucket, now: [u8; 15]) {
    bucket.put("createdat", now);
    bucket.put("updatedat", now);
}

/// Seconds from the year 1, from which Go counts, to 1970.
const YEAR_ONE: u64 = 62_135_596_800;

/// A time as Go's `Time.MarshalBinary` writes it: a version, seconds, nanoseconds, and -1 minutes for UTC, big-endian.
fn go_time(seconds: u64) -> [u8; 15] {
    let mut bytes = [0; 15];
    bytes[0] = 1;
    bytes[1..9].copy_from_slice(&(seconds + YEAR_ONE).to_be_bytes());
    bytes[13..].copy_from_slice(&(-1_i16).to_be_bytes());
    bytes
}

/// A number as Go's `binary.PutVarint` writes it: zigzag, then seven bits a byte.
fn varint(number: i64) -> Vec<u8> {
    unsigned_varint(((number << 1) ^ (number >> 63)).cast_unsigned())
}

fn unsigned_varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

fn unsigned(bytes: &[u8]) -> u64 {
    let bits = bytes.iter().take(9).enumerate();
    bits.fold(0, |sum, (at, byte)| {
        sum | u64::from(byte & 0x7f) << (7 * at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What containerd 2 has made of the data stays, all of it: 1.7 reads that too. Data of a later one is not touched.
    #[test]
    fn data_of_containerd_2_is_added_to_and_that_of_a_later_one_is_refused() {
        for (version, expected) in [(3, true), (4, true), (5, false)] {
            let root = tempfile::tempdir().unwrap();
            let mut data = Bucket::default();
            data.at(&["v1"]).put("version", varint(version));
            data.at(&["v1", NAMESPACE, "sandboxes", "one"])
                .put("runtime", "crun");
            let file = root.path().join(METADATA);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let before = bolt::write(&data);
            fs::write(&file, &before).unwrap();
            let opened = Containerd::open(root.path(), 1);
            assert_eq!(opened.is_ok(), expected, "{version}");
            let Ok(mut opened) = opened else {
                assert_eq!(fs::read(&file).unwrap(), before);
                continue;
            };
            opened.forget_ours_but(&BTreeSet::new());
            opened.write().unwrap();
            let after = bolt::read(&fs::read(&file).unwrap()).unwrap();
            let v1 = after.bucket("v1").unwrap();
            assert_eq!(v1.value("version"), Some(&*varint(version)));
            let kept = v1.bucket(NAMESPACE).and_then(|of| of.bucket("sandboxes"));
            assert!(kept.is_some_and(|kept| kept.bucket("one").is_some()));
        }
    }

    #[test]
    fn numbers_and_times_are_written_as_go_writes_them() {
        for (number, bytes) in [
            (0, &[0][..]),
            (3, &[6]),
            (-1, &[1]),
            (300, &[0xd8, 0x04]),
            (i64::MAX, &[0xfe, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        ] {
            assert_eq!(varint(number), bytes, "{number}");
        }
        for number in [0, 1, 127, 128, 1_000_000] {
            assert_eq!(unsigned(&unsigned_varint(number)), number);
        }
        // 2026-11-22T00:00:00Z
        assert_eq!(
            go_time(1_795_305_600),
            [1, 0, 0, 0, 14, 0xe2, 0x94, 0x27, 0x80, 0, 0, 0, 0, 255, 255]
        );
    }
}
