//! The index file: records of chunks, mapped into memory, and how changes of them reach the disk.

pub(super) mod changes;
pub(super) mod index_bytes;
pub(super) mod index_file;
pub(super) mod locked_index;
pub(super) mod mapping;
pub(super) mod record_writer;
mod records;
mod slots;
mod space;
pub(super) mod table;
mod table_file;
