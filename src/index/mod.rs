//! What is held: a map in RAM for every question, a sidecar file of records for the next start.

mod backing;
mod entries;
mod exists;
mod first_page;
mod found;
mod ghosts;
mod guards;
mod leases;
mod listing;
mod lookup;
pub(crate) mod map;
mod mapping;
mod membership;
mod probe;
mod quarantine;
mod recency;
mod record;
mod recovery;
mod shard;
mod sigbus;
mod slots;
mod survey;
pub(crate) mod table;
mod table_file;
mod writing;

pub(crate) use backing::{IndexPlace, owner_in_directory, owner_on_device};
pub(crate) use found::FoundIndex;
pub use listing::{StoredChunk, StoredChunks, list_chunks};
pub(crate) use map::{EnteredGet, Index, Pin, Rules};
pub(crate) use membership::{Membership, Sharing, StoreId};
pub use probe::IndexProbe;
pub(crate) use record::HEADER_BYTES;
pub use recovery::Recovery;
pub(crate) use recovery::Suspect;
pub use survey::{Check, KeyState, Purged};
pub(crate) use writing::{EnteredSet, Publication, RecordState, Resumed};
