//! Which chunks are stored: a map in memory for every question, and an index file of records for the next start.

mod changes;
mod entries;
mod exists;
mod found;
mod ghosts;
mod guards;
mod header;
mod index_file;
mod leases;
mod listing;
mod lookup;
pub(crate) mod map;
mod mapping;
mod membership;
#[cfg(feature = "bench")]
pub(crate) mod probe;
mod quarantine;
mod reader;
mod recency;
mod records;
mod recovery;
mod session;
mod shard;
mod sigbus;
mod slots;
mod space;
mod survey;
pub(crate) mod table;
mod table_file;
mod writing;

pub(crate) use found::FoundIndex;
pub(crate) use index_file::{IndexPlace, owner_in_directory, owner_on_device};
pub use listing::{Damage, StoredChunk, StoredChunks, list_chunks};
pub(crate) use map::{EnteredGet, Index, Rules};
pub(crate) use membership::Sharing;
pub use recovery::Recovery;
pub(crate) use shard::{Pin, Suspect};
pub use survey::{Check, KeyState, Purged};
pub(crate) use writing::{EnteredSet, Publication, RecordState, Resumed};
