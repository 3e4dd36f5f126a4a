//! The verified lists of suites that this run has read, so that all images of one run are made from one state of the mirror.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::Cache;

/// The files of a suite's signed list, each with its URL.
pub type ListFiles = Vec<(String, Vec<u8>)>;

/// The lists by the URL of their suite's folder.
#[derive(Default)]
pub(super) struct Verified(Mutex<BTreeMap<String, ListFiles>>);

// Without content: URLs may have logins, and a list has hundreds of KB.
impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified").finish_non_exhaustive()
    }
}

impl Cache {
    /// The files of a suite's list as this run read them first, by the URL of the suite's folder.
    #[must_use]
    pub fn verified(&self, folder: &str) -> Option<ListFiles> {
        let known = self.verified.0.lock();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.get(folder).cloned()
    }

    /// Keeps the files of a suite's list for the rest of this run, unless it has those of this folder already.
    pub fn keep_verified(&self, folder: &str, lists: ListFiles) {
        let known = self.verified.0.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.entry(folder.to_owned()).or_insert(lists);
    }
}
