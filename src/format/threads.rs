//! How many threads work on one thing: `--jobs`, else one for each processor.

use std::sync::OnceLock;
use std::thread;

/// What the command line says, which counts for the whole process.
static LIMIT: OnceLock<usize> = OnceLock::new();

/// Sets the number for this process; the first call counts.
pub fn limit(number: Option<usize>) {
    if let Some(number) = number {
        // A second call comes from nowhere: the program has one command line.
        LIMIT.set(number.max(1)).ok();
    }
}

/// How many threads to start.
#[must_use]
pub fn number() -> usize {
    let each = || thread::available_parallelism().map_or(1, usize::from);
    LIMIT.get().copied().unwrap_or_else(each)
}
