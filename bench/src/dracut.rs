//! dracut's initrd, made in the peers' tree for our kernel.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::steps::kernel::Kernel;

use crate::peers::{Peers, WORK};

/// Modules for a verified root: systemd, and the generator and program that open it.
const MODULES: &str = "systemd systemd-initrd systemd-veritysetup dm";
/// The root's drivers, which a generic image has only on request.
const DRIVERS: &str = "erofs dm-verity";
/// Path of the kernel's modules in the sandbox; dracut requires the end of this path.
const KERNEL: &str = "/kernel/lib/modules";

/// Makes the image in the peers' folder. It is generic (`--no-hostonly`), as an image
/// for other machines must be; the compression is that of ours.
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
