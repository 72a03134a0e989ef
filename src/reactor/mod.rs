//! Threads that move bytes: each owns an engine and takes operations through their states (see `outcome`). docs/explanation/architecture.md has the
//! life of a SET and a GET.
//!
//! The caller's memory is used from the start of the first piece to the end of the last one, and never after the answer.

mod chunk_file;
mod commit;
mod device;
mod due;
mod failed_syncs;
mod group;
mod health;
mod io_error_policy;
mod latency;
mod limits;
mod operation;
mod outcome;
mod piece;
mod responsiveness;
mod set;
mod state;
mod threads;
mod transfers;
mod turn;
mod verify;

pub(crate) use group::{Answer, ReactorGroup};
pub(crate) use health::Alarm;
pub(crate) use io_error_policy::{is_gone, is_of_path};
pub(crate) use latency::Latencies;
pub(crate) use operation::Operation;
pub(crate) use threads::{MakeEngine, REACTORS_ABOVE_THREADS, ReactorEnd, Reactors};
