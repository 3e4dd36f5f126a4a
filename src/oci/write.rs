//! Writes images reproducibly.

use data_encoding::HEXLOWER;
use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fetch::oci::{Descriptor, Index, Manifest, Platform};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::types::{
    BLOBS, CONFIG, Config, DiffIds, IMAGE_INDEX, INDEX, LAYER, LAYOUT, LAYOUT_TEXT, MANIFEST,
    RunConfig,
};
use crate::format::digest;
use crate::format::time::rfc3339;
use crate::host::atomic_file;
use crate::layer::stream::{Form, Stream};
use crate::layer::{Entry, Kind, Source};

/// A file stored under its digest.
#[derive(Clone, Debug)]
pub struct Blob {
    /// The file's path.
    pub path: PathBuf,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// The description of an image to write.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its full name, such as `slipway.local/etcd:baked`.
    pub name: String,
    /// Its architecture, such as `amd64`.
    pub architecture: String,
    /// Its entry point, variables and labels.
    pub run: RunConfig,
    /// Its layers, plain tar, the lowest first.
    pub layers: Vec<Blob>,
}

/// Writes a layer: entries in the order of their paths, every time `mtime` (seconds since 1970), into the file `dest`.
///
/// # Errors
/// If an entry's content cannot be read or the file cannot be written.
pub fn layer(entries: &[Entry], mtime: u64, dest: &Path) -> Result<Blob> {
    let about = || format!("writing the layer {}", dest.display());
    let file = BufWriter::new(File::create(dest).with_context(about)?);
    let mut stream = Stream::new(file);
    for entry in entries {
        put(&mut stream, entry, mtime)
            .with_context(|| format!("{} of an image's layer", entry.path))?;
    }
    stream.end()?;
    stream.into_inner().with_context(about)?;
    blob(dest)
}

/// Makes a layer of a tar stream without end blocks.
///
/// # Errors
/// If the stream cannot be read or the layer cannot be written.
pub fn layer_of_tar(tar: &Path, dest: &Path) -> Result<Blob> {
    let about = || format!("copying {} to {}", tar.display(), dest.display());
    fs::copy(tar, dest).with_context(about)?;
    let mut file = File::options()
        .append(true)
        .open(dest)
        .with_context(about)?;
    file.write_all(&[0; 1024]).with_context(about)?;
    drop(file);
    blob(dest)
}

fn blob(path: &Path) -> Result<Blob> {
    Ok(Blob {
        sha256: digest::sha256(path)?,
        size: fs::metadata(path)?.len(),
        path: path.to_owned(),
    })
}

fn put<W: Write>(stream: &mut Stream<W>, entry: &Entry, mtime: u64) -> Result<()> {
    match &entry.kind {
        Kind::Directory => stream.header(entry, Form::Directory, mtime)?,
        Kind::Symlink(target) => stream.header(entry, Form::Symlink(target), mtime)?,
        Kind::HardLink(target) => stream.header(entry, Form::HardLink(target), mtime)?,
        Kind::File(Source::Bytes(bytes)) => {
            let size = u64::try_from(bytes.len())?;
            stream.header(entry, Form::File(size), mtime)?;
            stream.content(&mut bytes.as_slice(), size)?;
        }
        Kind::File(Source::Path(path)) => {
            let mut file = File::open(path)?;
            let size = file.metadata()?.len();
            stream.header(entry, Form::File(size), mtime)?;
            stream.content(&mut file, size)?;
        }
        Kind::File(Source::Hashed(file)) => {
            stream.header(entry, Form::File(file.size), mtime)?;
            stream.content(&mut file.open()?, file.size)?;
        }
        Kind::File(Source::Range { file, offset, size }) => {
            let mut file = File::open(file)?;
            file.seek(SeekFrom::Start(*offset))?;
            stream.header(entry, Form::File(*size), mtime)?;
            stream.content(&mut file, *size)?;
        }
        Kind::Remove => bail!("a layer of an image takes nothing away here"),
    }
    Ok(())
}

/// The files of a layout beside the layers.
struct Documents {
    index: Vec<u8>,
    blobs: Vec<(String, Vec<u8>)>,
}

impl Documents {
    fn new(images: &[Image], created: u64) -> Result<Self> {
        let mut blobs = Vec::new();
        let mut manifests = Vec::new();
        for image in images {
            let config = document(&mut blobs, CONFIG, &config(image, created))?;
            let layers = image.layers.iter().map(|layer| Descriptor {
                media_type: LAYER.to_owned(),
                digest: digest(layer),
                size: layer.size,
                annotations: Default::default(),
                platform: None,
            });
            let manifest = Manifest {
                schema_version: 2,
                media_type: Some(MANIFEST.to_owned()),
                config,
                layers: layers.collect(),
            };
            let mut descriptor = document(&mut blobs, MANIFEST, &manifest)?;
            // containerd takes the full name from its own annotation, others the tag from the standard one.
            let tag = image.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
            descriptor.annotations = [
                ("io.containerd.image.name".to_owned(), image.name.clone()),
                (
                    "org.opencontainers.image.ref.name".to_owned(),
                    tag.to_owned(),
                ),
            ]
            .into();
            descriptor.platform = Some(Platform {
                architecture: image.architecture.clone(),
                os: "linux".to_owned(),
            });
            manifests.push(descriptor);
        }
        let index = Index {
            schema_version: 2,
            media_type: Some(IMAGE_INDEX.to_owned()),
            manifests,
        };
        blobs.sort();
        blobs.dedup();
        Ok(Self {
            index: serde_json::to_vec(&index)?,
            blobs,
        })
    }
}

fn digest(blob: &Blob) -> String {
    format!("sha256:{}", blob.sha256)
}

fn document(
    blobs: &mut Vec<(String, Vec<u8>)>,
    media_type: &str,
    value: &impl Serialize,
) -> Result<Descriptor> {
    let bytes = serde_json::to_vec(value)?;
    let descriptor = descriptor(media_type, &bytes)?;
    blobs.push((HEXLOWER.encode(&Sha256::digest(&bytes)), bytes));
    Ok(descriptor)
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Result<Descriptor> {
    Ok(Descriptor {
        media_type: media_type.to_owned(),
        digest: format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(bytes))),
        size: u64::try_from(bytes.len())?,
        annotations: Default::default(),
        platform: None,
    })
}

/// The layers of all images without duplicates, sorted by digest.
fn layers(images: &[Image]) -> Vec<&Blob> {
    let mut layers: Vec<&Blob> = images.iter().flat_map(|image| &image.layers).collect();
    layers.sort_by(|a, b| a.sha256.cmp(&b.sha256));
    layers.dedup_by(|a, b| a.sha256 == b.sha256);
    layers
}

/// Writes images as an OCI layout into `folder`, which must be empty. `created` is in seconds since 1970.
///
/// # Errors
/// If a file cannot be written.
pub fn write_layout(folder: &Path, images: &[Image], created: u64) -> Result<()> {
    let documents = Documents::new(images, created)?;
    let about = || format!("writing the OCI layout {}", folder.display());
    let blobs = folder.join(BLOBS);
    fs::create_dir_all(&blobs).with_context(about)?;
    for (sha256, bytes) in &documents.blobs {
        fs::write(blobs.join(sha256), bytes).with_context(about)?;
    }
    for layer in layers(images) {
        let dest = blobs.join(&layer.sha256);
        // A layer in a step's folder is immutable, so a hard link is enough.
        if fs::hard_link(&layer.path, &dest).is_err() {
            fs::copy(&layer.path, &dest).with_context(about)?;
        }
    }
    fs::write(folder.join(INDEX), &documents.index).with_context(about)?;
    fs::write(folder.join(LAYOUT), LAYOUT_TEXT).with_context(about)
}

/// Writes a layout as one archive, as `ctr images import` takes it.
///
/// # Errors
/// If the layout cannot be read or the file cannot be written.
pub fn write_archive(layout: &Path, dest: &Path) -> Result<()> {
    atomic_file::write(dest, 0o644, |file| {
        let mut file = BufWriter::new(file);
        let mut archive = tar::Builder::new(&mut file);
        archive.mode(tar::HeaderMode::Deterministic);
        archive.append_dir_all(".", layout)?;
        archive.finish()?;
        drop(archive);
        Ok(file.flush()?)
    })
    .with_context(|| format!("writing {} as {}", layout.display(), dest.display()))
}

/// The documents of an image whose layers are unpacked already, for a runtime that has their files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// The manifest, which names no layers: there are no packed ones.
    pub manifest: String,
    /// The config.
    pub config: String,
    /// The chain id of its layers, `sha256:…`. That of a single layer is its digest.
    pub chain_id: String,
}

/// The documents of an image of one layer of which only the files exist. `created` is in seconds since 1970.
///
/// # Errors
/// If the image does not have exactly one layer.
pub fn unpacked(image: &Image, created: u64) -> Result<Unpacked> {
    let [layer] = image.layers.as_slice() else {
        bail!(
            "{} has {} layers, expected one",
            image.name,
            image.layers.len()
        );
    };
    let config = serde_json::to_string(&config(image, created))?;
    Ok(Unpacked {
        manifest: manifest_of(&config)?,
        config,
        chain_id: digest(layer),
    })
}

/// The manifest of an image with this config whose layers are unpacked already.
pub(super) fn manifest_of(config: &str) -> Result<String> {
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(MANIFEST.to_owned()),
        config: descriptor(CONFIG, config.as_bytes())?,
        layers: Vec::new(),
    };
    Ok(serde_json::to_string(&manifest)?)
}

fn config(image: &Image, created: u64) -> Config {
    Config {
        architecture: image.architecture.clone(),
        os: "linux".to_owned(),
        created: Some(rfc3339(created)),
        config: image.run.clone(),
        rootfs: DiffIds {
            kind: "layers".to_owned(),
            diff_ids: image.layers.iter().map(digest).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::read_layout;

    fn image(folder: &Path, name: &str) -> Image {
        let entries = [
            Entry::directory("/usr", 0o755),
            Entry::file(format!("/usr/{name}"), 0o755, "program"),
        ];
        Image {
            name: format!("slipway.local/{name}:baked"),
            architecture: "amd64".to_owned(),
            run: RunConfig {
                entrypoint: vec![format!("/usr/{name}")],
                ..RunConfig::default()
            },
            layers: vec![layer(&entries, 7, &folder.join(name)).unwrap()],
        }
    }

    #[test]
    fn a_layout_reads_back_and_is_the_same_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let images = [image(folder.path(), "one"), image(folder.path(), "two")];
        let written = |name: &str| {
            let layout = folder.path().join(name);
            write_layout(&layout, &images, 7).unwrap();
            layout
        };
        let layout = written("a");
        assert_eq!(
            fs::read(layout.join(INDEX)).unwrap(),
            fs::read(written("b").join(INDEX)).unwrap()
        );
        let read = read_layout(&layout, "slipway.local/two:baked", "amd64").unwrap();
        let program = folder.path().join("program");
        read.extract_file(&["bin/x", "usr/two"], 100, &program)
            .unwrap();
        assert_eq!(fs::read_to_string(program).unwrap(), "program");
        assert!(read_layout(&layout, "slipway.local/three:baked", "amd64").is_err());
        assert!(read_layout(&layout, "slipway.local/two:baked", "arm64").is_err());
    }

    #[test]
    fn a_changed_blob_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "one");
        let layout = folder.path().join("layout");
        write_layout(&layout, std::slice::from_ref(&image), 7).unwrap();
        let blob = layout.join(BLOBS).join(&image.layers[0].sha256);
        let mut bytes = fs::read(&blob).unwrap();
        bytes[0] ^= 1;
        fs::remove_file(&blob).unwrap();
        fs::write(&blob, bytes).unwrap();
        let error = read_layout(&layout, &image.name, "amd64").unwrap_err();
        assert!(format!("{error:#}").contains("expected"), "{error:#}");
    }

    #[test]
    fn an_unpacked_image_has_the_id_of_the_packed_one() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "one");
        let unpacked = unpacked(&image, 7).unwrap();
        let layout = folder.path().join("layout");
        write_layout(&layout, std::slice::from_ref(&image), 7).unwrap();
        let id = HEXLOWER.encode(&Sha256::digest(&unpacked.config));
        assert_eq!(
            fs::read_to_string(layout.join(BLOBS).join(&id)).unwrap(),
            unpacked.config
        );
        let manifest: Manifest = serde_json::from_str(&unpacked.manifest).unwrap();
        assert_eq!(manifest.config.digest, format!("sha256:{id}"));
        assert_eq!(manifest.layers, []);
        assert_eq!(
            unpacked.chain_id,
            format!("sha256:{}", image.layers[0].sha256)
        );
        let two = Image {
            layers: [&image.layers[..], &image.layers[..]].concat(),
            ..image
        };
        assert!(super::unpacked(&two, 7).is_err());
    }
}
