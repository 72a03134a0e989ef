//! kvring: a local-NVMe tier for LMCache, vLLM and SGLang.
//!
//! A [`Connector`] is an open store. It takes batches of keys and memory, and moves the bytes between that memory and the drive by
//! O_DIRECT, with io_uring or with threads. Each batch is answered by one [`Completion`]; an eventfd is readable while there are some. Chunks
//! survive restarts.
//!
//! ```
//! use std::error::Error;
//! use std::time::Duration;
//!
//! use kvring::{Completion, Config, Connector};
//!
//! fn store_and_load(path: &str) -> Result<(), Box<dyn Error>> {
//!     let store = Connector::open(Config::new(path, 64 << 20)?)?;
//!     store.submit_set_owned(&["key"], vec![vec![7; 100_000]])?;
//!     assert!(next_completion(&store)?.ok);
//!     store.close();
//!
//!     let store = Connector::open(Config::new(path, 64 << 20)?)?;
//!     assert_eq!(store.lengths(&["key", "other"])?, [Some(100_000), None]);
//!     store.submit_get_owned(&["key"], vec![vec![0; 100_000]])?;
//!     let completion = next_completion(&store)?;
//!     assert_eq!(completion.results, [true]);
//!     assert_eq!(completion.into_chunks(), Some(vec![vec![7; 100_000]]));
//!     Ok(())
//! }
//!
//! fn next_completion(store: &Connector) -> Result<Completion, Box<dyn Error>> {
//!     let mut completions = Vec::new();
//!     store.wait(Duration::from_secs(30))?;
//!     store.drain(&mut completions);
//!     completions.pop().ok_or("no completion within 30 s".into())
//! }
//! # let directory = tempfile::tempdir()?;
//! # store_and_load(directory.path().join("store").to_str().ok_or("the path is not UTF-8")?)?;
//! # Ok::<(), Box<dyn Error>>(())
//! ```
//!
//! These calls need no unsafe code. [`Connector::submit_set`] and [`Connector::submit_get`] take the caller's memory without a copy where
//! it is aligned to 4,096 bytes. `examples/from_rust.rs` is a whole program. The options are the fields of [`Config`]; [`OPTIONS`]
//! describes them.

// docs/explanation/architecture.md follows a SET and a GET through the modules.
//
// A module uses only those before it in this list:
//
// - `base`, `key`, `batch`: utilities, keys and batches
// - `format`: the bytes on disk
// - `engine`: transfers
// - `error`, `lock`, `directory`, `config`, `placement`, `space_account`: errors, locks, options, several paths, capacity
// - `store`: extents and files of chunks
// - `evict`, `index`: eviction, leases, quotas; the map of keys and the index file
// - `stats`, `cache`: counters; the decisions of each SET and GET
// - `schedule`, `reactor`, `connector`: order of transfers, their execution, the API
// - `testing`, `bench`, `models`: access for tests and benchmarks; model checking

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

mod base;
mod batch;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod cache;
mod config;
mod connector;
mod directory;
mod engine;
mod error;
mod evict;
mod format;
mod index;
mod key;
mod lock;
#[cfg(all(test, any(kvring_model = "loom", kvring_model = "shuttle")))]
mod models;
mod placement;
mod reactor;
#[allow(unreachable_pub, reason = "its items are public within it, not beyond the crate")]
mod schedule;
mod space_account;
mod stats;
mod store;
#[doc(hidden)]
pub mod testing;

pub use base::block::BLOCK_BYTES;
pub use base::buffer::{ANY_VARIANT, AlignedBlock, CallerBuffer, Variant};
pub use batch::completion_queue::{Completion, FailureCode, KeepAlive};
pub use config::{
    Admission, Checksum, Config, Discard, Durability, EngineChoice, Eviction, Layout,
    MIN_CAPACITY_BYTES, OPTIONS, OptionSpec, OptionValue, WriteStreams, size_bytes,
};
pub use connector::{
    ChunkSum, Connector, LimitError, OpenForecast, Removal, Shutdown, StoreLimits, SubmitError,
    check_places, forecast_open, format_device,
};
pub use engine::{EngineError, MemoryError, MemoryHandle, Refusal};
pub use error::{ConfigError, OpenError};
pub use evict::NamespaceUsage;
pub use format::header::FORMAT_VERSION;
pub use format::record::MAX_CHUNK_BYTES;
pub use format::superblock::DEVICE_FORMAT_VERSION;
pub use index::{
    Check, ChunkCondition, ChunkReader, Damage, KeyChange, KeyEvent, KeyState, Purged, Recovery,
    StoreFacts, StoreMember, StoredChunk, StoredChunks, list_chunks,
};
pub use key::{Identity, MAX_KEY_BYTES, ObjectKey};
pub use stats::{LatencyHistogram, PathStats, Stats, StreamUse};
pub use store::Geometry;

// What the Python package makes its keys and checksums of.
#[doc(hidden)]
pub use base::checksum::checksum_with_key;
#[doc(hidden)]
pub use key::{engine_namespace, is_of_model, part_key, rank_prefix, salt_of};
