//! The power cuts and full disks of tests: before each change of the disk.

use anyhow::Result;

#[cfg(test)]
thread_local! {
    /// The number of further changes after which a test cuts the power.
    pub(super) static CUT_AFTER: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
    /// The number of further changes after which a test lets the disk be full, and whether it stays so after the next one.
    pub(super) static FULL_AFTER: std::cell::Cell<Option<(usize, bool)>> = const { std::cell::Cell::new(None) };
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
    #[cfg(test)]
    match FULL_AFTER.get() {
        None => {}
        Some((0, stays)) => {
            FULL_AFTER.set(stays.then_some((0, stays)));
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into());
        }
        Some((left, stays)) => FULL_AFTER.set(Some((left - 1, stays))),
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
