//! Which chunks are stored: a map in memory for lookups, and an index file of records for the next open.

mod changes;
mod chunk_reader;
mod collisions;
mod entries;
mod eviction;
mod exists;
mod expiry;
mod found;
mod ghosts;
mod index_bytes;
mod index_file;
mod key_events;
mod key_watch;
mod listing;
#[cfg(test)]
#[path = "../../tests/common/logged.rs"]
pub(crate) mod logged;
mod lookup;
pub(crate) mod map;
mod mapping;
#[cfg(feature = "bench")]
#[path = "../../benches/inside/index_probe.rs"]
pub(crate) mod probe;
mod reader_pins;
mod reading;
mod recency;
mod records;
mod recovery;
mod recovery_report;
mod restoring;
mod scans;
mod shard;
mod sigbus;
mod slots;
mod space;
mod store_facts;
pub(crate) mod table;
mod table_file;
#[cfg(test)]
pub(crate) mod test_index;
mod writing;

pub use chunk_reader::{ChunkCondition, ChunkReader};
pub(crate) use found::{FoundIndex, Sharing};
pub(crate) use index_file::{IndexPlace, owner_in_directory, owner_on_device};
pub use key_events::{KeyChange, KeyEvent};
pub(crate) use key_events::{KeyEvents, UntoldChunk};
pub use listing::{Damage, StoredChunk, StoredChunks, list_chunks};
pub(crate) use map::Index;
pub(crate) use reader_pins::EnteredGet;
pub use recovery_report::Recovery;
pub use scans::{Check, KeyState, Purged};
pub(crate) use shard::{ChunkVersion, Pin};
pub use store_facts::StoreFacts;
pub(crate) use writing::{EnteredSet, Resumed};
