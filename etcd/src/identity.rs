//! The identity file of the etcd file system, and the note in `state` that formatting began.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use image::node::EtcdIdentity;
use image::paths::ETCD_IDENTITY;
use serde::{Deserialize, Serialize};

use crate::find::Volume;
use image::fault::Fault;
use linux::atomic_file;

/// Version of the identity file's form.
pub const VERSION: u32 = 1;
/// Name of the note below `state`.
const NOTE: &str = "etcd-format.json";

/// Reads the identity file of the file system mounted at `mounted`, if there is one.
///
/// # Errors
/// A [`Fault`] if it cannot be parsed.
pub fn read(mounted: &Path) -> Result<Option<EtcdIdentity>> {
    let path = mounted.join(ETCD_IDENTITY);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("reading the identity file"),
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        Fault::new("the identity file of the etcd volume cannot be parsed")
            .expected(format!("{ETCD_IDENTITY} as this init writes it"))
            .found(error.to_string())
            .fix("restore the file from another copy; without it this node does not use the volume")
            .into()
    })
}

/// Checks that a file system with this UUID and identity is the one of `cluster`.
///
/// # Errors
/// A [`Fault`] with the expected and the found value.
pub fn check(identity: &EtcdIdentity, uuid: &str, cluster: &str) -> Result<(), Fault> {
    let refuse = |what: &str, expected: String, found: String, fix: &str| {
        Err(Fault::new(what).expected(expected).found(found).fix(fix))
    };
    if identity.version != VERSION {
        return refuse(
            "the identity file of the etcd volume has an unknown version",
            format!("an identity file of version {VERSION}"),
            format!("version {}", identity.version),
            "boot the release of the image that this volume was last used with",
        );
    }
    if identity.cluster != cluster {
        return refuse(
            "the etcd volume belongs to another cluster",
            format!("the data of cluster {cluster:?}"),
            format!("the data of cluster {:?}", identity.cluster),
            "attach the right disk, or correct `cluster` in the node settings",
        );
    }
    if identity.filesystem != uuid {
        return refuse(
            "the identity file of the etcd volume belongs to another file system",
            format!("an identity file for file system {uuid}"),
            format!("one for file system {}", identity.filesystem),
            "the file was copied from another volume; attach the right disk",
        );
    }
    Ok(())
}

/// Writes the identity: temporary file, sync, rename, sync of the folder.
///
/// # Errors
/// If the file system refuses.
pub fn write(mounted: &Path, identity: &EtcdIdentity) -> Result<()> {
    let mut text = serde_json::to_string_pretty(identity)?;
    text.push('\n');
    atomic_file::write(&mounted.join(ETCD_IDENTITY), text.as_bytes(), 0o600)
        .context("writing the identity file of the etcd volume")
}

/// The note that this node is formatting a blank volume. It is in `state` from before the first write until the
/// identity file is on the volume: after a power cut in between, it proves that the half-made file system is this
/// node's.
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
    /// Whether the note is about this volume.
    pub fn is_of(&self, volume: &Volume) -> bool {
        self.volume == volume.stable && self.size == volume.size
    }

    /// The note, if formatting began and did not end. A note that cannot be parsed counts as none.
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
        // The removal must survive a power cut, since the volume is in use from now on.
        atomic_file::remove(&state.join(NOTE))
            .context("removing the note that the etcd volume is being formatted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> EtcdIdentity {
        EtcdIdentity {
            version: VERSION,
            cluster: "prod".to_owned(),
            filesystem: "01020304-0000-0000-0000-000000000000".to_owned(),
            created: 1,
            machine_id: "0".repeat(32),
        }
    }

    #[test]
    fn an_identity_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        write(folder.path(), &identity()).unwrap();
        assert_eq!(read(folder.path()).unwrap(), Some(identity()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(folder.path().join(ETCD_IDENTITY), "{\"version\": 1").unwrap();
        let error = read(folder.path()).unwrap_err();
        assert!(error.downcast_ref::<Fault>().is_some(), "{error}");
    }

    #[test]
    fn another_cluster_volume_or_version_is_refused() {
        let own = identity();
        check(&own, &own.filesystem, "prod").unwrap();
        let other_version = EtcdIdentity {
            version: 2,
            ..own.clone()
        };
        for (identity, uuid, cluster, expected, found) in [
            (&own, own.filesystem.as_str(), "demo", "demo", "prod"),
            (&own, "ffffffff", "prod", "ffffffff", "01020304"),
            (
                &other_version,
                own.filesystem.as_str(),
                "prod",
                "version 1",
                "version 2",
            ),
        ] {
            let fault = check(identity, uuid, cluster).unwrap_err();
            assert!(fault.expected.unwrap().contains(expected));
            assert!(fault.found.unwrap().contains(found));
            assert!(fault.fix.is_some());
        }
    }

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
        Note::remove(folder.path()).unwrap();
        assert_eq!(Note::read(folder.path()), None);
    }
}
