//! Initramfs: the init, the manifest, the kernel modules of the chosen platforms and their firmware, as compressed cpio archives,
//! one behind the other. Microcode comes before them, uncompressed.
//!
//! Modules are stored uncompressed: compressing the archive as a unit gives a smaller file, and the kernel
//! unpacks it faster. Equal input gives equal bytes.

mod base;
pub mod drivers;
pub mod firmware;
mod modinfo;
mod modprobe;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use image::manifest::Manifest;
use image::paths::{CA_BUNDLE, INITRD_CONFIG, INITRD_MANIFEST};

use crate::code;
use crate::format::cpio;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::install::Rootfs;
use crate::layer::Layer;
use crate::lock::LockedRecipe;
use crate::steps::identity::Identity;
use crate::steps::kernel::Kernel;
use firmware::Firmware;

pub use base::{Base, Signatures, prepare};

/// Level 19 makes it a tenth smaller, 0.35 MiB of 3.8, and takes nine times as long, while the packages' scripts want the other processor.
const LEVEL: i32 = 12;
/// The file's name in its step's folder.
const FILE: &str = "initrd.zst";

/// A packed initramfs.
#[derive(Clone, Debug)]
pub struct Initramfs {
    /// The compressed archives.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Hash of all inputs.
    pub key: Key,
}

/// The content of an initramfs.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Its first part.
    pub base: Base<'a>,
    /// The image's manifest.
    pub manifest: &'a Manifest,
    /// The recipe's config, if any.
    pub base_config: Option<&'a [u8]>,
    /// The recipe's certificate authorities, in PEM form: a boot from the network may fetch its root by HTTPS.
    pub ca_bundle: Option<&'a [u8]>,
    /// The root's packages, of which the firmware concerns the drivers and the processors.
    pub rootfs: Option<&'a Rootfs>,
    /// What lies over them, which may have firmware too.
    pub layers: &'a [Layer],
}

/// The content of a recipe's initramfs.
#[must_use]
pub fn contents<'a>(
    locked: &'a LockedRecipe,
    identity: &'a Identity,
    rootfs: &'a Rootfs,
    layers: &'a [Layer],
) -> Contents<'a> {
    let recipe = &locked.recipe;
    Contents {
        base: Base::of(recipe),
        manifest: &identity.manifest,
        base_config: recipe
            .ignition
            .as_ref()
            .map(|config| config.text.as_slice()),
        ca_bundle: Some(recipe.ca_bundle.as_bytes()).filter(|bundle| !bundle.is_empty()),
        rootfs: Some(rootfs),
        layers,
    }
}

/// Packs the initramfs.
///
/// # Errors
/// When the kernel lacks a wanted module, naming all such modules, or a file cannot be read.
pub fn pack(session: &Session, kernel: &Kernel, contents: &Contents) -> Result<Initramfs> {
    let step = session.progress.step("initramfs");
    let (base, _) = base::packed(session, kernel, &contents.base)?;
    let manifest = contents.manifest.to_text();
    let mut key = Key::of("initramfs", code::INITRAMFS)
        .key("base", &base.key)
        .text("manifest", &manifest);
    for (name, bytes) in [
        ("config", contents.base_config),
        ("certificates", contents.ca_bundle),
    ] {
        if let Some(bytes) = bytes {
            key = key.bytes(name, bytes);
        }
    }
    let packages = contents.rootfs.map_or(&[][..], Rootfs::entries);
    let firmware =
        Firmware::of(packages, contents.layers).context("looking for the root's firmware")?;
    // A root without firmware may change without a new initramfs.
    if !firmware.is_empty() {
        let packages = contents.rootfs.map(|rootfs| &rootfs.key);
        let layers = contents.layers.iter().map(|layer| &layer.key);
        for lower in packages.into_iter().chain(layers) {
            key = key.key("firmware", lower);
        }
    }
    let key = key.finish();
    let made = session.cache.step("initramfs", &key, |folder| {
        let own = own(contents, &manifest)?;
        let own = with_firmware(own, &firmware, &base)?;
        let own = zstd::bulk::compress(&own, LEVEL).context("compressing the initramfs")?;
        let early = firmware.early().context("collecting the microcode")?;
        let all = [early, base.archive, own].concat();
        fs::write(folder.join(FILE), all).context("writing the initramfs")
    })?;
    let path = made.path.join(FILE);
    let size = fs::metadata(&path).context("reading the initramfs")?.len();
    step.done(made.hit, Some(size));
    Ok(Initramfs { path, size, key })
}

/// What is the image's own.
fn own(contents: &Contents, manifest: &str) -> Result<cpio::Archive> {
    let mut archive = cpio::Archive::new();
    archive.file(INITRD_MANIFEST, 0o644, manifest.as_bytes())?;
    if let Some(config) = contents.base_config {
        // The config may contain secrets.
        archive.file(INITRD_CONFIG, 0o600, config)?;
    }
    if let Some(bundle) = contents.ca_bundle {
        archive.file(CA_BUNDLE, 0o644, bundle)?;
    }
    Ok(archive)
}

/// The archive with the drivers' firmware.
fn with_firmware(
    mut archive: cpio::Archive,
    firmware: &Firmware,
    base: &base::Packed,
) -> Result<Vec<u8>> {
    firmware
        .add(&mut archive, &base.firmware)
        .context("collecting the drivers' firmware")?;
    archive.finish()
}
