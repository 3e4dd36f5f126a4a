//! Interruption: Ctrl-C and its kin become one flag, and work that must not be torn says so.
//!
//! Steps need nothing of this: what they leave half made is in folders that the next build sweeps, and
//! their programs die with the tool. A guest that must be stopped, or a terminal that must be given back,
//! holds a [`Guard`] and looks at [`requested`].

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static GUARDS: AtomicUsize = AtomicUsize::new(0);

/// Whether the user has asked to stop.
#[must_use]
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Asks to stop; what the program does when a signal comes.
pub fn request() {
    REQUESTED.store(true, Ordering::SeqCst);
}

/// As long as one lives, an interrupted program waits for it before it ends.
#[derive(Debug)]
pub struct Guard(());

impl Guard {
    /// Begins work that must be ended in order. Its owner looks at [`requested`] often.
    #[must_use]
    pub fn new() -> Self {
        GUARDS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        GUARDS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether any [`Guard`] lives.
#[must_use]
pub fn guarded() -> bool {
    GUARDS.load(Ordering::SeqCst) > 0
}
