//! ext4, made, checked and grown: the options of mkfs.ext4, the exit codes of e2fsck, and the kernel's own growth.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use image::fault::Fault;

use crate::filesystem::ext::Superblock;
use crate::ioctl;
use crate::programs::{self, Programs};
use crate::tools::Tool;

/// Options by which the node's own ext4 file systems differ.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The label, at most 16 bytes.
    pub label: &'a str,
    /// The UUID in the usual text form; a random one if none.
    pub uuid: Option<&'a str>,
    /// Whether it gets an orphan file, for many processes that remove or truncate open files at the same time.
    pub orphan_file: bool,
    /// Whether existing content is overwritten. Without this mke2fs is the second opinion: it refuses where libblkid
    /// finds anything.
    pub overwrite: bool,
}

impl Options<'_> {
    /// The arguments of mkfs.ext4 before the device.
    fn arguments(&self) -> Vec<String> {
        // mke2fs makes an orphan file with up to 512 blocks, which every mount reads whole, one block after another (the
        // kernel's `fs/ext4/orphan.c`). A few blocks are enough for the processors to share.
        let (orphan_file, its_size) = match self.orphan_file {
            true => ("orphan_file", ",orphan_file_size=128K"),
            false => ("^orphan_file", ""),
        };
        // Nothing is discarded and no inode table zeroed here: the kernel zeroes the tables later, in the background.
        let extended = format!("lazy_itable_init=1,lazy_journal_init=1,nodiscard{its_size}");
        // With fast commits bbolt, and so etcd, loses data after a power cut: https://github.com/etcd-io/bbolt/issues/562
        let features = format!("^fast_commit,{orphan_file}");
        let mut out = vec!["-q", "-m", "1", "-L", self.label, "-O", &features];
        out.extend(["-E", &extended]);
        if let Some(uuid) = self.uuid {
            out.extend(["-U", uuid]);
        }
        if self.overwrite {
            out.push("-F");
        }
        out.into_iter().map(str::to_owned).collect()
    }
}

/// Makes an ext4 file system on a device.
///
/// # Errors
/// If mkfs.ext4 is not in the root or fails.
pub fn make(root: &Programs, device: &Path, options: Options<'_>) -> Result<()> {
    let mkfs = Tool::MkfsExt4.find(root)?;
    let mut arguments = options.arguments();
    arguments.push(device.to_string_lossy().into_owned());
    programs::succeed(root, &mkfs, &arguments)?;
    Ok(())
}

/// Checks the file system on an unmounted device: the journal is replayed and, if the superblock asks for it, the
/// complete file system is checked; safe corrections are made. Messages show `name` for the device and `fix` as the
/// remedy for damage.
///
/// # Errors
/// A [`Fault`] if errors are left; else if e2fsck is not in the root or does not start.
pub fn check(root: &Programs, device: &Path, name: &str, fix: &str) -> Result<()> {
    tracing::info!("checking {name}, which was not unmounted cleanly");
    let e2fsck = Tool::E2fsck.find(root)?;
    let device = device.to_string_lossy();
    let output = programs::run(root, &e2fsck, &["-p", &device])?;
    // e2fsck(8): 1 and 2 mean that errors were corrected; the reboot that 2 asks for is for mounted file systems only.
    match output.status.code() {
        Some(0..=2) => Ok(()),
        code => Err(Fault::new(format!("the file system on {name} is damaged"))
            .expected("a file system that e2fsck -p can repair")
            .found(format!(
                "e2fsck ended with {}: {}",
                code.map_or("a signal".to_owned(), |code| code.to_string()),
                output.stdout.trim().replace('\n', " | ")
            ))
            .fix(fix)
            .into()),
    }
}

/// Grows the file system that is mounted at `mounted` to `size` bytes, unless it would gain less than `at_least`. `name`
/// is the device's for people.
///
/// # Errors
/// If the kernel refuses.
pub fn grow(
    name: &str,
    superblock: &Superblock,
    size: u64,
    mounted: &Path,
    at_least: u64,
) -> Result<()> {
    let (block, blocks) = (superblock.block, size / superblock.block);
    if blocks.saturating_sub(superblock.blocks) * block < at_least {
        return Ok(());
    }
    tracing::info!(
        "growing {name} from {} to {blocks} blocks",
        superblock.blocks
    );
    let folder = File::open(mounted).with_context(|| format!("opening {}", mounted.display()))?;
    ioctl::grow_ext4(&folder, blocks).with_context(|| format!("growing {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_small_and_of_a_busy_file_system() {
        let mut options = Options {
            label: "etcd",
            uuid: Some("u-u-i-d"),
            orphan_file: false,
            overwrite: false,
        };
        assert_eq!(
            options.arguments().join(" "),
            "-q -m 1 -L etcd -O ^fast_commit,^orphan_file \
             -E lazy_itable_init=1,lazy_journal_init=1,nodiscard -U u-u-i-d"
        );
        options = Options {
            label: "var",
            uuid: None,
            orphan_file: true,
            overwrite: true,
        };
        assert_eq!(
            options.arguments().join(" "),
            "-q -m 1 -L var -O ^fast_commit,orphan_file \
             -E lazy_itable_init=1,lazy_journal_init=1,nodiscard,orphan_file_size=128K -F"
        );
    }
}
