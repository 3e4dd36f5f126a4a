//! Output formats: one module each.

pub mod aws;
pub mod gce;
pub mod gzip;
pub mod pxe;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::layout::{Architecture, GIB, MIB, Sizes};
use image::manifest::ImageId;

use crate::host::session::Session;
use crate::install::tools::Tools;
use crate::recipe::ArtifactKind;
use crate::steps::bootable::Bootable;
use crate::steps::disk::Disk;
use crate::steps::root::Root;

/// The raw disk in the output folder.
pub const DISK: &str = "disk.raw";
/// The disk in QEMU's format.
pub const QCOW2: &str = "disk.qcow2";
/// The archive for Google Compute Engine.
pub const GCE: &str = "gce.tar.gz";
/// The request that registers [`DISK`] at AWS.
pub const AWS: &str = "aws-register-image.json";
/// Where the output folder is inside qemu-img's namespace.
const INSIDE: &str = "/work";

/// What artifacts are made of.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The tools tree, which has `qemu-img`.
    pub tools: &'a Tools,
    /// Name and version of the image.
    pub image: &'a ImageId,
    /// What machines it is for.
    pub architecture: Architecture,
    /// The raw disk.
    pub disk: &'a Disk,
    /// Kernel, initramfs and command line.
    pub bootable: &'a Bootable,
    /// The root.
    pub root: &'a Root,
    /// Sizes of a node's partitions.
    pub sizes: &'a Sizes,
    /// Times inside archives, seconds since 1970.
    pub epoch: u64,
}

/// What the raw disk's size must be a multiple of, in bytes, so that all these artifacts can be made of it.
#[must_use]
pub fn size_multiple(kinds: &[ArtifactKind]) -> u64 {
    let clouds = [ArtifactKind::Aws, ArtifactKind::Gce];
    if kinds.iter().any(|kind| clouds.contains(kind)) {
        GIB
    } else {
        MIB
    }
}

/// Writes the artifacts of these kinds into the folder `output`.
///
/// # Errors
/// As [`write()`].
pub fn write_all(
    session: &Session,
    kinds: &[ArtifactKind],
    inputs: &Inputs,
    output: &Path,
) -> Result<()> {
    for kind in kinds {
        write(session, *kind, inputs, output)?;
    }
    Ok(())
}

/// Writes one artifact into the folder `output`. Gives its files, relative to that.
///
/// # Errors
/// When it cannot be written.
pub fn write(
    session: &Session,
    kind: ArtifactKind,
    inputs: &Inputs,
    output: &Path,
) -> Result<Vec<PathBuf>> {
    let step = session.progress.step(kind.name());
    let naming = || format!("making the artifact {}", kind.name());
    let files = match kind {
        ArtifactKind::Qcow2 => qcow2(inputs.disk, inputs.tools, output).with_context(naming)?,
        ArtifactKind::Gce => {
            gce::write(&inputs.disk.path, &output.join(GCE), inputs.epoch).with_context(naming)?;
            vec![PathBuf::from(GCE)]
        }
        ArtifactKind::Aws => {
            let Inputs {
                image,
                architecture,
                disk,
                sizes,
                ..
            } = *inputs;
            let text = aws::request(image, architecture, disk.size, sizes).with_context(naming)?;
            fs::write(output.join(AWS), text).with_context(naming)?;
            vec![PathBuf::from(AWS)]
        }
        ArtifactKind::Pxe => {
            pxe::write(inputs.bootable, inputs.root, output).with_context(naming)?
        }
    };
    let bytes = files
        .iter()
        .map(|file| fs::metadata(output.join(file)).map_or(0, |meta| meta.len()))
        .sum();
    step.made(Some(bytes));
    Ok(files)
}

fn qcow2(disk: &Disk, tools: &Tools, output: &Path) -> Result<Vec<PathBuf>> {
    let folder = disk.path.parent().context("a disk lies in a folder")?;
    let name = disk
        .path
        .file_name()
        .and_then(|name| name.to_str())
        .context("a disk has a name")?;
    // Refcounts and tables of the third version; nothing in the file depends on the clock or on names.
    tools
        .sandbox()
        .bind_read_only(folder, "/disk")
        .bind(output, INSIDE)
        .command("/usr/bin/qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2", "-o", "compat=1.1"])
        .args([format!("/disk/{name}"), format!("{INSIDE}/{QCOW2}")])
        .run()?;
    Ok(vec![PathBuf::from(QCOW2)])
}
