//! Problem: why a machine gave nothing that can be used.

use std::fmt;

/// Why a machine gave nothing that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, without any of the user data.
    pub what: String,
    /// Whether it came from a service, so that asking again may help.
    pub remote: bool,
}

impl Problem {
    pub(crate) fn local(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remote: false,
        }
    }

    pub(crate) fn remote(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remote: true,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Problem {}
