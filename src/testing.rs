//! The seam for tests and benchmarks: engine, file operations, clock and constants that they replace. Not part of the API.

pub use crate::base::time::Clock;
pub use crate::config::Tuning;
pub use crate::engine::posix::PosixEngine;
pub use crate::engine::uring::UringEngine;
pub use crate::engine::{Action, Engine, FileOperations, Reaped, SystemFiles, Transfer, Waker};

/// Makes durable what was stored and removed so far, as the flush thread of `best_effort` does, which a store that works inline has
/// not. `all`: also what an earlier owner left.
///
/// # Errors
/// Of the first path that could not be synced.
pub fn flush(connector: &crate::Connector, all: bool) -> std::io::Result<()> {
    connector.volumes.live().try_for_each(|volume| volume.shared.cache.flush(all))
}

/// The namespace that a key names, as statistics show it.
pub fn namespace_of(key: &str) -> String {
    crate::key::Namespace::of(key).name()
}
