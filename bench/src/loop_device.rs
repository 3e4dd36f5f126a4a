//! A loop device on an empty file, freed however the program ends.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use slipway::install::tools::Tools;
use tempfile::NamedTempFile;

/// Path of the file's folder in the sandbox.
const FOLDER: &str = "/image";
/// The node that allocates loop devices.
const CONTROL: &str = "/dev/loop-control";
/// Offset of ext4's superblock, and of its magic number and label in it, bytes.
const SUPERBLOCK: u64 = 1024;
const MAGIC: usize = 0x38;
const LABEL: usize = 0x78;

/// The device.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: String,
    // The kernel frees the device when the last descriptor is closed, also if this program is killed.
    _open: File,
    _image: NamedTempFile,
}

impl LoopDevice {
    /// Attaches a file of `size` bytes in `folder`.
    ///
    /// # Errors
    /// If this host has no loop device.
    pub(crate) fn attach(tools: &Tools, folder: &Path, size: u64) -> Result<Self> {
        ensure!(Path::new(CONTROL).exists(), "this host has no {CONTROL}");
        let image = NamedTempFile::new_in(folder)?;
        image.as_file().set_len(size)?;
        let name = image
            .path()
            .file_name()
            .context("a temporary file's name")?;
        let losetup = || {
            let sandbox = tools.sandbox().bind(folder, FOLDER);
            let sandbox = sandbox.bind(Path::new("/dev"), "/dev");
            let sandbox = sandbox.bind_read_only(Path::new("/sys"), "/sys");
            sandbox.command("losetup")
        };
        // With `--partscan` the kernel creates the partitions' nodes.
        let said = losetup()
            .args(["--find", "--show", "--partscan"])
            .arg(Path::new(FOLDER).join(name))
            .run()
            .context("attaching a loop device")?;
        let path = String::from_utf8(said)?.trim().to_owned();
        let opened = File::open(&path);
        // An open device is detached when it is closed (losetup(8), `--detach`).
        let marked = losetup().args(["--detach", &path]).run();
        let open = opened.with_context(|| format!("opening {path}"))?;
        marked.context("marking the loop device to be freed")?;
        Ok(Self {
            path,
            _open: open,
            _image: image,
        })
    }

    /// The device's node.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Fails unless partition `number` has an ext4 with this label.
    pub(crate) fn expect_ext4(&self, number: u32, label: &str) -> Result<()> {
        let path = format!("{}p{number}", self.path);
        let mut block = [0; 1024];
        File::open(&path)
            .and_then(|file| file.read_exact_at(&mut block, SUPERBLOCK))
            .with_context(|| format!("reading {path}"))?;
        ensure!(
            block[MAGIC..MAGIC + 2] == [0x53, 0xef],
            "there is no ext4 on {path}"
        );
        let found = &block[LABEL..LABEL + 16];
        let found = String::from_utf8_lossy(found);
        let found = found.trim_end_matches('\0');
        ensure!(found == label, "{path} is labelled {found}, not {label}");
        Ok(())
    }
}
