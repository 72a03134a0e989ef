//! Locks, atomics, channels and threads of shuttle, or of loom.
//!
//! Loom has no waiting for a time: the threads and channels of this crate are real, and a model starts its own.

#[cfg(kvring_model = "loom")]
pub(crate) use std::{sync::mpsc, thread};

#[cfg(kvring_model = "loom")]
pub(crate) use loom::sync as locks;
#[cfg(kvring_model = "loom")]
pub(crate) use loom::sync::atomic;
#[cfg(kvring_model = "shuttle")]
pub(crate) use shuttle::sync::{atomic, mpsc};
#[cfg(kvring_model = "shuttle")]
pub(crate) use shuttle::{sync as locks, thread};
