//! Ends a program of a machine: kills it and waits for it.

use std::process::Child;
use std::time::{Duration, Instant};

/// How long a killed program is waited for. A QEMU that hangs inside the kernel's KVM cannot be waited for at all.
const REAP: Duration = Duration::from_secs(5);

/// Kills and reaps, but never waits for ever.
pub(super) fn end(child: &mut Child) {
    // Failing to kill means that it has ended already.
    child.kill().ok();
    let until = Instant::now() + REAP;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
