//! Programs that somebody still has open for writing: the kernel refuses to execute them (`ETXTBSY`).
//!
//! A program that was written and closed a moment ago may be such a one: a child that another thread forked meanwhile has a copy of
//! every descriptor of this process until it executes its own program. That is over in milliseconds, so the start is tried again.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

/// How long a start is tried again. A child on a loaded machine takes some tens of milliseconds from its fork to its program; what is
/// open for longer has a writer of its own.
const LIMIT: Duration = Duration::from_secs(10);
/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts a program by `start`, again as long as it is open for writing, for at most ten seconds.
///
/// # Errors
/// That of the last try.
pub(super) fn start_when_closed<T>(start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    start_within(LIMIT, start)
}

fn start_within<T>(limit: Duration, mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begin = Instant::now();
    loop {
        match start() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && begin.elapsed() < limit =>
            {
                thread::sleep(PAUSE);
            }
            started => return started,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_errors_and_the_limit_end_the_tries() {
        let tries = |limit: Duration, kind: ErrorKind| {
            let mut count = 0;
            let tried = start_within::<()>(limit, || {
                count += 1;
                Err(kind.into())
            });
            assert_eq!(tried.unwrap_err().kind(), kind);
            count
        };
        assert_eq!(tries(LIMIT, ErrorKind::NotFound), 1);
        assert_eq!(tries(Duration::ZERO, ErrorKind::ExecutableFileBusy), 1);
        assert!(tries(PAUSE * 3, ErrorKind::ExecutableFileBusy) > 1);
    }
}
