//! The way to the store of a remote cache: connections for several threads, and an end to a store that is dead or slow.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Error, Result};

use crate::host::interrupt::Interrupt;
use crate::host::progress::Progress;
use crate::store::{Haste, Store};

/// Failures of the store after which it is left out for the run: each may have cost seconds.
const FAILURES: u32 = 3;

/// A store, as the threads of a run share it.
#[derive(Debug)]
pub(super) struct Link {
    url: String,
    options: fetch::Options,
    progress: Progress,
    interrupt: Interrupt,
    /// Connections that no thread uses now.
    stores: Mutex<Vec<Store>>,
    failures: AtomicU32,
}

impl Link {
    pub(super) fn new(
        url: String,
        options: &fetch::Options,
        progress: &Progress,
        interrupt: &Interrupt,
        store: Store,
    ) -> Self {
        Self {
            url,
            options: options.clone(),
            progress: progress.clone(),
            interrupt: interrupt.clone(),
            stores: Mutex::new(vec![store.ended_by(interrupt)]),
            failures: AtomicU32::new(0),
        }
    }

    /// Whether the store is asked at all.
    pub(super) fn is_up(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < FAILURES && !self.is_interrupted()
    }

    /// Whether the user ends the program.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupt.requested()
    }

    /// Does something with a connection that no other thread uses.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        let idle = self
            .stores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut store = match idle {
            Some(store) => store,
            None => {
                let store = Store::open(&self.url, &self.options, Haste::Hasty)?;
                store.ended_by(&self.interrupt)
            }
        };
        let done = work(&mut store);
        self.stores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(store);
        done
    }

    /// Notes a failure of the store, which is not that of the build. What the user has interrupted is none.
    pub(super) fn failed(&self, doing: &str, error: &Error) {
        if self.is_interrupted() {
            return;
        }
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        if before < FAILURES {
            self.progress
                .warn(&format!("the remote cache failed {doing}: {error:#}"));
        }
        if before + 1 == FAILURES {
            self.progress.warn(&format!(
                "the remote cache {} is left out for the rest of this run, after {FAILURES} failures",
                fetch::shown(&self.url)
            ));
        }
    }

    pub(super) const fn progress(&self) -> &Progress {
        &self.progress
    }
}
