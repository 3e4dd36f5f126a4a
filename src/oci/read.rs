//! Reads images: manifests by platform, blobs by digest, files from layers.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fetch::oci::{Descriptor, Index, Manifest};

use super::types::{BLOBS, INDEX};
use crate::format::digest;

/// An image whose blobs are stored locally and verified.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// Digest of its manifest, as `sha256:…`.
    pub digest: String,
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

/// Reads the image `name` of an OCI layout, every blob verified by its digest. `name` is the image's full name or
/// its tag.
///
/// # Errors
/// If the layout has no such image for this architecture, or a blob does not match its digest.
pub fn read_layout(folder: &Path, name: &str, architecture: &str) -> Result<Pulled> {
    let about = || format!("reading the OCI layout {}", folder.display());
    let text = fs::read(folder.join(INDEX)).with_context(about)?;
    let mut index: Index = serde_json::from_slice(&text).with_context(about)?;
    let mut names = Vec::new();
    index.manifests.retain(|manifest| {
        let notes = &manifest.annotations;
        let found = notes
            .get("io.containerd.image.name")
            .or_else(|| notes.get("org.opencontainers.image.ref.name"));
        names.extend(found.cloned());
        found.is_some_and(|found| found == name)
    });
    ensure!(
        !index.manifests.is_empty(),
        "{} has no image {name:?}; there are {names:?}",
        folder.display()
    );
    let descriptor = index
        .for_linux(architecture)
        .map_err(anyhow::Error::msg)
        .with_context(about)?;
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
    let manifest = fs::read(blob(descriptor).with_context(about)?)?;
    let manifest: Manifest = serde_json::from_slice(&manifest).with_context(about)?;
    blob(&manifest.config).with_context(about)?;
    let layers = manifest.layers.iter().map(|layer| {
        let path = blob(layer).with_context(about)?;
        Ok((layer.media_type.clone(), path))
    });
    Ok(Pulled {
        digest: descriptor.digest.clone(),
        layers: layers.collect::<Result<_>>()?,
    })
}

impl Pulled {
    /// Writes the first of these files (paths without a leading slash) that exists in the image to `dest`, at most
    /// `limit` bytes.
    ///
    /// # Errors
    /// If the image has none of them, or the file is larger.
    pub fn extract_file(&self, places: &[&str], limit: u64, dest: &Path) -> Result<()> {
        for place in places {
            // The highest layer with the file or its whiteout decides.
            for (media_type, path) in self.layers.iter().rev() {
                match find(media_type, path, place, limit, dest)
                    .with_context(|| format!("reading a layer of {}", self.digest))?
                {
                    Found::Written => return Ok(()),
                    Found::Removed => break,
                    Found::Nothing => {}
                }
            }
        }
        bail!("the image {} has none of {places:?}", self.digest)
    }
}

enum Found {
    Written,
    Removed,
    Nothing,
}

fn find(media_type: &str, path: &Path, place: &str, limit: u64, dest: &Path) -> Result<Found> {
    let file = io::BufReader::new(File::open(path)?);
    let reader: Box<dyn Read> = match media_type.rsplit_once(['+', '.']) {
        Some((_, "gzip")) => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Some((_, "zstd")) => Box::new(zstd::Decoder::new(file)?),
        Some((_, "tar")) => Box::new(file),
        _ => bail!("a layer of the unknown type {media_type:?}"),
    };
    let (folder, name) = place.rsplit_once('/').unwrap_or(("", place));
    let whiteout = Path::new(folder).join(format!(".wh.{name}"));
    let mut archive = tar::Archive::new(reader);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let found = entry.path()?;
        let found = found
            .strip_prefix("/")
            .or_else(|_| found.strip_prefix("."))
            .unwrap_or(&found);
        if found == whiteout {
            return Ok(Found::Removed);
        }
        if found != Path::new(place) || !entry.header().entry_type().is_file() {
            continue;
        }
        let size = entry.size();
        ensure!(
            size <= limit,
            "{place} has {size} bytes, expected at most {limit}"
        );
        io::copy(&mut entry, &mut File::create(dest)?)?;
        return Ok(Found::Written);
    }
    Ok(Found::Nothing)
}
