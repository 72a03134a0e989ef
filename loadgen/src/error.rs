//! What can be wrong with a plan, and what can end a run.

use std::io;

use thiserror::Error;

/// A wrong plan, found before anything is touched; each message names the value, the limit and the way out.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The option does not exist.
    #[error("unknown option '{name}'; the options of kvring bench are: {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// All names that exist.
        known: String,
    },
    /// The option exists; its value does not fit.
    #[error("option '{name}' = {value} is not valid: {reason}; it takes {range}")]
    Invalid {
        /// The option.
        name: &'static str,
        /// The value that was given, as text.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// What it accepts.
        range: &'static str,
    },
    /// Options that fit on their own but not together, or not this machine or store.
    #[error("{0}")]
    Conflict(String),
}

/// What ends a run before it has measured anything.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The plan does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] kvring::OpenError),
    /// The store does not take the buffers for registration.
    #[error(transparent)]
    Register(#[from] kvring::SubmitError),
    /// The system refused a thread.
    #[error("cannot start a thread: {0}; lower numjobs, or raise the limit on threads")]
    Thread(io::Error),
    /// A defect of the generator itself.
    #[error("the load generator failed: {0}")]
    Defect(String),
}
