//! The source of a config.

use crate::digest::sha256;

/// A config, or its URL.
#[derive(Clone, PartialEq, Eq)]
pub enum ConfigSource {
    /// Its text, and its name in messages.
    Text(Vec<u8>, String),
    /// A URL.
    Url(String),
}

impl ConfigSource {
    /// Name and SHA-256 of a text; none for a URL.
    pub fn known(&self) -> Option<(String, String)> {
        match self {
            Self::Text(text, name) => Some((name.clone(), sha256(text))),
            Self::Url(_) => None,
        }
    }
}

/// A config may hold secrets, and a URL a token: neither is shown.
impl std::fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_, name) => f.debug_tuple("Text").field(name).finish_non_exhaustive(),
            Self::Url(_) => f.debug_tuple("Url").finish_non_exhaustive(),
        }
    }
}
