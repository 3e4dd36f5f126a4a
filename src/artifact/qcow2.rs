//! The disk in QEMU's format.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::layout::MIB;

use super::{Artifact, Inputs};
use crate::host::sandbox::Sandbox;

/// The disk in the output folder.
const FILE: &str = "disk.qcow2";
/// Path of the output folder inside qemu-img's namespace.
const INSIDE: &str = "/work";

/// The row of the table.
pub(super) static ROW: Artifact = Artifact {
    name: "qcow2",
    help: "QEMU's format.",
    size_multiple: MIB,
    any_sectors: true,
    write,
};

fn write(inputs: &Inputs, output: &Path) -> Result<Vec<PathBuf>> {
    let folder = inputs.disk.parent().context("a disk lies in a folder")?;
    let name = inputs
        .disk
        .file_name()
        .and_then(|name| name.to_str())
        .context("a disk has a name")?;
    // Refcounts and tables of version 3; the file's bytes do not depend on the clock or on names.
    Sandbox::read_only(inputs.tools)
        .bind_read_only(folder, "/disk")
        .bind(output, INSIDE)
        .command("/usr/bin/qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2", "-o", "compat=1.1"])
        .args([format!("/disk/{name}"), format!("{INSIDE}/{FILE}")])
        .run()?;
    Ok(vec![FILE.into()])
}
