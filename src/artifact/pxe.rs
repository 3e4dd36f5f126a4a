//! The folder for a boot from the network: kernel, initrd, root, and the script for iPXE.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::cmdline::ROOT_URL;
use image::layout::MIB;
use image::verity::BLOCK;

use super::{Artifact, Inputs};
use crate::format::sparse;

/// The folder in the output.
const FOLDER: &str = "pxe";
/// The kernel in it.
const KERNEL: &str = "vmlinuz";
/// The initramfs in it.
const INITRD: &str = "initrd";
/// The root in it: the EROFS, padded to a block, and its hash tree.
const ROOT: &str = "root";
/// The script in it.
const SCRIPT: &str = "boot.ipxe";

/// The row of the table.
pub(super) static ROW: Artifact = Artifact {
    name: "pxe",
    help: "Kernel, initrd, root and iPXE script for a boot from the network.",
    size_multiple: MIB,
    any_sectors: true,
    write,
};

fn write(inputs: &Inputs, output: &Path) -> Result<Vec<PathBuf>> {
    let folder = output.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for (from, name) in [(inputs.vmlinuz, KERNEL), (inputs.initrd, INITRD)] {
        fs::copy(from, folder.join(name)).with_context(|| format!("copying {}", from.display()))?;
    }
    let path = folder.join(ROOT);
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("replacing {}", path.display()))?;
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("writing {}", path.display()))?;
    let data = sparse::copy(inputs.erofs, &file, 0)?.next_multiple_of(BLOCK);
    let hashes = sparse::copy(inputs.verity, &file, data)?;
    file.set_len(data + hashes)?;
    fs::write(folder.join(SCRIPT), script(inputs.cmdline))
        .with_context(|| format!("writing {SCRIPT}"))?;
    Ok([KERNEL, INITRD, ROOT, SCRIPT]
        .map(|name| Path::new(FOLDER).join(name))
        .into())
}

/// The script. It loads the files from its own folder on the server, unless `base` was set before its start.
/// The init fetches the root itself, so that it is verified while it streams and is in memory once.
fn script(cmdline: &str) -> String {
    format!(
        "#!ipxe\n\
         isset ${{base}} || set base ${{cwuri}}/..\n\
         kernel {KERNEL} {ROOT_URL}=${{base}}/{ROOT} {cmdline}\n\
         initrd {INITRD}\n\
         boot\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_names_every_file() {
        assert_eq!(
            script("roothash=ab console=ttyS0"),
            "#!ipxe\n\
             isset ${base} || set base ${cwuri}/..\n\
             kernel vmlinuz slipway.root=${base}/root roothash=ab console=ttyS0\n\
             initrd initrd\n\
             boot\n"
        );
    }
}
