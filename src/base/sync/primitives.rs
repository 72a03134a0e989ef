//! What locks, atomics, threads, queues and eventfds are made of: those of the standard library, of crossbeam and of the kernel. Where
//! `kvring_model` is set, for the tests in `models`, they are those of shuttle or loom, which choose what runs next.

/// Whether this build is for models, for which each step counts.
pub(crate) const IS_MODELLED: bool = cfg!(any(kvring_model = "loom", kvring_model = "shuttle"));

#[cfg(not(any(kvring_model = "loom", kvring_model = "shuttle")))]
mod real {
    pub(crate) use std::sync::{atomic, mpsc};
    pub(crate) use std::{sync as locks, thread};

    pub(crate) use crossbeam_queue::SegQueue;
    pub(crate) use nix::sys::eventfd::EventFd;

    pub(crate) fn is_finished<T>(thread: &thread::JoinHandle<T>) -> bool {
        thread.is_finished()
    }

    /// None where the system refuses a thread.
    pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        name: &str,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Option<thread::ScopedJoinHandle<'scope, T>> {
        thread::Builder::new().name(name.into()).spawn_scoped(scope, work).ok()
    }
}
#[cfg(not(any(kvring_model = "loom", kvring_model = "shuttle")))]
pub(crate) use real::*;

#[cfg(any(kvring_model = "loom", kvring_model = "shuttle"))]
mod modelled;
#[cfg(any(kvring_model = "loom", kvring_model = "shuttle"))]
mod stand_ins;
#[cfg(any(kvring_model = "loom", kvring_model = "shuttle"))]
pub(crate) use modelled::*;
#[cfg(any(kvring_model = "loom", kvring_model = "shuttle"))]
pub(crate) use stand_ins::{EventFd, SegQueue, is_finished, spawn_scoped};
