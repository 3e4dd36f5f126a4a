//! Journals of a first boot, below `state`: started changes and the state before them, so that the boot after a power
//! cut resumes or undoes them.

pub mod disks;
pub mod files;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use linux::atomic_file;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A JSON file below `state`, replaced atomically at each change. Without a path it is kept in memory.
#[derive(Debug, Default)]
struct StateFile<T> {
    path: Option<PathBuf>,
    content: T,
}

impl<T: Default + Serialize + DeserializeOwned> StateFile<T> {
    /// Reads the file; an absent one is empty.
    fn read(path: Option<PathBuf>) -> Result<Self> {
        let text = match &path {
            None => None,
            Some(path) => atomic_file::read(path)
                .with_context(|| format!("reading the journal {}", path.display()))?,
        };
        // The file is renamed only when it is complete and synced: a file that is not JSON is damaged, and none of it
        // can be trusted.
        let content = serde_json::from_slice(&text.unwrap_or_default()).unwrap_or_default();
        Ok(Self { path, content })
    }

    /// Replaces the file, on the disk when this returns.
    fn write(&self, mode: u32) -> Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        atomic_file::write(path, &serde_json::to_vec_pretty(&self.content)?, mode)
            .with_context(|| format!("writing the journal {}", path.display()))
    }
}

/// Removes a journal that belongs to another node.
fn remove(path: &Path) -> Result<()> {
    atomic_file::remove(path).with_context(|| format!("removing the journal {}", path.display()))
}
