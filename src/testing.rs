//! The seam for tests and benchmarks: engine, file operations, clock and constants that they replace. Not part of the API.

pub use crate::config::Tuning;
pub use crate::engine::posix::PosixEngine;
pub use crate::engine::uring::UringEngine;
pub use crate::engine::{Action, Engine, FileOperations, Reaped, SystemFiles, Transfer, Waker};
pub use crate::time::Clock;

/// The namespace that a key names, as statistics show it.
pub fn namespace_of(key: &str) -> String {
    crate::key::Namespace::of(key).name()
}
