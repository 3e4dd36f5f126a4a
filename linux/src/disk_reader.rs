//! Reading from a disk in a process beside this one, so that a disk that never answers holds nobody up.
//!
//! Not in a thread: the execve of the handoff kills all other threads and waits for their end (`de_thread` in the kernel's
//! `fs/exec.c`), and a read that hangs in the kernel may have none. The close of a device that such a read has locked hangs
//! too, so this process must not be the one that has it open.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io::{PipeReader, PipeWriter, Read as _, pipe};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc::{self, c_int, c_long, off_t};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of one read.
const PIECE: u64 = 64 << 10;
/// The answer of a process that could read everything, and of one that could not.
const WHOLE: u8 = b'+';
const FAILED: u8 = b'-';

/// What is read of one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reads {
    /// Its node.
    pub path: PathBuf,
    /// The stretches: first byte, and number of bytes. What lies behind the end of the device is left out.
    pub stretches: Vec<(u64, u64)>,
}

/// A process that reads. It keeps the devices open until this is dropped: at the last close of a device the kernel forgets
/// what it has read of it, and this program would read it from the disk again.
#[derive(Debug)]
pub(crate) struct Reader {
    process: Pid,
    answer: PipeReader,
    /// Its close ends the process, once that has read everything.
    _hold: PipeWriter,
}

impl Reader {
    /// Starts to read.
    ///
    /// # Errors
    /// If there is no process or pipe left.
    pub(crate) fn start(reads: &[Reads]) -> Result<Self> {
        let (answer, answering) = pipe().context("making a pipe")?;
        let (held, hold) = pipe().context("making a pipe")?;
        let work = Work::new(reads, answering.as_raw_fd(), held.as_raw_fd())?;
        // SAFETY: the child makes nothing but system calls, with what was made ready before, as fork(2) demands of a process
        // with several threads: another one may have held any lock at this moment.
        let forked = unsafe { fork() };
        match forked.context("starting a process that reads")? {
            ForkResult::Child => work.run(),
            ForkResult::Parent { child } => Ok(Self {
                process: child,
                answer,
                _hold: hold,
            }),
        }
    }

    /// Whether everything could be read; none as long as the disk has not answered. Asked again after an answer, none.
    pub(crate) fn answer(&self) -> Option<bool> {
        let mut polled = [PollFd::new(self.answer.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
            return None;
        }
        let mut said = [FAILED];
        // Without a byte the process was killed.
        let count = (&self.answer).read(&mut said);
        Some(count.is_ok_and(|count| count == 1) && said == [WHOLE])
    }
}

/// Waits until one of these has answered, `time` at most.
pub(crate) fn wait<'a>(readers: impl Iterator<Item = &'a Reader>, time: Duration) {
    let mut polled: Vec<PollFd<'_>> = readers
        .map(|reader| PollFd::new(reader.answer.as_fd(), PollFlags::POLLIN))
        .collect();
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    if let Err(error) = poll(&mut polled, time) {
        tracing::debug!("waiting for disks: {error}");
    }
}

/// All that the process needs, made ready before it starts.
struct Work {
    /// The paths, each with places and lengths.
    devices: Vec<(CString, Vec<(off_t, usize)>)>,
    buffer: Vec<u8>,
    /// Where the answer goes.
    answer: c_int,
    /// The pipe whose close ends the process.
    held: c_int,
}

impl Work {
    fn new(reads: &[Reads], answer: c_int, held: c_int) -> Result<Self> {
        let mut devices = Vec::new();
        for one in reads {
            let mut pieces = Vec::new();
            for (start, length) in &one.stretches {
                let end = start.saturating_add(*length);
                let mut at = *start;
                while at < end {
                    let piece = PIECE.min(end - at);
                    pieces.push((off_t::try_from(at)?, usize::try_from(piece)?));
                    at += piece;
                }
            }
            let path = CString::new(one.path.as_os_str().as_bytes());
            devices.push((path.context("naming a device")?, pieces));
        }
        Ok(Self {
            devices,
            buffer: vec![0; usize::try_from(PIECE)?],
            answer,
            held,
        })
    }

    /// Reads, answers, and waits until the answer was used. System calls alone, and nothing that may panic.
    fn run(mut self) -> ! {
        close_all_but(self.answer, self.held);
        let buffer = self.buffer.as_mut_ptr();
        let mut whole = true;
        // SAFETY: the paths end with a zero byte, and the buffer is at least as long as each piece; all live until `_exit`. A
        // descriptor that is not open is refused by the kernel.
        unsafe {
            for (path, pieces) in &self.devices {
                // Not closed, see `Reader`.
                let device = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                whole &= device >= 0;
                for (at, length) in pieces {
                    whole &= libc::pread(device, buffer.cast(), *length, *at) >= 0;
                }
            }
            let said = if whole { WHOLE } else { FAILED };
            libc::write(self.answer, (&raw const said).cast(), 1);
            libc::read(self.held, buffer.cast(), 1);
            libc::_exit(0)
        }
    }
}

/// Closes all descriptors but two. Among those that a fork copies is the watchdog, which systemd could not open as long as
/// another process has it, and the ends of the pipes that belong to this program.
pub(crate) fn close_all_but(one: c_int, other: c_int) {
    const NO_FLAGS: c_long = 0;
    let (low, high) = (one.min(other), one.max(other));
    for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, c_int::MAX)] {
        if first <= last {
            // SAFETY: the call takes numbers alone; what they name is this process's own, and nothing uses it any more.
            unsafe {
                libc::syscall(
                    libc::SYS_close_range,
                    c_long::from(first),
                    c_long::from(last),
                    NO_FLAGS,
                );
            }
        }
    }
}

/// A disk that was asked and has not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    /// This appearance of the disk, and of no other one.
    pub(crate) appearance: String,
    /// The disk's name for people.
    pub(crate) shown: String,
    pub(crate) reads: Vec<Reads>,
    pub(crate) reader: Reader,
    /// Since when, by the world's clock in microseconds.
    pub(crate) since: i64,
    /// Whether it was waited for in vain.
    pub(crate) left_out: bool,
}

/// The disks that were asked in this boot.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// By the kernel's name.
    pub(crate) pending: BTreeMap<String, Pending>,
    /// What was read already, by the appearances of disks.
    pub(crate) answered: BTreeMap<String, BTreeSet<Reads>>,
    /// Processes that end, or have ended and were not collected.
    ended: Vec<Pid>,
}

impl Asked {
    /// Ends a process that has answered.
    pub(crate) fn release(&mut self, reader: Reader) {
        let process = reader.process;
        drop(reader);
        self.leave(process);
    }

    /// Leaves a process alone that ends by itself, or does once its disk answers.
    pub(crate) fn leave(&mut self, process: Pid) {
        self.ended.push(process);
        self.collect();
    }

    /// Collects the processes that have ended.
    fn collect(&mut self) {
        let lives = |process: &Pid| {
            waitpid(*process, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive)
        };
        self.ended.retain(lives);
    }
}

/// The processes that read from the disks of this machine, and what has been read.
#[derive(Debug)]
pub struct Readers {
    /// How long an answer is waited for.
    pub(crate) patience: Duration,
    asked: Mutex<Asked>,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            patience: PATIENCE,
            asked: Mutex::default(),
        }
    }
}

impl Readers {
    /// With less patience than that of a boot, for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn with_patience(patience: Duration) -> Self {
        Self {
            patience,
            asked: Mutex::default(),
        }
    }

    pub(crate) fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes, which are to be left alone. One whose disk does not answer would close the device if it were killed,
    /// which hangs as well, and every sync would wait for that.
    #[must_use]
    pub fn processes(&self) -> Vec<Pid> {
        let asked = self.asked();
        let pending = asked.pending.values().map(|one| one.reader.process);
        pending.chain(asked.ended.iter().copied()).collect()
    }
}

impl Drop for Readers {
    /// Nobody uses the answers any more. The init never comes here: it ends by its execve.
    fn drop(&mut self) {
        let asked = self.asked.get_mut();
        let asked = asked.unwrap_or_else(PoisonError::into_inner);
        for (_, one) in std::mem::take(&mut asked.pending) {
            // It may have ended.
            kill(one.reader.process, Signal::SIGKILL).unwrap_or_default();
            asked.release(one.reader);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::samples::hanging;

    fn reads(path: &Path, stretches: &[(u64, u64)]) -> [Reads; 1] {
        [Reads {
            path: path.to_owned(),
            stretches: stretches.to_vec(),
        }]
    }

    /// The answer, which comes within seconds.
    fn answer(reader: &Reader) -> Option<bool> {
        wait([reader].into_iter(), Duration::from_secs(30));
        reader.answer()
    }

    #[test]
    fn a_device_is_read_and_one_that_cannot_be_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("vda");
        fs::write(&disk, vec![7_u8; 200_000]).unwrap();
        // Longer than a piece, behind the end, and nothing at all.
        for stretches in [&[(0, 70_000), (199_000, 1000)][..], &[(1 << 40, 8)], &[]] {
            let reader = Reader::start(&reads(&disk, stretches)).unwrap();
            assert_eq!(answer(&reader), Some(true), "{stretches:?}");
            // It waits until the answer was used, and says nothing more.
            assert_eq!(reader.answer(), None);
        }
        let gone = folder.path().join("gone");
        let reader = Reader::start(&reads(&gone, &[(0, 1)])).unwrap();
        assert_eq!(answer(&reader), Some(false));
    }

    #[test]
    fn a_process_ends_when_its_answer_was_used() {
        let folder = tempfile::tempdir().unwrap();
        let mut asked = Asked::default();
        let reader = Reader::start(&reads(folder.path(), &[])).unwrap();
        assert_eq!(answer(&reader), Some(true));
        asked.release(reader);
        // It is another process: its end takes a moment.
        for _ in 0..3000 {
            asked.collect();
            if asked.ended.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the process has not ended: {asked:?}");
    }

    #[test]
    fn a_device_that_hangs_hangs_the_other_process_alone() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("vdb");
        hanging(&disk);
        let reader = Reader::start(&reads(&disk, &[(0, 512)])).unwrap();
        wait([&reader].into_iter(), Duration::from_millis(100));
        assert_eq!(reader.answer(), None);
        let process = reader.process;
        let readers = Readers::default();
        assert_eq!(readers.processes(), []);
        let one = Pending {
            appearance: String::new(),
            shown: String::new(),
            reads: Vec::new(),
            reader,
            since: 0,
            left_out: true,
        };
        readers.asked().pending.insert("vdb".to_owned(), one);
        assert_eq!(readers.processes(), [process]);
        // With the machine of a test it goes.
        drop(readers);
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while waitpid(process, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
            assert!(std::time::Instant::now() < until, "it lives");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
