//! Load generator of `kvring bench`: drives an open store the way `fio` drives a device, and measures it.
//!
//! ```text
//!   Run (handle: poll, stop, wait, finish)
//!    |
//!   session: the store and its jobs, phase by phase (fill, measure, check)
//!    |
//!   job (one thread each): picks keys, keeps batches in flight, settles answers
//!    |                \
//!   keyspace, memory,  router: one thread at a time waits on the eventfd and hands every job its own answers
//!   content
//! ```
//!
//! It uses the public API of the crate `kvring` alone. Every job has keys of its own, so that what a key must hold is
//! always known.

mod content;
mod error;
mod job;
mod keyspace;
mod memory;
mod options;
mod plan;
mod progress;
mod random;
mod report;
mod router;
mod run;
mod session;
mod sizes;

pub use error::{BenchError, PlanError};
pub use options::{BENCH_OPTIONS, BenchOption};
pub use plan::{Pattern, Plan};
pub use progress::{Phase, Progress};
pub use report::{ClassReport, PhaseReport, Report};
pub use run::Run;
pub use sizes::ChunkSizes;
