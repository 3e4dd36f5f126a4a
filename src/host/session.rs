//! Session: the context of one run of the program: the cache, its progress, and whether it was interrupted.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};

use super::answers::Answers;
use super::cache::{Cache, Scratch};
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
    /// The machine's own way to servers: credentials, and where the buckets are.
    pub site: fetch::Options,
    /// How the sources of programs answered.
    pub answers: Answers,
    deferred: Deferred,
    compiled: Arc<Mutex<Option<Scratch>>>,
}

type Work = Box<dyn FnOnce(&Session) -> Result<()> + Send>;

/// Work that a step needs only if it is made here.
#[derive(Default)]
struct Deferred(Mutex<PutOff>);

#[derive(Default)]
struct PutOff {
    work: Vec<Work>,
    /// Why a part of it failed, until other work is put off: what a step needs of it is not there then.
    failed: Option<String>,
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
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
            site: fetch::Options::default(),
            answers: Answers::default(),
            deferred: Deferred::default(),
            compiled: Arc::default(),
        }
    }

    /// A session with the user's cache in the same run: what this one has compiled serves it too.
    ///
    /// # Errors
    /// The same as [`Cache::open`].
    pub fn beside(&self, kind: Kind) -> Result<Self> {
        Ok(Self {
            compiled: Arc::clone(&self.compiled),
            ..Self::open(kind)?
        })
    }

    /// The folder of single compiled packages, which programs share that are compiled in one run; it goes with the last session of the
    /// run. A compiler that finds a package there, by the hash of all its inputs, does not compile it again.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn compiled(&self) -> Result<PathBuf> {
        let mut kept = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = &*kept {
            return Ok(kept.path().to_owned());
        }
        let made = self.cache.scratch()?;
        let path = made.path().to_owned();
        *kept = Some(made);
        Ok(path)
    }

    /// Puts work off until a step is made here: with results of other machines there may be none that needs it.
    pub fn defer(&self, work: impl FnOnce(&Session) -> Result<()> + Send + 'static) {
        let mut deferred = self
            .deferred
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // What failed before need not be needed any more: the programs of a release have other sources.
        deferred.failed = None;
        deferred.work.push(Box::new(work));
    }

    /// Does what was put off. Every step calls it before it reads a package.
    ///
    /// # Errors
    /// As the work, for each step: one in another thread lacks the same files, and must not say that these are missing.
    pub fn do_deferred(&self) -> Result<()> {
        // Locked until it is done: a step in another thread needs it as much.
        let mut deferred = self
            .deferred
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &deferred.failed {
            bail!("{why}");
        }
        let done = std::mem::take(&mut deferred.work)
            .into_iter()
            .try_for_each(|work| work(self));
        deferred.failed = done.as_ref().err().map(|error| format!("{error:#}"));
        done
    }

    /// Makes no request, if `offline` is set.
    pub fn set_offline(&mut self, offline: bool) {
        self.offline = offline;
        let is_local = self.cache.shared().is_none_or(|shared| shared.is_local());
        if offline && !is_local {
            self.cache.share(None);
        }
    }

    /// How clients for downloads are made.
    #[must_use]
    pub fn fetch_options(&self) -> fetch::Options {
        fetch::Options {
            offline: self.offline,
            logins: Some(self.logins.clone()),
            keeps_tls: true,
            ..self.site.clone()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_the_error_of_what_was_put_off() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("cache")).unwrap();
        let session = Session::new(cache, Progress::new(Kind::Quiet));
        session.defer(|_| Ok(()));
        session.do_deferred().unwrap();
        session.defer(|_| bail!("the mirror does not answer"));
        session.defer(|_| panic!("done after an error"));
        for _ in 0..2 {
            let error = session.do_deferred().unwrap_err();
            assert_eq!(error.to_string(), "the mirror does not answer");
        }
        session.defer(|_| Ok(()));
        session.do_deferred().unwrap();
    }
}
