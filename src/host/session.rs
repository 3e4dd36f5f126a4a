//! Session: the context of one run of the program: the cache, its progress, and whether it was interrupted.

use std::sync::Arc;

use anyhow::Result;

use super::cache::Cache;
use super::interrupt::Interrupt;
use super::logins::{HostLogins, Surroundings};
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
    /// The logins of servers and registries.
    pub logins: Arc<HostLogins>,
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
            logins: Arc::new(HostLogins::of(Surroundings::here())),
        }
    }

    /// How clients for downloads are made.
    #[must_use]
    pub fn fetch_options(&self) -> fetch::Options {
        fetch::Options {
            offline: self.offline,
            ..fetch_options(self.logins.clone())
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

/// How clients for downloads are made outside a session: with these logins, and by TLS where the URL says so.
#[must_use]
pub fn fetch_options(logins: Arc<HostLogins>) -> fetch::Options {
    fetch::Options {
        logins: Some(logins),
        keeps_tls: true,
        ..fetch::Options::default()
    }
}
