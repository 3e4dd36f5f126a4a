//! Problem: why a platform gave no usable answer.

use std::fmt;

/// Why a platform gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The message, without any of the user data.
    pub what: String,
    /// Whether it came from a service, so that another request may succeed.
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
