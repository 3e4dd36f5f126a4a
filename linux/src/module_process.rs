//! Loading modules in a process beside this one, so that a disk which never answers holds nobody up: the kernel ends the call
//! when all that it probes in the background has ended (`async_synchronize_full` in its `do_init_module`), and no signal
//! ends it before.
//!
//! Not in a thread, for the reason of [`crate::disk_reader`].

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::libc::{self, c_int, c_long};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{ForkResult, Pid, fork};

use crate::disk_reader::close_all_but;

/// Bytes of a request: the path and the options, each with a zero byte at its end. A pipe takes so many at once (pipe(7)).
const REQUEST: usize = 4096;
/// Bytes of an answer: the number of the error, or zero.
const ANSWER: usize = size_of::<c_int>();

/// A process that loads one module after another. It ends when this is dropped, or when the kernel lets it.
#[derive(Debug)]
pub(crate) struct Loader {
    process: Pid,
    requests: PipeWriter,
    answers: PipeReader,
}

impl Loader {
    /// Starts the process.
    ///
    /// # Errors
    /// If there is no process or pipe left.
    pub(crate) fn start() -> Result<Self> {
        let (asked, requests) = pipe().context("making a pipe")?;
        let (answers, answering) = pipe().context("making a pipe")?;
        let mut buffer = vec![0; REQUEST];
        // SAFETY: the child makes nothing but system calls, with what was made ready before, as fork(2) demands of a process
        // with several threads: another one may have held any lock at this moment.
        let forked = unsafe { fork() };
        match forked.context("starting a process that loads modules")? {
            ForkResult::Child => serve(asked.as_raw_fd(), answering.as_raw_fd(), &mut buffer),
            ForkResult::Parent { child } => Ok(Self {
                process: child,
                requests,
                answers,
            }),
        }
    }

    /// The process.
    pub(crate) const fn process(&self) -> Pid {
        self.process
    }

    /// Begins to load a module. [`Loader::answer`] follows.
    ///
    /// # Errors
    /// If path and options are too long, or the process has ended.
    pub(crate) fn begin(&mut self, path: &CStr, options: &CString) -> Result<()> {
        let mut request = path.to_bytes_with_nul().to_vec();
        request.extend(options.as_bytes_with_nul());
        ensure!(
            request.len() <= REQUEST,
            "expected at most {REQUEST} bytes of path and options, found {}",
            request.len()
        );
        request.resize(REQUEST, 0);
        let sent = self.requests.write_all(&request);
        sent.context("asking the process that loads modules")
    }

    /// The kernel's answer, if it comes within `time`.
    ///
    /// # Errors
    /// If the process has ended without one.
    pub(crate) fn answer(&mut self, time: Duration) -> Result<Option<Result<(), Errno>>> {
        let mut polled = [PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, time) {
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            ready => ready.context("waiting for the process that loads modules")?,
        };
        let mut said = [0; ANSWER];
        let read = self.answers.read_exact(&mut said);
        read.context("the process that loads modules has ended")?;
        Ok(Some(match c_int::from_ne_bytes(said) {
            0 => Ok(()),
            error => Err(Errno::from_raw(error)),
        }))
    }
}

/// Loads what is asked for until nobody asks any more. System calls alone, and nothing that may panic.
fn serve(requests: c_int, answers: c_int, buffer: &mut [u8]) -> ! {
    close_all_but(requests, answers);
    loop {
        let mut have = 0;
        while let Some(rest) = buffer.get_mut(have..).filter(|rest| !rest.is_empty()) {
            // SAFETY: the buffer has so many bytes.
            let count = unsafe { libc::read(requests, rest.as_mut_ptr().cast(), rest.len()) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => have += count,
                // SAFETY: it does not return.
                _ => unsafe { libc::_exit(0) },
            }
        }
        let said = load(buffer).to_ne_bytes();
        // SAFETY: the answer has so many bytes. Whoever waits for it no more is gone.
        unsafe { libc::write(answers, said.as_ptr().cast(), said.len()) };
    }
}

/// Loads the module of a request; the number of the error, or zero.
fn load(request: &[u8]) -> c_int {
    const NO_FLAGS: c_long = 0;
    let Some(end) = request.iter().position(|byte| *byte == 0) else {
        return libc::EINVAL;
    };
    let options = request.get(end + 1..).unwrap_or_default();
    if !options.contains(&0) {
        return libc::EINVAL;
    }
    // SAFETY: both texts end with a zero byte, and live until this returns.
    unsafe {
        let file = libc::open(request.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return Errno::last_raw();
        }
        let loaded = libc::syscall(libc::SYS_finit_module, file, options.as_ptr(), NO_FLAGS);
        let error = if loaded < 0 { Errno::last_raw() } else { 0 };
        libc::close(file);
        error
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use super::*;
    use crate::samples::{hanging, wake};

    fn begin(loader: &mut Loader, path: &Path, options: &str) -> Result<()> {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        loader.begin(&path, &CString::new(options).unwrap())
    }

    /// The answer, which comes within seconds.
    fn answer(loader: &mut Loader) -> Result<(), Errno> {
        loader.answer(Duration::from_secs(30)).unwrap().unwrap()
    }

    #[test]
    fn one_module_after_another_is_loaded_and_each_error_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text.ko");
        fs::write(&file, "no module").unwrap();
        let mut loader = Loader::start().unwrap();
        begin(&mut loader, &folder.path().join("gone.ko"), "").unwrap();
        assert_eq!(answer(&mut loader), Err(Errno::ENOENT));
        begin(&mut loader, &file, "a=1 b=2").unwrap();
        let error = answer(&mut loader).unwrap_err();
        // The others without the right to load modules, and of a kernel that has none.
        let known = [Errno::ENOEXEC, Errno::EPERM, Errno::ENOSYS];
        assert!(known.contains(&error), "{error}");
        let long = begin(&mut loader, &file, &"x".repeat(REQUEST)).unwrap_err();
        assert!(long.to_string().contains("at most 4096 bytes"), "{long}");
        begin(&mut loader, &folder.path().join("gone.ko"), "").unwrap();
        assert_eq!(answer(&mut loader), Err(Errno::ENOENT));
    }

    #[test]
    fn a_load_that_hangs_is_waited_for_as_long_as_the_caller_wants() {
        let folder = tempfile::tempdir().unwrap();
        let module = folder.path().join("hangs.ko");
        hanging(&module);
        let mut loader = Loader::start().unwrap();
        begin(&mut loader, &module, "").unwrap();
        assert_eq!(loader.answer(Duration::from_millis(100)).unwrap(), None);
        assert_eq!(loader.answer(Duration::ZERO).unwrap(), None);
        let awake = wake(&module);
        answer(&mut loader).unwrap_err();
        drop(awake);
    }
}
