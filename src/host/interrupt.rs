//! Signal handling: one flag, and guards around work that must finish.
//!
//! Steps of a build need no guard: their partial results are in folders that the next build removes, and
//! their programs end with the tool. A guest that must be stopped, or a terminal whose settings must be restored,
//! holds a [`Guard`] and checks [`Interrupt::requested`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether the user requested an interrupt. Clones share the flag and the guards.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    requested: AtomicBool,
    guards: AtomicUsize,
}

impl Interrupt {
    /// Whether the user has requested an interrupt.
    #[must_use]
    pub fn requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// Requests an interrupt; called on a signal.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
    }

    /// Begins work that must finish. The holder of the guard checks [`Interrupt::requested`] often.
    #[must_use]
    pub fn guard(&self) -> Guard {
        self.0.guards.fetch_add(1, Ordering::SeqCst);
        Guard(self.clone())
    }

    /// Whether any [`Guard`] exists.
    #[must_use]
    pub fn guarded(&self) -> bool {
        self.0.guards.load(Ordering::SeqCst) > 0
    }
}

/// While a guard exists, an interrupted program waits for it before it ends.
#[derive(Debug)]
pub struct Guard(Interrupt);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.guards.fetch_sub(1, Ordering::SeqCst);
    }
}
