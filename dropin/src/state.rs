//! The state file: facts that a stage records for later ones. Only this program reads it; it is written atomically, as
//! is the fetched config.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use apply::volumes::Opened;
use linux::atomic_file;

/// Facts that a stage records for later ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct State {
    /// Whether a user's config existed: the result file records it.
    pub(crate) user_config: bool,
    /// Mount points, and folders that were made for them, as paths in the root.
    pub(crate) folders: Vec<String>,
    /// The encrypted volumes that the disks stage left open, with their keys, until the keys are in the root.
    pub(crate) volumes: Vec<Opened>,
}

impl State {
    /// Reads the state file; if it does not exist, the state is that before the first stage.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            atomic_file::read(path).with_context(|| format!("reading {}", path.display()))?;
        let Some(text) = text else {
            return Ok(Self::default());
        };
        // Without the parser's message, which quotes the text: the file may hold keys.
        serde_json::from_slice(&text).ok().with_context(|| {
            format!(
                "{} is not the state file of an earlier stage",
                path.display()
            )
        })
    }

    /// Writes the state file, readable by root alone.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        write_file(path, serde_json::to_string(self)?.as_bytes(), 0o600)
    }
}

/// Writes a file atomically, and makes the folders above it.
pub(crate) fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let write = || {
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(folder)?;
        }
        atomic_file::write(path, content, mode)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use apply::volumes::Unlock;

    #[test]
    fn volumes_are_read_back_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ignition/state");
        let volume = |name: &str, by: Unlock| Opened {
            name: name.to_owned(),
            uuid: "abab".to_owned(),
            by,
        };
        let state = State {
            user_config: true,
            folders: vec!["/var/lib/x".to_owned()],
            volumes: vec![
                volume("data", Unlock::Key(b"SECRET\xff".to_vec())),
                volume("sealed", Unlock::Tpm),
                volume("far", Unlock::Clevis { network: true }),
            ],
        };
        state.write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), state);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let shown = format!("{state:?}");
        assert!(
            !shown.contains("SECRET") && !shown.contains("83, 69"),
            "{shown}"
        );
        // The state file of a version without volumes.
        fs::write(&path, r#"{"userConfig": true, "folders": []}"#).unwrap();
        assert!(State::read(&path).unwrap().volumes.is_empty());
        fs::write(&path, r#"{"volumes": [{"name": "data", "by": "SECRET"}]}"#).unwrap();
        let error = format!("{:#}", State::read(&path).unwrap_err());
        assert!(!error.contains("SECRET"), "{error}");
    }
}
