//! A config with everything that it names, in memory: later steps need no network.

use std::collections::BTreeMap;
use std::fmt;

use ignition::{Config, model};

use crate::digest::sha256;

/// Name → SHA-256 of a config's sources.
pub type Sources = BTreeMap<String, String>;

/// A config with everything that it names in memory.
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
}

/// Contents of one of `storage.files`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The initial content of the file; `None` when the config only appends, or names no contents.
    pub contents: Option<Vec<u8>>,
    /// The appended contents, in order.
    pub append: Vec<Vec<u8>>,
}

/// Contents may be secret: only their sizes are shown.
impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let append: Vec<usize> = self.append.iter().map(Vec::len).collect();
        write!(
            f,
            "Contents({:?} bytes + {append:?})",
            self.contents.as_ref().map(Vec::len)
        )
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
