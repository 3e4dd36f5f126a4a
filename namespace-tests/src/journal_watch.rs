//! Holds each write of a node's journal before its record and behind it, so that a test cuts the power at a step, and not at a time.
//!
//! fanotify(7) asks before a file is opened, and whoever opens it waits for the answer. An atomic write opens its temporary file first,
//! when the step's work is done, and opens the folder when the file has its name, before it flushes it: two moments of the real
//! program on the real file.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Below which name the journal is written before it has its own.
const TEMPORARY: &str = ".cluster.json.new";
/// Milliseconds between two looks at whether the watch is over.
const LOOK_EVERY: u16 = 20;
/// The bytes of an event: its length, three bytes of version and padding, the length of this head, the mask, the file, the process.
/// Fields of the machine's byte order (`struct fanotify_event_metadata` of fanotify(7)).
const EVENT: usize = 24;

/// Where in a write its process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The step's work is done, and the journal does not have it.
    Before,
    /// The journal has it, and nothing that follows is done.
    Behind,
}

/// A write that waits. It goes on by [`Held::release`] or when the watch ends, and ends with its node.
#[derive(Debug)]
pub struct Held {
    /// Where.
    pub side: Side,
    event: OwnedFd,
    group: Arc<File>,
}

impl Held {
    /// Lets the write go on.
    ///
    /// # Errors
    /// If the kernel does not take the answer.
    pub fn release(self) -> Result<()> {
        allow(&self.group, &self.event).context("answering for a held write")
    }
}

/// The watch of one node's journal.
#[derive(Debug)]
pub struct JournalWatch {
    held: Receiver<Held>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl JournalWatch {
    /// Watches the journal in this folder, a path on this host. The folder is made: a first bring-up does not have it yet.
    ///
    /// # Errors
    /// If this process is not root of the host, or its kernel has no permission events.
    pub fn start(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let group = group(folder).with_context(|| format!("watching {}", folder.display()))?;
        let (sender, held) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let name = folder.file_name().map(|name| name.as_bytes().to_vec());
        let folder = name.context("a folder without a name")?;
        let thread = std::thread::spawn(move || answer(group, &folder, &sender, &until));
        Ok(Self {
            held,
            over,
            thread: Some(thread),
        })
    }

    /// The next write that waits, if there is one within this time.
    ///
    /// # Errors
    /// Why the watch ended.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Held>> {
        match self.held.recv_timeout(patience) {
            Ok(held) => Ok(Some(held)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => match self.thread.take().map(JoinHandle::join) {
                Some(Ok(Err(error))) => Err(error),
                _ => bail!("the watch of the journal ended"),
            },
        }
    }
}

impl Drop for JournalWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A group of fanotify that is asked about the folder and what lies in it.
fn group(folder: &Path) -> Result<Arc<File>> {
    let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    let opened = u32::try_from(libc::O_RDONLY | libc::O_CLOEXEC).context("flags of a file")?;
    // SAFETY: the call takes two numbers and gives a new descriptor, which nobody else owns.
    let group = Errno::result(unsafe { libc::fanotify_init(flags, opened) })
        .context("making a group of fanotify")?;
    // SAFETY: as above.
    let group = unsafe { File::from_raw_fd(group) };
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes())?;
    let mask = libc::FAN_OPEN_PERM | libc::FAN_EVENT_ON_CHILD | libc::FAN_ONDIR;
    let (of, at) = (group.as_raw_fd(), libc::AT_FDCWD);
    // SAFETY: the path is a string that lives until the call ends.
    let marked = unsafe { libc::fanotify_mark(of, libc::FAN_MARK_ADD, mask, at, path.as_ptr()) };
    Errno::result(marked).context("asking for permission events")?;
    Ok(Arc::new(group))
}

/// Answers each question at once, but for the two moments of a write of the journal.
fn answer(group: Arc<File>, folder: &[u8], held: &Sender<Held>, over: &AtomicBool) -> Result<()> {
    let mut writer = None;
    let mut buffer = [0; 4096];
    while !over.load(Ordering::Acquire) {
        let mut ready = [PollFd::new(group.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, PollTimeout::from(LOOK_EVERY)).context("waiting for questions")? == 0 {
            continue;
        }
        let length = match (&*group).read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error).context("reading questions"),
        };
        for (event, process) in events(&buffer[..length])? {
            let path = fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
            let path = path.context("finding what is opened")?;
            let name = path.file_name().map(|name| name.as_bytes());
            let side = match name {
                Some(name) if name == TEMPORARY.as_bytes() => Some(Side::Before),
                Some(name) if name == folder && writer == Some(process) => Some(Side::Behind),
                _ => None,
            };
            let Some(side) = side else {
                allow(&group, &event).context("answering a question")?;
                continue;
            };
            writer = (side == Side::Before).then_some(process);
            let group = Arc::clone(&group);
            // The other end may be dropped already: then the group is closed in a moment, which allows all.
            drop(held.send(Held { side, event, group }));
        }
    }
    Ok(())
}

/// The files of the questions, and who opens them.
fn events(mut bytes: &[u8]) -> Result<Vec<(OwnedFd, i32)>> {
    let mut all = Vec::new();
    while let Some((head, _)) = bytes.split_at_checked(EVENT) {
        let number =
            |at: usize| -> Result<i32> { Ok(i32::from_ne_bytes(head[at..at + 4].try_into()?)) };
        let (length, file, process) = (usize::try_from(number(0)?)?, number(16)?, number(20)?);
        if file >= 0 {
            // SAFETY: the kernel opened it for this event, and nobody else owns it.
            all.push((unsafe { OwnedFd::from_raw_fd(file) }, process));
        }
        bytes = bytes
            .get(length.max(EVENT)..)
            .context("an event longer than what was read")?;
    }
    Ok(all)
}

fn allow(mut group: &File, event: &OwnedFd) -> io::Result<()> {
    let mut response = event.as_raw_fd().to_ne_bytes().to_vec();
    response.extend(libc::FAN_ALLOW.to_ne_bytes());
    match group.write(&response) {
        // Who asked has ended meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map(drop),
    }
}
