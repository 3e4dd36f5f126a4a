//! The remote cache of a run: asks the store for a result before it is made, and stores one that was made.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Error, Result};
use fetch::Failure;

use super::keys::PublicKey;
use super::link::Link;
use super::sending::{Job, Sender};
use super::settings::Remote;
use super::{statement, unpack};
use crate::debian::files::is_gone;
use crate::host::cache::{Key, Shared};
use crate::host::interrupt::Interrupt;
use crate::host::progress::{Progress, bytes};
use crate::store::{Haste, Object, Store};

/// The archive in the folder that it is unpacked in.
const ARCHIVE: &str = ".slipway-archive";

/// A remote cache.
#[derive(Debug)]
pub struct RemoteCache {
    link: Arc<Link>,
    trusted: Vec<PublicKey>,
    /// None if this machine has no key.
    sender: Option<Sender>,
    fetched: AtomicU32,
    size: AtomicU64,
}

/// Why a result is not taken from the store.
enum Refusal {
    /// What the store has cannot be trusted.
    Untrusted(Error),
    /// It cannot be written on this host.
    Host(Error),
    /// The store does not answer.
    Away(Error),
}

impl Refusal {
    /// Of an archive that was fetched and verified.
    fn of_unpacking(error: Error) -> Self {
        match unpack::is_of_host(&error) {
            true => Self::Host(error),
            false => Self::Untrusted(error),
        }
    }
}

impl RemoteCache {
    /// The remote cache of these settings; `scratch` is a folder for archives. No request is made. A large upload is taken back if the
    /// user interrupts the program, which waits for that.
    ///
    /// # Errors
    /// If its address is wrong, or is one that results cannot be sent to although there is a signing key.
    pub fn open(
        remote: Remote,
        options: &fetch::Options,
        progress: &Progress,
        scratch: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let store = Store::open(&remote.url, options, Haste::Hasty)?;
        anyhow::ensure!(
            remote.secret.is_none() || store.is_writable(),
            "the remote cache {} is only read: no results can be sent to it, and there is a signing key",
            fetch::shown(&remote.url)
        );
        let link = Link::new(remote.url, options, progress, interrupt, store);
        let link = Arc::new(link);
        let sender = remote
            .secret
            .map(|secret| Sender::new(Arc::clone(&link), Arc::new(secret), scratch.to_owned()));
        Ok(Self {
            link,
            trusted: remote.trusted,
            sender,
            fetched: AtomicU32::new(0),
            size: AtomicU64::new(0),
        })
    }

    fn try_fetch(&self, step: &str, key: &Key, folder: &Path) -> Result<Option<u64>, Refusal> {
        let name = statement::name(step, key);
        let note = self.link.with(|store| Ok(store.note(&name)?));
        let Some(note) = note.map_err(Refusal::Away)? else {
            return Ok(None);
        };
        let archive = statement::verify(&note, step, key, &self.trusted);
        let archive = archive.map_err(Refusal::Untrusted)?;
        let path = folder.join(ARCHIVE);
        self.fetch_file(&archive, &path)?;
        unpack::unpack(&path, folder).map_err(Refusal::of_unpacking)?;
        fs::remove_file(&path).map_err(|error| Refusal::Host(error.into()))?;
        Ok(Some(archive.size))
    }

    fn fetch_file(&self, object: &Object, target: &Path) -> Result<(), Refusal> {
        let got = self
            .link
            .with(|store| Ok(store.get(&object.sha256, object.size, target, &|_| ())?));
        got.map_err(|error| match error.downcast_ref::<Failure>() {
            Some(Failure::Digest { .. } | Failure::TooLarge { .. }) => Refusal::Untrusted(error),
            Some(failure) if is_gone(failure) => Refusal::Untrusted(error),
            Some(Failure::Disk { .. }) => Refusal::Host(error),
            _ => Refusal::Away(error),
        })
    }

    fn count(&self, size: u64) {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        self.size.fetch_add(size, Ordering::Relaxed);
    }
}

/// A command that is no build, such as `lock`, makes results too, and ends with its session: they are sent before.
impl Drop for RemoteCache {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.link.is_interrupted() {
            self.finish();
        }
    }
}

impl Shared for RemoteCache {
    fn fetch(&self, step: &str, key: &Key, folder: &Path) -> bool {
        if !self.link.is_up() {
            return false;
        }
        match self.try_fetch(step, key, folder) {
            Ok(Some(size)) => {
                self.count(size);
                true
            }
            Ok(None) => false,
            Err(Refusal::Untrusted(why)) => {
                self.link.progress().warn(&format!(
                    "what the remote cache has for the step {step} is refused, and the step is made here: {why:#}"
                ));
                false
            }
            Err(Refusal::Host(why)) => {
                self.link.progress().warn(&format!(
                    "the result of the step {step} was fetched from the remote cache and cannot be written on this host, so the step is made here: {why:#}"
                ));
                false
            }
            Err(Refusal::Away(why)) => {
                self.link.failed(&format!("at the step {step}"), &why);
                false
            }
        }
    }

    fn fetch_file(&self, sha256: &str, size: u64, target: &Path) -> bool {
        if !self.link.is_up() {
            return false;
        }
        let object = Object {
            sha256: sha256.to_owned(),
            size,
        };
        let folder = target.parent().map_or(Ok(()), fs::create_dir_all);
        let folder = folder.map_err(|error| Refusal::Host(error.into()));
        match folder.and_then(|()| Self::fetch_file(self, &object, target)) {
            Ok(()) => {
                self.count(size);
                true
            }
            Err(Refusal::Untrusted(why)) if why.downcast_ref::<Failure>().is_some_and(is_gone) => {
                false
            }
            Err(Refusal::Untrusted(why)) => {
                self.link
                    .progress()
                    .warn(&format!("a file of the remote cache is refused: {why:#}"));
                false
            }
            Err(Refusal::Host(why)) => {
                self.link.progress().warn(&format!(
                    "a file of the remote cache cannot be written on this host: {why:#}"
                ));
                false
            }
            Err(Refusal::Away(why)) => {
                self.link.failed("at a file", &why);
                false
            }
        }
    }

    fn store(&self, step: &str, key: &Key, folder: PathBuf) {
        if let Some(sender) = &self.sender {
            sender.send(Job::Result {
                step: step.to_owned(),
                key: key.clone(),
                folder,
            });
        }
    }

    fn store_file(&self, sha256: &str, size: u64, file: PathBuf) {
        if let Some(sender) = &self.sender {
            let object = Object {
                sha256: sha256.to_owned(),
                size,
            };
            sender.send(Job::File { object, file });
        }
    }

    fn finish(&self) {
        let (fetched, size) = (
            self.fetched.swap(0, Ordering::Relaxed),
            self.size.swap(0, Ordering::Relaxed),
        );
        if fetched > 0 {
            self.link.progress().say(&format!(
                "remote cache: {fetched} results fetched, {}",
                bytes(size)
            ));
        }
        if let Some(sender) = &self.sender {
            sender.finish();
        }
    }

    fn is_local(&self) -> bool {
        self.link
            .with(|store| Ok(store.is_local()))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
