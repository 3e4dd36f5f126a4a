//! Journals of a first boot, below `state`: started changes and the state before them, so that the boot after a power
//! cut resumes or undoes them.

pub mod disks;
pub mod files;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::fault::Fault;
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
    /// Reads the file; an absent one is empty. One that does not parse is a [`Fault`] without a remedy, which the caller
    /// knows.
    fn read(path: Option<PathBuf>) -> Result<Self> {
        let text = match &path {
            None => None,
            Some(path) => atomic_file::read(path)
                .with_context(|| format!("reading the journal {}", path.display()))?,
        };
        // The file is renamed only when it is complete and synced: one that does not parse is damaged. Taken for empty, what
        // an attempt has begun would be foreign data to the next one, and its files would stay.
        let parse = |text: Vec<u8>| {
            serde_json::from_slice(&text).map_err(|error| {
                let name = path
                    .as_deref()
                    .and_then(Path::file_name)
                    .unwrap_or_default();
                Fault::new(format!(
                    "the journal of this node's first boot, {} in the partition state, is damaged",
                    name.display()
                ))
                .expected("the JSON that an interrupted first boot wrote")
                .found(error.to_string())
            })
        };
        let content = text.map(parse).transpose()?.unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_journal_is_refused_by_name_and_never_taken_for_empty() {
        let folder = tempfile::tempdir().unwrap();
        let (disks, files) = ("disks.json", "files.json");
        for name in [disks, files] {
            for text in ["", "{\"config\": \"one", "\0\0"] {
                std::fs::write(folder.path().join(name), text).unwrap();
                let error = match name == disks {
                    true => disks::DiskJournal::open(Some(folder.path()), "one").unwrap_err(),
                    false => files::FileJournal::open(folder.path()).unwrap_err(),
                };
                let fault = error.downcast_ref::<Fault>().unwrap();
                assert!(fault.what.contains(name), "{fault}");
                assert!(fault.found.is_some() && fault.fix.is_none());
            }
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
    }
}
