//! dracut's initrd, made in the peers' tree for our kernel.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::steps::kernel::Kernel;

use crate::peers::{Peers, WORK};

/// What a verified root needs beside dracut's defaults: its own systemd, and the generator and program that open it.
const MODULES: &str = "systemd systemd-initrd systemd-veritysetup dm";
/// The file system of the root, which a generic image does not bring unless asked.
const DRIVERS: &str = "erofs dm-verity";
/// Where the peers find the kernel's modules; dracut wants the end of this path.
const KERNEL: &str = "/kernel/lib/modules";

/// Makes the image in the folder that the peers see as their own. It is generic (`--no-hostonly`), as an image that
/// is to boot on other machines must be; the compression is ours.
///
/// # Errors
/// If dracut fails.
pub(crate) fn make(peers: &Peers, work: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let modules = kernel
        .modules
        .parent()
        .context("the kernel's modules have no folder")?;
    peers
        .sandbox(work)?
        .bind_read_only(modules, KERNEL)
        .command("dracut")
        .args(["--force", "--no-hostonly", "--no-hostonly-cmdline"])
        .args(["--no-early-microcode", "--reproducible"])
        .args(["--compress", "zstd -19 -T0"])
        .args(["--add", MODULES, "--add-drivers", DRIVERS])
        .args(["--kver", &kernel.release])
        .args(["--kmoddir", &format!("{KERNEL}/{}", kernel.release)])
        .args(["--tmpdir", "/var/tmp"])
        .arg(format!("{WORK}/dracut.img"))
        .run()
        .context("making dracut's initrd")?;
    Ok(work.join("dracut.img"))
}
