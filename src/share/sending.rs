//! Sends results to the store in a thread of its own, while the build goes on.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};

use super::keys::SecretKey;
use super::link::Link;
use super::pack::{self, Limits};
use super::{statement, unpack};
use crate::host::cache::Key;
use crate::host::progress::bytes;
use crate::store::Object;

/// What readers of a result take.
const LIMITS: Limits = Limits {
    packed: statement::LARGEST,
    unpacked: unpack::LIMIT,
};

/// What is sent.
#[derive(Debug)]
pub(super) enum Job {
    /// A result in a folder that nobody changes.
    Result {
        step: String,
        key: Key,
        folder: PathBuf,
    },
    /// A file whose hash is known.
    File { object: Object, file: PathBuf },
}

/// Sends results.
#[derive(Debug)]
pub(super) struct Sender {
    work: Arc<Work>,
    thread: Mutex<Option<(mpsc::Sender<Job>, JoinHandle<Sent>)>>,
}

#[derive(Debug)]
struct Work {
    link: Arc<Link>,
    secret: Arc<SecretKey>,
    scratch: PathBuf,
}

/// The number of results that were sent, and their size.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    count: u32,
    size: u64,
}

impl Sender {
    pub(super) fn new(link: Arc<Link>, secret: Arc<SecretKey>, scratch: PathBuf) -> Self {
        Self {
            work: Arc::new(Work {
                link,
                secret,
                scratch,
            }),
            thread: Mutex::default(),
        }
    }

    pub(super) fn send(&self, job: Job) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let (queue, _) = thread.get_or_insert_with(|| {
            let (queue, jobs) = mpsc::channel();
            let work = Arc::clone(&self.work);
            (queue, thread::spawn(move || work.run(&jobs)))
        });
        // A thread that is gone has panicked, which `finish` says.
        queue.send(job).ok();
    }

    /// Waits until all is sent, or the store is left out.
    pub(super) fn finish(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((queue, thread)) = thread.take() else {
            return;
        };
        drop(queue);
        let step = self.work.link.progress().step("remote cache");
        step.note("sending results");
        match thread.join() {
            Ok(Sent { count: 0, .. }) => step.hit(None),
            Ok(Sent { count, size }) => {
                step.made(Some(size));
                self.work.link.progress().say(&format!(
                    "remote cache: {count} results sent, {}",
                    bytes(size)
                ));
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Work {
    fn run(&self, jobs: &Receiver<Job>) -> Sent {
        let mut sent = Sent::default();
        for job in jobs {
            if !self.link.is_up() {
                continue;
            }
            match self.send(&job) {
                Ok(0) => {}
                Ok(size) => {
                    sent.count += 1;
                    sent.size += size;
                }
                Err(error) => {
                    let what = match &job {
                        Job::Result { step, .. } => format!("sending the step {step}"),
                        Job::File { .. } => "sending a file".to_owned(),
                    };
                    self.link.failed(&what, &error);
                }
            }
        }
        sent
    }

    /// Gives the bytes that were sent.
    fn send(&self, job: &Job) -> Result<u64> {
        match job {
            Job::Result { step, key, folder } => self.send_result(step, key, folder),
            Job::File { object, file } => self.link.with(|store| {
                let is_new = store.put(object, file)?;
                if is_new {
                    // So that a registry does not collect it.
                    let name = format!("file-{}", object.sha256);
                    store.put_note(&name, "a file", std::slice::from_ref(object))?;
                }
                Ok(if is_new { object.size } else { 0 })
            }),
        }
    }

    fn send_result(&self, step: &str, key: &Key, folder: &Path) -> Result<u64> {
        // Without a name, so that it is gone with this process, however that ends.
        let mut file = tempfile::tempfile_in(&self.scratch)
            .with_context(|| format!("making a file in {}", self.scratch.display()))?;
        let archive = match pack::pack(folder, &mut file, LIMITS) {
            Ok(archive) => archive,
            // No fault of the store.
            Err(error) => {
                let progress = self.link.progress();
                progress.warn(&format!("the step {step} is not shared: {error:#}"));
                return Ok(0);
            }
        };
        let path = path_of(&file);
        let note = statement::sign(step, key, &archive, &self.secret)?;
        self.link.with(|store| {
            store.put(&archive, &path)?;
            // Last: a result whose archive is not there yet must not be found.
            store.put_note(
                &statement::name(step, key),
                &note,
                std::slice::from_ref(&archive),
            )
        })?;
        Ok(archive.size)
    }
}

/// A path of an open file, which opens it anew from its start.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
