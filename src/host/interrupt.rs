//! Signal handling: one flag, and guards around work that must finish.
//!
//! Steps of a build need nothing of this: what they leave half made is in folders that the next build removes, and
//! their programs end with the tool. A guest that must be stopped, or a terminal whose settings must be restored,
//! holds a [`Guard`] and checks [`Interrupt::requested`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether the user asked to stop. Clones share the flag and the guards.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    requested: AtomicBool,
    guards: AtomicUsize,
}

impl Interrupt {
    /// Whether the user has asked to stop.
    #[must_use]
    pub fn requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// Asks to stop; called when a signal comes.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
    }

    /// Begins work that must finish. Its owner checks [`Interrupt::requested`] often.
    #[must_use]
    pub fn guard(&self) -> Guard {
        self.0.guards.fetch_add(1, Ordering::SeqCst);
        Guard(self.clone())
    }

    /// Whether any [`Guard`] lives.
    #[must_use]
    pub fn guarded(&self) -> bool {
        self.0.guards.load(Ordering::SeqCst) > 0
    }
}

/// As long as one lives, an interrupted program waits for it before it ends.
#[derive(Debug)]
pub struct Guard(Interrupt);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.guards.fetch_sub(1, Ordering::SeqCst);
    }
}
