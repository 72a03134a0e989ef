//! Which chunks are stored: a map in memory for lookups, and an index file of records for the next open.

mod file;
mod inspection;
#[cfg(test)]
#[path = "../../tests/common/logged.rs"]
pub(crate) mod logged;
mod memory;
mod recovery;
#[cfg(test)]
pub(crate) mod test_index;

pub(crate) use file::index_file::{IndexPlace, owner_in_directory, owner_on_device};
pub(crate) use file::locked_index::{LockedIndex, Sharing};
pub(crate) use file::record_writer::{RecordWriter, WriterEvent};
pub(crate) use file::table::{ChunkFields, Reservation};
pub use inspection::chunk_reader::{ChunkCondition, ChunkReader};
pub use inspection::listing::{Damage, StoredChunk, StoredChunks, list_chunks};
pub use inspection::scans::{Check, KeyState, Purged};
pub use inspection::store_facts::{StoreFacts, StoreMember};
pub(crate) use memory::exists::Lookups;
pub use memory::key_events::{KeyChange, KeyEvent};
pub(crate) use memory::key_events::{KeyEvents, UntoldChunk};
pub(crate) use memory::map::Index;
pub(crate) use memory::reader_pins::PinRefusal;
pub(crate) use memory::shard::{ChunkVersion, Pin};
pub(crate) use memory::writing::{ClaimOutcome, StoredContent};
pub(crate) use recovery::opening::{RecoveredIndex, UnreadIndex};
pub use recovery::report::Recovery;
