//! The root file system of a built image as a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway::host::cache::Key;
use slipway::host::sandbox::Sandbox;
use slipway::host::session::Session;
use slipway::install::tools::Tools;

/// The image's root, and what else its nodes need of it.
#[derive(Clone, Debug)]
pub struct ImageRoot {
    /// The tree, in the cache.
    pub tree: PathBuf,
    /// The image's manifest, which the init hands to the running node.
    pub manifest: PathBuf,
}

impl ImageRoot {
    /// Unpacks the root of the image in `out`, the output folder of a build with the artifact `pxe`, into the cache.
    ///
    /// # Errors
    /// If it is not there or cannot be unpacked.
    pub fn unpack(session: &Session, tools: &Tools, out: &Path) -> Result<Self> {
        let file = out.join("pxe/root");
        let digest = session
            .cache
            .digest(&file)
            .with_context(|| format!("hashing {}", file.display()))?;
        let key = Key::of_data("image root", 1).text("root", &digest).finish();
        let made = session.cache.step("image-root", &key, |folder| {
            fs::create_dir(folder.join("tree"))?;
            tools
                .sandbox()
                .bind_read_only(&file, "/root.erofs")
                .bind(folder, "/out")
                .command("fsck.erofs")
                .args(["--extract=/out/tree", "--overwrite", "/root.erofs"])
                .run()?;
            Ok(())
        })?;
        Ok(Self {
            tree: made.path.join("tree"),
            manifest: out.join("manifest.json"),
        })
    }

    /// What a program of the root says to `--version`.
    ///
    /// # Errors
    /// If it is not there, or fails.
    pub fn version_of(&self, program: &str) -> Result<String> {
        let said = Sandbox::new(&self.tree)
            .command(format!("/usr/bin/{program}"))
            .arg("--version")
            .run()?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}
