//! Finding: the state of one resource of the host, with the remedy where it lacks something.

use serde::Serialize;

/// The state of a resource of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Available and working.
    Good,
    /// Not available; everything works without it, but slower or with less space.
    Poor,
    /// Not available, and required.
    Missing,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Finding {
    /// The name of the checked resource.
    pub name: &'static str,
    /// Its state.
    pub state: State,
    /// The observed value or error.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// A resource that works.
    #[must_use]
    pub fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Good,
            found: found.into(),
            remedy: None,
        }
    }

    /// A resource that lacks something, and what to do about it.
    #[must_use]
    pub fn lack(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }

    /// A required resource that is not available, and what to do about it.
    #[must_use]
    pub fn missing(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::lack(name, State::Missing, found, remedy)
    }

    /// Whether a build fails because of this.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.state == State::Missing
    }
}
