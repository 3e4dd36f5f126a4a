//! What a machine gives: the user's config and the machine's metadata.

use crate::metadata::Metadata;
use crate::userdata::UserConfig;

/// What a machine gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The user's config, if there is one.
    pub config: Option<UserConfig>,
    /// What the machine says of itself.
    pub metadata: Metadata,
    /// What was passed over, for the log.
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
