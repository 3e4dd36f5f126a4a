//! The note in `state` that this node is formatting a blank volume.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use linux::atomic_file;
use linux::disk_identity::DiskIdentity;
use linux::world::World;
use serde::{Deserialize, Serialize};

use crate::find::Volume;

/// Name of the note below `state`.
const NOTE: &str = "etcd-format.json";

/// The note that this node is formatting a blank volume: it is in `state` from before the first write until the identity
/// file is on the volume. After a power cut in between, the half-made file system is known to be this node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Note {
    /// The names of the disk, by which a later boot knows it again. Notes of earlier releases have none: they are about no
    /// volume.
    pub disk: Option<String>,
    /// The volume's stable name.
    pub volume: String,
    /// Bytes.
    pub size: u64,
    /// UUID that the file system gets.
    pub filesystem: String,
}

impl Note {
    /// The note about a volume that is to be formatted with this UUID.
    pub fn of(world: &World, volume: &Volume, filesystem: &str) -> Self {
        Self {
            // A serial number alone may be that of the model (`nvme_card-pd`) or of the controller.
            disk: DiskIdentity::read(world, &volume.disk).key(volume.size),
            volume: volume.stable.clone(),
            size: volume.size,
            filesystem: filesystem.to_owned(),
        }
    }

    /// Whether the note is about this volume. No note is about a disk that has no name of its own.
    pub fn is_of(&self, world: &World, volume: &Volume) -> bool {
        self.disk.is_some() && *self == Self::of(world, volume, &self.filesystem)
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
    use linux::world::Clock;

    use super::*;

    /// A machine with an NVMe disk.
    fn machine(folder: &Path) -> World {
        let world = World::below(folder, Clock::Real);
        let disk = world.sys.join("block/nvme0n1");
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::write(disk.join("device/serial"), "nvme_card-pd\n").unwrap();
        fs::write(disk.join("nsid"), "1\n").unwrap();
        world
    }

    #[test]
    fn a_note_is_about_one_volume() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path());
        assert_eq!(Note::read(folder.path()), None);
        Note::remove(folder.path()).unwrap();
        let mut volume = Volume {
            name: "nvme0n1".to_owned(),
            path: "/dev/nvme0n1".into(),
            size: 10,
            stable: "serial nvme_card-pd".to_owned(),
            read_only: false,
            disk: "nvme0n1".to_owned(),
            holders: Vec::new(),
        };
        let note = Note::of(&world, &volume, "x");
        note.write(folder.path()).unwrap();
        assert_eq!(Note::read(folder.path()), Some(note.clone()));
        assert!(note.is_of(&world, &volume));
        volume.size = 11;
        assert!(!note.is_of(&world, &volume));
        volume.size = 10;
        // Another disk of the same model and size.
        let namespace = world.sys.join("block/nvme0n1/nsid");
        fs::write(&namespace, "2\n").unwrap();
        assert!(!note.is_of(&world, &volume));
        let id = world.sys.join("block/nvme0n1/wwid");
        fs::write(&namespace, "1\n").unwrap();
        fs::write(&id, "eui.0025385b71b0e4a1\n").unwrap();
        assert!(!note.is_of(&world, &volume));
        let note = Note::of(&world, &volume, "x");
        assert!(note.is_of(&world, &volume));
        // A disk without a name, and the note of an earlier release.
        volume.disk = "vdc".to_owned();
        assert!(!Note::of(&world, &volume, "x").is_of(&world, &volume));
        let old = r#"{"volume": "serial nvme_card-pd", "size": 10, "filesystem": "x"}"#;
        fs::write(folder.path().join(NOTE), old).unwrap();
        volume.disk = "nvme0n1".to_owned();
        assert!(!Note::read(folder.path()).unwrap().is_of(&world, &volume));
        Note::remove(folder.path()).unwrap();
        assert_eq!(Note::read(folder.path()), None);
    }
}
