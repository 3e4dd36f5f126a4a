//! Reads images: manifests by platform, blobs by digest, packed layers.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fetch::oci::{Descriptor, Document, Index};

use super::types::{BLOBS, INDEX};
use crate::format::digest;

/// An image whose blobs are stored locally and verified.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// Digest of its manifest, as `sha256:…`.
    pub digest: String,
    /// Its config: media type and file.
    pub config: (String, PathBuf),
    /// Its layers, the lowest first: media type and file.
    pub layers: Vec<(String, PathBuf)>,
}

/// The hexadecimal part of a `sha256:` digest.
pub(super) fn sha256(digest: &str) -> Result<&str> {
    let digits = digest.strip_prefix("sha256:").unwrap_or_default();
    ensure!(
        fetch::oci::sha256(digest).is_some(),
        "{digest:?} is not a digest; expected sha256: and 64 hexadecimal digits"
    );
    Ok(digits)
}

/// The full name of an image of a layout, or its tag.
fn name_of(manifest: &Descriptor) -> Option<&str> {
    let notes = &manifest.annotations;
    let found = notes
        .get("io.containerd.image.name")
        .or_else(|| notes.get("org.opencontainers.image.ref.name"));
    found.map(String::as_str)
}

/// Reads the image `name` of an OCI layout, every blob verified by its digest. `name` is the image's full name, of which the
/// layout may have the tag alone, or its tag. A layout of one image without a name has that one.
///
/// # Errors
/// If the layout has no such image for this architecture, or a blob does not match its digest.
pub fn read_layout(folder: &Path, name: &str, architecture: &str) -> Result<Pulled> {
    read_from(folder, name, architecture)
        .with_context(|| format!("reading the OCI layout {}", folder.display()))
}

fn read_from(folder: &Path, name: &str, architecture: &str) -> Result<Pulled> {
    let text = fs::read(folder.join(INDEX)).with_context(|| format!("reading {INDEX}"))?;
    let mut index: Index =
        serde_json::from_slice(&text).with_context(|| format!("reading {INDEX}"))?;
    choose(&mut index, name)?;
    let blob = |descriptor: &Descriptor| -> Result<PathBuf> {
        let expected = sha256(&descriptor.digest)?;
        let path = folder.join(BLOBS).join(expected);
        let found = digest::sha256(&path)?;
        ensure!(
            found == expected,
            "{} has SHA-256 {found}, expected {expected}",
            path.display()
        );
        Ok(path)
    };
    let one = |index: &Index| -> Result<(Descriptor, Document)> {
        let descriptor = index.for_linux(architecture).map_err(anyhow::Error::msg)?;
        let document = Document::read(&fs::read(blob(descriptor)?)?);
        let document = document.with_context(|| format!("reading {}", descriptor.digest))?;
        Ok((descriptor.clone(), document))
    };
    // Tools that build for several machines write an index for them below the layout's.
    let (descriptor, document) = match one(&index)? {
        (_, Document::Index(inner)) => one(&inner)?,
        manifest => manifest,
    };
    let Document::Manifest(manifest) = document else {
        bail!("{} is an index in an index", descriptor.digest);
    };
    let file = |found: &Descriptor| Ok((found.media_type.clone(), blob(found)?));
    let config = file(&manifest.config)?;
    Ok(Pulled {
        digest: descriptor.digest,
        config,
        layers: manifest.layers.iter().map(file).collect::<Result<_>>()?,
    })
}

/// Leaves the manifests of a name.
fn choose(index: &mut Index, name: &str) -> Result<()> {
    let tag = name.rsplit_once(':').map_or(name, |(_, tag)| tag);
    let names: Vec<&str> = index.manifests.iter().filter_map(name_of).collect();
    if names.is_empty() && index.manifests.len() == 1 {
        return Ok(());
    }
    let wanted = [name, tag]
        .into_iter()
        .find(|wanted| names.contains(wanted))
        .with_context(|| format!("it has no image {name:?}; there are {names:?}"))?
        .to_owned();
    let manifests = &mut index.manifests;
    manifests.retain(|manifest| name_of(manifest) == Some(&wanted));
    Ok(())
}

/// The content of a packed layer.
///
/// # Errors
/// If the media type is unknown.
pub(super) fn decoder(media_type: &str, layer: &Path) -> Result<Box<dyn Read>> {
    let file = io::BufReader::with_capacity(1 << 18, File::open(layer)?);
    Ok(match media_type.rsplit_once(['+', '.']) {
        Some((_, "gzip")) => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Some((_, "zstd")) => Box::new(zstd::Decoder::new(file)?),
        Some((_, "tar")) => Box::new(file),
        _ => bail!("a layer of the unknown type {media_type:?}"),
    })
}
