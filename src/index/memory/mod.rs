//! The index in memory: which keys are stored or being written, their readers, leases and pins.

mod collisions;
mod eviction;
pub(super) mod exists;
mod expiry;
pub(super) mod key_events;
mod key_watch;
pub(super) mod map;
pub(super) mod reader_pins;
mod recency;
pub(super) mod shard;
pub(super) mod writing;
