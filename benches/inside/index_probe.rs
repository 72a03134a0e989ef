//! The index without store and reactor, for benchmarks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::block::Extent;
use crate::capacity::Budget;
use crate::config::Config;
use crate::directory::Directory;
use crate::error::{OpenError, StoreError};
use crate::evict::Quotas;
use crate::index::file::index_file::IndexPlace;
use crate::index::file::locked_index::FoundIndex;
use crate::index::file::table::{ChunkFields, Reservation, Table};
use crate::index::memory::map::Index;
use crate::index::memory::reader_pins::EnteredGet;
use crate::index::memory::shard::Pin;
use crate::index::memory::writing::EnteredSet;
use crate::key::{Digest, Hashed, Namespace};
use crate::time::Clock;

const LENGTH_BYTES: u64 = 4096;

/// Map and index file, driven by hand.
pub struct IndexProbe(Index<(), ()>);

impl IndexProbe {
    /// Makes an index file in `directory`.
    ///
    /// # Errors
    /// As [`crate::Connector::open`].
    pub fn open(directory: &Path, capacity_bytes: u64) -> Result<Self, OpenError> {
        let budget = Arc::new(Budget::new(capacity_bytes));
        let opened = Directory::open_or_make(directory).map_err(|source| {
            let path = directory.to_owned();
            OpenError::Io { action: "make the directory", path, source }
        })?;
        let place = IndexPlace::Directory(Arc::new(opened));
        let found = FoundIndex::look(place)?;
        let (table, _) = Table::open(found, budget, Clock::default().now_ms())?;
        let config = Config { ttl: None, ..Config::new("probe", capacity_bytes)? };
        Ok(Self(Index::new(table, 1, config, &Quotas::default())))
    }

    /// What a SET does to the index from its submission to its end, without I/O. Returns how long its end took, for which
    /// it holds a lock that others wait for.
    ///
    /// # Errors
    /// When the index file cannot grow.
    pub fn set(&self, key: &str) -> Result<Duration, StoreError> {
        let digest = self.claim(key);
        let generation = self.0.next_generation();
        let content = ChunkFields {
            digest,
            namespace: Namespace::of(key).fingerprint(),
            extent: Extent {
                file: 0,
                first_block: generation as u32,
                blocks: Extent::blocks_for(LENGTH_BYTES),
            },
            length_bytes: LENGTH_BYTES,
            generation,
            checksum: None,
            created_ms: Clock::default().now_ms(),
        };
        let reserved = self.reserve(key.len());
        let reservation = reserved.inspect_err(|_| self.finish(digest, None))?;
        let start = Instant::now();
        self.finish(digest, Some((reservation, content)));
        Ok(start.elapsed())
    }

    /// A SET that is submitted and fails.
    pub fn set_in_vain(&self, key: &str) {
        let digest = self.claim(key);
        self.finish(digest, None);
    }

    /// What a GET does to the index. Says whether it hit.
    pub fn get(&self, key: &str) -> bool {
        let (digest, now_ms) = (Digest::of(key), Clock::default().now_ms());
        let entered = self.0.enter_get(digest, key, LENGTH_BYTES, now_ms, (), |pin| pin);
        let EnteredGet::Hit((), pin) = entered else { return false };
        self.0.unpin(&pin, false);
        true
    }

    /// EXISTS.
    pub fn exists<K: AsRef<str>>(&self, keys: &[K]) -> Vec<bool> {
        let keys = keys.iter().map(Hashed::of);
        self.0.contains_each(keys, false, Clock::default().now_ms()).0
    }

    /// DELETE. Says whether the key was held.
    pub fn delete(&self, key: &str) -> bool {
        self.0.delete(Digest::of(key), key).0
    }

    /// A SET that is not admitted: its key is remembered.
    pub fn refuse(&self, key: &str) {
        let _ = self.0.admits(Digest::of(key), &key.into(), u8::MAX);
    }

    fn finish(&self, digest: Digest, publication: Option<(Reservation, ChunkFields)>) {
        self.0.finish_set(digest, publication, |_: Pin| ());
    }

    fn reserve(&self, key_length: usize) -> Result<Reservation, StoreError> {
        loop {
            match self.0.table.reserve(key_length) {
                Err(StoreError::Growing { .. }) => self.0.table.grow()?,
                outcome => return outcome,
            }
        }
    }

    fn claim(&self, key: &str) -> Digest {
        let digest = Digest::of(key);
        let entered = self.0.enter_set(digest, &key.into(), Clock::default().now_ms(), ());
        debug_assert!(matches!(entered, EnteredSet::Ready(())), "two writers of {key}");
        digest
    }
}
