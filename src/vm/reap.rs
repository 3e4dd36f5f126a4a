//! Ends a program of a machine: kills it and waits for it.

use std::process::Child;
use std::time::{Duration, Instant};

/// Timeout for a killed program. A QEMU that hangs inside the kernel's KVM never ends.
const REAP: Duration = Duration::from_secs(5);

/// Kills and reaps, with a timeout.
pub(super) fn end(child: &mut Child) {
    // kill fails only if the program has already ended.
    child.kill().ok();
    let until = Instant::now() + REAP;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
