//! Faults of a disk: rules for QEMU's `blkdebug`
//! (<https://www.qemu.org/docs/master/devel/testing/blkdebug.html>).

#[cfg(test)]
mod tests;

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
        let step = |state: usize| {
            let next = state + 1;
            format!(
                "[set-state]\nevent = \"{event}\"\nstate = \"{state}\"\nnew_state = \"{next}\"\n"
            )
        };
        let steps: String = (1..=last).map(step).collect();
        let once = match self.times {
            Times::Once => "on",
            Times::Always => "off",
        };
        let (number, errno) = (self.number, self.errno as i32);
        format!(
            "{steps}[inject-error]\nevent = \"{event}\"\niotype = \"{kind}\"\nstate = \"{number}\"\nerrno = \"{errno}\"\nonce = \"{once}\"\n"
        )
    }
}
