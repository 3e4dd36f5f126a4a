//! Session: what one run of the program works with: the cache, its progress, and whether it was interrupted.

use anyhow::Result;

use super::cache::Cache;
use super::interrupt::Interrupt;
use super::progress::{Kind, Progress};

/// One run of the program. What it holds has no meaning of its own for a step: it goes by one name through all of them, so
/// that a step's signature shows what the step is made from.
#[derive(Debug)]
pub struct Session {
    /// Downloads and finished steps.
    pub cache: Cache,
    /// What is shown and recorded of the steps.
    pub progress: Progress,
    /// Whether the user asked to stop.
    pub interrupt: Interrupt,
}

impl Session {
    /// A session with this cache, which nothing interrupts.
    #[must_use]
    pub fn new(cache: Cache, progress: Progress) -> Self {
        Self {
            cache,
            progress,
            interrupt: Interrupt::default(),
        }
    }

    /// A session with the user's cache, which nothing interrupts.
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub fn open(kind: Kind) -> Result<Self> {
        Ok(Self::new(Cache::open()?, Progress::new(kind)))
    }
}
