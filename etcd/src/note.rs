//! The note in `state` that this node is formatting a blank volume.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use linux::atomic_file;
use serde::{Deserialize, Serialize};

use crate::find::Volume;

/// Name of the note below `state`.
const NOTE: &str = "etcd-format.json";

/// The note that this node is formatting a blank volume: it is in `state` from before the first write until the identity
/// file is on the volume. After a power cut in between, the half-made file system is known to be this node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Note {
    /// The volume's stable name.
    pub volume: String,
    /// Bytes.
    pub size: u64,
    /// UUID that the file system gets.
    pub filesystem: String,
}

impl Note {
    /// Whether the note is about this volume. No note is about a disk that has no name of its own.
    pub fn is_of(&self, volume: &Volume) -> bool {
        volume.is_known_by_name() && self.volume == volume.stable && self.size == volume.size
    }

    /// The note, if formatting began and did not end. One that cannot be parsed counts as none.
    pub fn read(state: &Path) -> Option<Self> {
        let text = fs::read(state.join(NOTE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes the note, on the disk when this returns.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn write(&self, state: &Path) -> Result<()> {
        atomic_file::write(&state.join(NOTE), &serde_json::to_vec(self)?, 0o600)
            .context("noting in state that the etcd volume is being formatted")
    }

    /// Removes the note.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn remove(state: &Path) -> Result<()> {
        // It must not come back after a power cut, when the volume is in use.
        atomic_file::remove(&state.join(NOTE))
            .context("removing the note that the etcd volume is being formatted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_about_one_volume() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Note::read(folder.path()), None);
        Note::remove(folder.path()).unwrap();
        let note = Note {
            volume: "serial etcd".to_owned(),
            size: 10,
            filesystem: "x".to_owned(),
        };
        note.write(folder.path()).unwrap();
        assert_eq!(Note::read(folder.path()), Some(note.clone()));
        let mut volume = Volume {
            name: "vdb".to_owned(),
            path: "/dev/vdb".into(),
            size: 10,
            stable: "serial etcd".to_owned(),
            read_only: false,
        };
        assert!(note.is_of(&volume));
        volume.size = 11;
        assert!(!note.is_of(&volume));
        volume.size = 10;
        volume.stable = "serial none".to_owned();
        let nameless = Note {
            volume: volume.stable.clone(),
            ..note
        };
        assert!(!nameless.is_of(&volume));
        Note::remove(folder.path()).unwrap();
        assert_eq!(Note::read(folder.path()), None);
    }
}
