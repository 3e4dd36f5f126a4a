//! What makes files last over a power cut.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use crate::host::tree;

/// How many files of a step are synced one by one.
const FEW: usize = 64;

/// Syncs the file system of `folder` to its disk.
///
/// # Errors
/// If the folder cannot be opened or the sync fails.
pub fn sync(folder: &Path) -> Result<()> {
    let about = || format!("syncing the file system of {}", folder.display());
    let folder = File::open(folder).with_context(about)?;
    nix::unistd::syncfs(&folder).with_context(about)
}

/// Syncs the files and folders of a folder to the disk, and nothing else of its file system.
///
/// # Errors
/// If one cannot be opened or synced.
pub fn sync_files(folder: &Path) -> Result<()> {
    let mut paths = vec![folder.to_owned()];
    for item in tree::walk(folder)? {
        if item.meta.is_file() || item.meta.is_dir() {
            paths.push(item.path);
        }
    }
    for path in paths {
        let about = || format!("syncing {}", path.display());
        let file = File::open(&path).with_context(about)?;
        file.sync_all().with_context(about)?;
    }
    if let Some(parent) = folder.parent() {
        let about = || format!("syncing {}", parent.display());
        let parent = File::open(parent).with_context(about)?;
        parent.sync_all().with_context(about)?;
    }
    Ok(())
}

/// Whether a folder has so many files that syncing the whole file system is faster.
pub(super) fn has_many(folder: &Path) -> bool {
    tree::walk(folder).map_or(true, |items| items.len() > FEW)
}
