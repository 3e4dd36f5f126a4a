//! The power cuts of tests: before each change of the disk.

use anyhow::Result;

#[cfg(test)]
thread_local! {
    /// The number of further changes after which a test cuts the power.
    pub(super) static CUT_AFTER: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// Called before each change of the disk, so that a test can stop there.
#[cfg_attr(
    not(test),
    allow(clippy::unnecessary_wraps, reason = "a test can fail it")
)]
pub(super) fn failpoint() -> Result<()> {
    #[cfg(test)]
    if let Some(left) = CUT_AFTER.get() {
        anyhow::ensure!(left > 0, "the power was cut");
        CUT_AFTER.set(Some(left - 1));
    }
    Ok(())
}

#[cfg(test)]
thread_local! {
    /// What a test does in place of a sync.
    pub(super) static ON_SYNC: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
}

/// Whether a test has done what it does in place of a sync.
pub(super) fn synced() -> bool {
    #[cfg(test)]
    return ON_SYNC.with_borrow(|done| done.as_ref().map(|done| done()).is_some());
    #[cfg(not(test))]
    false
}
