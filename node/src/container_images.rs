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
    // Before containerd's data: an earlier Slipway's root that boots next would stay with this one's images.
    forget_marks(&root)?;
    containerd.write()?;
    tracing::info!(
        "the {number} images of the root are written into containerd's data, and {gone} snapshots whose folder was in an earlier root are removed from it"
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
mod tests;
