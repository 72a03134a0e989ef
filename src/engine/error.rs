//! Why an engine cannot be had, or works no more.

use std::io;

use thiserror::Error;

use super::refusal::Refusal;

/// Failures of the I/O engine as a whole; a failed transfer is reported with its completion instead.
#[derive(Debug, Error)]
pub enum EngineError {
    /// io_uring cannot be had.
    #[error("io_uring is not available: {0}; or let engine be 'auto' or 'posix'")]
    Unavailable(Refusal),
    /// The engine stopped working after it had started.
    #[error("the I/O engine failed in {operation}: {source}")]
    Failed {
        /// The system call.
        operation: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl EngineError {
    /// What the system said, where it refused something that every engine needs.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Unavailable(_) => None,
            Self::Failed { source, .. } => source.raw_os_error(),
        }
    }
}
