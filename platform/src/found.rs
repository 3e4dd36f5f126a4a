//! Answer of a platform: the user's config and the machine's metadata.

use crate::metadata::Metadata;
use crate::userdata::UserConfig;

/// The answer of a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The user's config, if there is one.
    pub config: Option<UserConfig>,
    /// The machine's metadata.
    pub metadata: Metadata,
    /// Notes of ignored data, for the log.
    pub notes: Vec<String>,
}

impl Found {
    pub(crate) fn new(
        (config, notes): (Option<UserConfig>, Vec<String>),
        metadata: Metadata,
    ) -> Self {
        Self {
            config,
            metadata,
            notes,
        }
    }
}
