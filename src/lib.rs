//! kvring: a local-NVMe tier for LMCache.
//!
//! Batches of (key, memory) come in. The bytes move between that memory and the disk by io_uring (or threads) and O_DIRECT. Completions
//! go out through an eventfd. Chunks survive restarts.
//!
//! docs/architecture.md has a picture of it, and follows a SET and a GET through it.
//!
//! A module knows only those before it in this list:
//!
//! - `block`, `time`, `sync`, `log_limit`, `thread`, `system`, `parallel`, `segmented_vec`, `checksum`, `key`, `buffer`, `progress`, `failure`, `completion_queue`, `batch_completion`, `backlog`: tools
//! - `format`: what is on disk
//! - `engine`: what moves bytes
//! - `open_stores`, `error`, `lock`, `directory`, `config`, `placement`, `capacity`: what a store is opened with
//! - `store`: where bytes live
//! - `evict`, `index`: what is stored, and what goes
//! - `stats`, `cache`: what a chunk goes through
//! - `schedule`, `reactor`, `connector`: what is asked, and answered
//! - `testing`, `bench`, `models`: what tests replace, what benchmarks see, and the races that are searched for

#![cfg_attr(
    not(feature = "bench"),
    allow(unreachable_pub, reason = "`bench` exports what benchmarks need")
)]
// Allowed in the modules that say so, where _UNSAFE_IN of tools/supply_chain.py lists them; tests may use memory as callers do.
#![cfg_attr(not(test), deny(unsafe_code))]

#[cfg(not(target_endian = "little"))]
compile_error!(
    "kvring's files are little-endian and mapped as they are; big-endian machines are not supported"
);

mod backlog;
mod batch_completion;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod block;
mod buffer;
mod cache;
mod capacity;
mod checksum;
mod completion_queue;
mod config;
mod connector;
mod directory;
mod engine;
mod error;
mod evict;
mod failure;
mod format;
mod index;
mod key;
mod lock;
mod log_limit;
#[cfg(all(test, any(kvring_model = "loom", kvring_model = "shuttle")))]
mod models;
mod open_stores;
mod parallel;
mod placement;
mod progress;
mod reactor;
#[allow(unreachable_pub, reason = "its items are public within it, not beyond the crate")]
mod schedule;
mod segmented_vec;
mod stats;
mod store;
mod sync;
mod system;
#[doc(hidden)]
pub mod testing;
mod thread;
mod time;

pub use block::BLOCK_BYTES;
pub use buffer::{AlignedBlock, CallerBuffer};
pub use checksum::checksum_with_key;
pub use completion_queue::{Completion, KeepAlive};
pub use config::{
    Admission, Checksum, Config, Discard, Durability, EngineChoice, Eviction, Layout,
    MIN_CAPACITY_BYTES, OPTIONS, OptionSpec, OptionValue, size_bytes,
};
pub use connector::{
    ChunkSum, Connector, OpenForecast, Removal, Shutdown, SubmitError, forecast_open, format_device,
};
pub use engine::{EngineError, MemoryError, MemoryHandle, Refusal};
pub use error::{ConfigError, OpenError};
pub use evict::NamespaceUsage;
pub use failure::FailureCode;
pub use format::header::FORMAT_VERSION;
pub use format::record::MAX_CHUNK_BYTES;
pub use format::superblock::DEVICE_FORMAT_VERSION;
pub use index::{
    Check, ChunkCondition, ChunkReader, Damage, KeyChange, KeyEvent, KeyState, Purged, Recovery,
    StoreFacts, StoredChunk, StoredChunks, list_chunks,
};
pub use key::{
    Identity, MAX_KEY_BYTES, ObjectKey, engine_namespace, part_key, rank_prefix, salt_of,
};
pub use stats::{LatencyHistogram, PathStats, Stats};
pub use store::Geometry;
