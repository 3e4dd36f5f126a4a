//! Session: the context of one run of the program: the cache, its progress, and whether it was interrupted.

use anyhow::Result;

use super::cache::Cache;
use super::interrupt::Interrupt;
use super::progress::{Kind, Progress};

/// One run of the program. Its fields do not affect the result of a step: they are passed as a single argument, so
/// that the rest of a step's signature shows the step's inputs.
#[derive(Debug)]
pub struct Session {
    /// Downloads and finished steps.
    pub cache: Cache,
    /// The display and the record of the steps.
    pub progress: Progress,
    /// Whether the user requested an interrupt.
    pub interrupt: Interrupt,
    /// Whether no request is made: what is neither in the cache nor in a folder of this host is an error.
    pub offline: bool,
}

impl Session {
    /// A session with this cache, without an interrupt.
    #[must_use]
    pub fn new(cache: Cache, progress: Progress) -> Self {
        Self {
            cache,
            progress,
            interrupt: Interrupt::default(),
            offline: false,
        }
    }

    /// How clients for downloads are made.
    #[must_use]
    pub fn fetch_options(&self) -> fetch::Options {
        fetch::Options {
            offline: self.offline,
            ..fetch::Options::default()
        }
    }

    /// A session with the user's cache, without an interrupt.
    ///
    /// # Errors
    /// The same as [`Cache::open`].
    pub fn open(kind: Kind) -> Result<Self> {
        Ok(Self::new(Cache::open()?, Progress::new(kind)))
    }
}
