//! Warnings that are logged once, although the step that fails is tried again and again.

use std::collections::BTreeSet;

use anyhow::Result;

/// What was logged before.
#[derive(Debug, Default)]
pub(crate) struct LogOnce(BTreeSet<String>);

impl LogOnce {
    /// Logs an error, unless it was logged before.
    pub(crate) fn warn(&mut self, done: Result<()>) {
        if let Err(error) = done {
            let text = format!("{error:#}");
            if self.0.insert(text.clone()) {
                tracing::warn!("net: {text}");
            }
        }
    }
}
