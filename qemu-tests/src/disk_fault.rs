//! Faults of a disk: rules for QEMU's `blkdebug`
//! (<https://www.qemu.org/docs/master/devel/testing/blkdebug.html>).

use std::fmt::Write;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush of the disk's cache.
    Flush,
}

/// How often it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Once; a repetition of the same request is done.
    Once,
    /// From then on always.
    Always,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFault {
    /// What fails.
    pub request: Request,
    /// Which of these requests is the first to fail, from 1.
    pub number: usize,
    /// How often it fails.
    pub times: Times,
    /// The error.
    pub errno: nix::errno::Errno,
}

impl DiskFault {
    /// The rules: one state for each request before, since a rule has no counter.
    #[must_use]
    pub fn rules(&self) -> String {
        let (event, kind) = match self.request {
            Request::Read => ("read_aio", "read"),
            Request::Write => ("write_aio", "write"),
            Request::Flush => ("flush_to_disk", "flush"),
        };
        let last = match self.times {
            Times::Once => self.number,
            Times::Always => self.number - 1,
        };
        let mut text = String::new();
        for state in 1..=last {
            let next = state + 1;
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "[set-state]\nevent = \"{event}\"\nstate = \"{state}\"\nnew_state = \"{next}\"\n"
            );
        }
        let once = match self.times {
            Times::Once => "on",
            Times::Always => "off",
        };
        let (number, errno) = (self.number, self.errno as i32);
        text + &format!(
            "[inject-error]\nevent = \"{event}\"\niotype = \"{kind}\"\nstate = \"{number}\"\nerrno = \"{errno}\"\nonce = \"{once}\"\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn a_fault_counts_the_requests_before_it_by_states() {
        let mut fault = DiskFault {
            request: Request::Write,
            number: 2,
            times: Times::Once,
            errno: Errno::ENOSPC,
        };
        let first = "[set-state]\nevent = \"write_aio\"\nstate = \"1\"\nnew_state = \"2\"\n";
        let second = "[set-state]\nevent = \"write_aio\"\nstate = \"2\"\nnew_state = \"3\"\n";
        let fails = "[inject-error]\nevent = \"write_aio\"\niotype = \"write\"\nstate = \"2\"\nerrno = \"28\"\n";
        assert_eq!(
            fault.rules(),
            format!("{first}{second}{fails}once = \"on\"\n")
        );
        fault.times = Times::Always;
        assert_eq!(fault.rules(), format!("{first}{fails}once = \"off\"\n"));
    }
}
