//! A config with everything that it names. What does not fit into memory is on the disk before the first file is written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::Context as _;
use ignition::{Config, model};

use crate::digest::sha256;

/// Name → SHA-256 of a config's sources.
pub type Sources = BTreeMap<String, String>;

/// A config with everything that it names.
pub struct Fetched {
    /// The merged base and user configs.
    pub config: Config,
    /// The same, typed.
    pub model: model::Config,
    /// The contents of `storage.files`, in the same order.
    pub files: Vec<Contents>,
    /// Keys for the volumes of `storage.luks`, in the same order.
    pub keys: Vec<VolumeKeys>,
    /// Whether the user provided a config.
    pub user_config: bool,
    /// Whether a server gave a part of the config itself, so that a mistake in it may be mended there.
    pub from_server: bool,
    /// Warnings about the config.
    pub warnings: Vec<String>,
    /// The sources of the config that later boots can read again: name → SHA-256.
    pub sources: Sources,
    /// The folder of the contents that do not fit into memory, once they are there.
    pub spool: Option<PathBuf>,
}

/// What a source held, unpacked and verified.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    /// In memory.
    Memory(Vec<u8>),
    /// Too large for that.
    Spooled(Spooled),
}

/// A content that does not fit into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spooled {
    /// Its bytes.
    pub bytes: u64,
    /// SHA-256 of them in hexadecimal digits.
    pub sha256: String,
    /// Where it is; none while it was only fetched, verified and dropped.
    pub file: Option<PathBuf>,
}

impl Content {
    /// Its bytes, if they are in memory.
    #[must_use]
    pub fn in_memory(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(bytes) => Some(bytes),
            Self::Spooled(_) => None,
        }
    }

    /// The number of its bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Self::Spooled(spooled) => spooled.bytes,
        }
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Memory(bytes)
    }
}

/// Contents may be secret: only the size is shown.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.length())
    }
}

/// Contents of one of `storage.files`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The initial content of the file; `None` when the config only appends, or names no contents.
    pub contents: Option<Content>,
    /// The appended contents, in order.
    pub append: Vec<Content>,
}

impl Contents {
    /// All contents, in the order in which they are in the file.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Content> {
        self.contents.iter_mut().chain(&mut self.append)
    }
}

/// The fetched data for an encrypted volume.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct VolumeKeys {
    /// Its key file.
    pub file: Option<Vec<u8>>,
    /// The advertisements of its tang servers, in their order; none for one that the config holds itself.
    pub advertisements: Vec<Option<Vec<u8>>>,
}

/// A key is never shown.
impl fmt::Debug for VolumeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("file", &self.file.is_some())
            .field("advertisements", &self.advertisements.len())
            .finish()
    }
}

impl Fetched {
    /// SHA-256 of the merged config, in hexadecimal digits: journals and markers identify the config by it.
    pub fn hash(&self) -> String {
        sha256(self.config.to_json().to_string().as_bytes())
    }

    /// Bytes of the contents that do not fit into memory.
    pub fn spooled(&self) -> u64 {
        let parts = self.files.iter().flat_map(|file| {
            let appended = file.append.iter();
            file.contents.iter().chain(appended)
        });
        let large = parts.filter(|content| content.in_memory().is_none());
        large.map(Content::length).sum()
    }

    /// Removes the folder of the contents that do not fit into memory, once they are at their paths.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove_spool(&self) -> anyhow::Result<()> {
        match &self.spool {
            Some(folder) => std::fs::remove_dir_all(folder)
                .with_context(|| format!("removing {}", folder.display())),
            None => Ok(()),
        }
    }
}

/// A config may hold secrets: only its sizes are shown.
impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetched")
            .field("files", &self.files)
            .field("user_config", &self.user_config)
            .finish_non_exhaustive()
    }
}
