//! Faults: errors with four fields: what failed, what was expected, what was found, how to fix it.

use std::fmt;

/// An error with the expected and the found value and the remedy. Put it at the root of an error's chain or in its
/// context; the report takes its fields from the outermost one.
#[derive(Clone, Debug, Default)]
pub struct Fault {
    /// What failed, as one sentence without a full stop.
    pub what: String,
    /// What was expected.
    pub expected: Option<String>,
    /// What was found.
    pub found: Option<String>,
    /// What to do about it.
    pub fix: Option<String>,
}

impl Fault {
    /// A fault with only its sentence.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// What was expected.
    pub fn expected(mut self, text: impl Into<String>) -> Self {
        self.expected = Some(text.into());
        self
    }

    /// What was found.
    pub fn found(mut self, text: impl Into<String>) -> Self {
        self.found = Some(text.into());
        self
    }

    /// What to do about it.
    pub fn fix(mut self, text: impl Into<String>) -> Self {
        self.fix = Some(text.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(expected) = &self.expected {
            write!(f, "; expected {expected}")?;
        }
        if let Some(found) = &self.found {
            write!(f, "; found {found}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
