//! Keys: one hash over all inputs of a step.

use data_encoding::HEXLOWER;
use std::fmt;
use std::path::Path;

use anyhow::Result;
use sha2::{Digest, Sha256};

use super::Cache;
use crate::code::Code;
use crate::format::digest;

/// SHA-256 over all inputs that determine a step's result, as 64 hexadecimal digits.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Key(String);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Key {
    /// Begins the key of a step that is made by this code.
    #[must_use]
    pub fn of(step: &str, code: Code) -> KeyBuilder {
        Self::of_data(step, 0).code("step", code)
    }

    /// Begins the key of data that no code of ours decides about, such as a requirement. `version` is that of its form.
    #[must_use]
    pub fn of_data(name: &str, version: u32) -> KeyBuilder {
        KeyBuilder {
            hash: Sha256::new(),
        }
        .text("step", name)
        .bytes("version", &version.to_le_bytes())
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Collects the inputs of a step; their order is significant.
#[derive(Clone, Debug)]
pub struct KeyBuilder {
    hash: Sha256,
}

impl KeyBuilder {
    /// Adds the code that makes a part of the result.
    #[must_use]
    pub fn code(self, name: &str, code: Code) -> Self {
        self.text(name, code.as_str())
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, name: &str, text: &str) -> Self {
        self.bytes(name, text.as_bytes())
    }

    /// Adds bytes. Name and value are framed by their lengths, so that different lists of inputs never hash alike.
    #[must_use]
    pub fn bytes(mut self, name: &str, bytes: &[u8]) -> Self {
        for part in [name.as_bytes(), bytes] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        self
    }

    /// Adds every field of a value, in the order of its type. `#[serde(skip)]` leaves out a field that does not affect
    /// the result.
    ///
    /// # Errors
    /// If JSON cannot express the value.
    pub fn value(self, name: &str, value: &impl serde::Serialize) -> Result<Self> {
        Ok(self.text(name, &serde_json::to_string(value)?))
    }

    /// Adds the key of an earlier step.
    #[must_use]
    pub fn key(self, name: &str, key: &Key) -> Self {
        self.text(name, &key.0)
    }

    /// Adds a file's content. For big files see [`KeyBuilder::big_file`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn file(self, name: &str, path: &Path) -> Result<Self> {
        Ok(self.text(name, &digest::sha256(path)?))
    }

    /// Adds a file's content, by the digest that the cache stores for an unchanged file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn big_file(self, cache: &Cache, name: &str, path: &Path) -> Result<Self> {
        Ok(self.text(name, &cache.digest(path)?))
    }

    /// The key.
    #[must_use]
    pub fn finish(self) -> Key {
        Key(HEXLOWER.encode(&self.hash.finalize()))
    }
}
