//! No submit is under way when the files are released.

use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{RwLock, RwLockReadGuard};

/// Entered by every submit, and closed once. Whoever is inside is waited for.
pub(super) struct Gate {
    is_closed: AtomicBool,
    inside: RwLock<()>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self { is_closed: AtomicBool::new(false), inside: RwLock::new(()) }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// None if it is closed.
    pub(super) fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let inside = self.inside.read();
        // Behind the lock: a close that has waited already would not wait for this one.
        (!self.is_closed()).then_some(inside)
    }

    /// From here on nobody enters.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Waits until nobody is inside, after [`Gate::close`].
    pub(super) fn wait_until_empty(&self) {
        drop(self.inside.write());
    }
}

#[cfg(test)]
mod tests;
