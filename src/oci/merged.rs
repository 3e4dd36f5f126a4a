//! An image whose layers are merged into one folder: what a runtime needs that has the files already, and single files of an image.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::merge::{self, Tree};
use super::read::Pulled;
use super::types::{CONFIG, DiffIds};
use super::write::{Unpacked, manifest_of};
use crate::code;
use crate::host::cache::{Cache, Key};
use crate::host::progress::Step;
use crate::layer::merge::resolve;
use crate::layer::{self, Entry, Kind, Source};

/// Media type of a config, as Docker has it: the same document.
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// The file of the folder with the documents and the entries.
const INDEX: &str = "merged.json";

/// An image with its layers merged. Its config is the image's own, byte for byte, so that it has its usual id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// Its config, and a manifest without layers.
    pub documents: Unpacked,
    /// Its files below `/`, sorted by path. Their contents are in the folder that it was merged in.
    pub entries: Vec<Entry>,
}

/// What is read of a config; programs, users and variables are the runtime's.
#[derive(Deserialize)]
struct Read {
    architecture: String,
    os: String,
    rootfs: DiffIds,
}

impl Merged {
    /// Merges the layers of an image for this architecture in `folder`, which keeps them.
    ///
    /// # Errors
    /// If it is not an image, is one for other machines, or a layer is damaged or has what an image cannot have.
    pub fn make(image: &Pulled, architecture: &str, folder: &Path) -> Result<Self> {
        let (media_type, path) = &image.config;
        ensure!(
            [CONFIG, DOCKER_CONFIG].contains(&media_type.as_str()),
            "{} is not a container image: its config is of the type {media_type:?}",
            image.digest
        );
        let config = fs::read_to_string(path).context("reading the config")?;
        let read: Read = serde_json::from_str(&config).context("reading the config")?;
        ensure!(
            (read.os.as_str(), read.architecture.as_str()) == ("linux", architecture),
            "{} is an image for {}/{}, expected linux/{architecture}",
            image.digest,
            read.os,
            read.architecture
        );
        let ids = read.rootfs.diff_ids;
        let tree = lay(image, &ids, folder)?;
        let chain_id = merge::chain_id(&ids);
        let chain_id = chain_id.with_context(|| format!("{} has no layers", image.digest))?;
        let merged = Self {
            documents: Unpacked {
                manifest: manifest_of(&config)?,
                config,
                chain_id,
            },
            entries: tree.finish(),
        };
        fs::write(folder.join(INDEX), serde_json::to_vec(&merged)?)?;
        Ok(merged)
    }

    /// [`Merged::make`] in the cache; gives the key of the content too, and whether it was there.
    ///
    /// # Errors
    /// As [`Merged::make`].
    pub fn cached(
        cache: &Cache,
        image: &Pulled,
        architecture: &str,
        step: &Step,
    ) -> Result<(Self, Key, bool)> {
        let key = Key::of("merged image", code::CONTAINERS)
            .text("manifest", &image.digest)
            .text("architecture", architecture)
            .finish();
        let made = cache.step("merged-image", &key, |out| {
            step.note("merging layers");
            Self::make(image, architecture, out).map(|_| ())
        })?;
        Ok((Self::open(&made.path)?, key, made.hit))
    }

    /// Reads what [`Merged::make`] left in a folder, which may have been moved since.
    ///
    /// # Errors
    /// If it is not there.
    pub fn open(folder: &Path) -> Result<Self> {
        let index = folder.join(INDEX);
        let about = || format!("reading {}", index.display());
        let text = fs::read(&index).with_context(about)?;
        let mut merged: Self = serde_json::from_slice(&text).with_context(about)?;
        for entry in &mut merged.entries {
            if let Kind::File(Source::Range { file, .. }) = &mut entry.kind {
                let name = file.file_name().context("a file without a name")?;
                *file = folder.join(name);
            }
        }
        Ok(merged)
    }
}

impl Pulled {
    /// Writes the first of these files (paths without a leading slash) that exists in the image to `dest`, at most `limit` bytes. The
    /// layers are merged beside `dest` for it: a higher layer may have a path as a link, reach it through a link of a lower one, or
    /// remove a folder around it.
    ///
    /// # Errors
    /// If a layer is damaged or has what an image cannot have, the image has none of the files, or the file is larger.
    pub fn extract_file(&self, places: &[&str], limit: u64, dest: &Path) -> Result<()> {
        let config = fs::read_to_string(&self.config.1).context("reading the config")?;
        let read: Read = serde_json::from_str(&config).context("reading the config")?;
        let around = dest.parent().context("the top of the file system")?;
        let folder = tempfile::tempdir_in(around).context("making a folder for the layers")?;
        let entries = lay(self, &read.rootfs.diff_ids, folder.path())?.finish();
        let entries = entries.into_iter().map(|entry| (entry.path.clone(), entry));
        let entries: layer::merge::Tree = entries.collect();
        for place in places {
            let Some((file, offset, size)) = content(&entries, place)? else {
                continue;
            };
            ensure!(
                size <= limit,
                "{place} has {size} bytes, expected at most {limit}"
            );
            let about = || format!("copying {place} of {}", self.digest);
            let mut from = File::open(file).with_context(about)?;
            from.seek(SeekFrom::Start(offset)).with_context(about)?;
            let mut to = File::create(dest).with_context(about)?;
            io::copy(&mut from.take(size), &mut to).with_context(about)?;
            return Ok(());
        }
        bail!("the image {} has none of {places:?}", self.digest)
    }
}

/// Where the content of the file is that a path leads to; none if there is none.
fn content<'a>(
    entries: &'a layer::merge::Tree,
    path: &str,
) -> Result<Option<(&'a Path, u64, u64)>> {
    let mut found = entries.get(&resolve(entries, path, true)?);
    if let Some(Kind::HardLink(target)) = found.map(|entry| &entry.kind) {
        found = entries.get(target);
    }
    Ok(match found.map(|entry| &entry.kind) {
        Some(Kind::File(Source::Range { file, offset, size })) => {
            Some((file.as_path(), *offset, *size))
        }
        _ => None,
    })
}

/// Unpacks the layers of an image to plain archives in `folder`, and lays them over one another. The digests of the unpacked layers are
/// `ids`.
fn lay(image: &Pulled, ids: &[String], folder: &Path) -> Result<Tree> {
    ensure!(
        ids.len() == image.layers.len(),
        "the config of {} names {} layers, its manifest {}",
        image.digest,
        ids.len(),
        image.layers.len()
    );
    let mut tree = Tree::default();
    for (at, ((media_type, packed), id)) in image.layers.iter().zip(ids).enumerate() {
        let plain = folder.join(format!("layer-{at}.tar"));
        merge::unpack(media_type, packed, id, &plain)
            .and_then(|()| tree.lay(&plain))
            .with_context(|| format!("layer {at} of {}", image.digest))?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests;
