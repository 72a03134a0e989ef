//! Looking at a store: its chunks without its lock, and scans of all keys with it.

pub(super) mod chunk_reader;
mod index_search;
pub(super) mod listing;
pub(super) mod scans;
pub(super) mod store_facts;
