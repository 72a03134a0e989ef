//! The ground floor: locks, threads, time, memory, calls of the system. Nothing here knows a chunk.

pub(crate) mod block;
pub(crate) mod buffer;
pub(crate) mod checksum;
pub(crate) mod log_limit;
pub(crate) mod mounts;
pub(crate) mod parallel;
pub(crate) mod segmented_vec;
pub(crate) mod sequencer;
pub(crate) mod sync;
pub(crate) mod system;
pub(crate) mod thread;
pub(crate) mod time;
