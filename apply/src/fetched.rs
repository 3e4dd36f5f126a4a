//! A config with everything that it names, in memory: later steps need no network for it.

use std::collections::BTreeMap;
use std::fmt;

use ignition::{Config, model};

use crate::digest::sha256;

/// Name → SHA-256 of the texts that a config was made of.
pub type Sources = BTreeMap<String, String>;

/// A config with everything that it names in memory.
pub struct Fetched {
    /// Base and user merged.
    pub config: Config,
    /// The same, typed.
    pub model: model::Config,
    /// The contents of `storage.files`, in the same order.
    pub files: Vec<Contents>,
    /// Keys for the volumes of `storage.luks`, in the same order.
    pub keys: Vec<VolumeKeys>,
    /// Whether there was a config of the user's.
    pub user_config: bool,
    /// Warnings about it.
    pub warnings: Vec<String>,
    /// The texts that it was made of and that later boots can see again: name → SHA-256.
    pub sources: Sources,
}

/// Contents of one of `storage.files`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// What the file begins with; `None` when the config only appends, or names no contents.
    pub contents: Option<Vec<u8>>,
    /// What is appended, in order.
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

/// What was fetched for an encrypted volume.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct VolumeKeys {
    /// Its key file.
    pub file: Option<Vec<u8>>,
    /// The advertisements of its tang servers, in their order; none where the config itself has it.
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
    /// SHA-256 of the merged config, in hexadecimal digits: what journals and markers know it by.
    pub fn hash(&self) -> String {
        sha256(self.config.to_json().to_string().as_bytes())
    }
}

/// A config may hold secrets: only how much there is of it is shown.
impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetched")
            .field("files", &self.files)
            .field("user_config", &self.user_config)
            .finish_non_exhaustive()
    }
}
