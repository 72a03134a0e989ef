//! Pins that come and go while their chunk is deleted, evicted and replaced; see [`crate::models`].

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::*;
use crate::index::Pin;
use crate::models::{explore, spawn};

const LENGTH_BYTES: u64 = 100;

/// One key, and the first blocks of the extents that are free again.
struct Chunk {
    index: TestIndex,
    key: Arc<str>,
    digest: Digest,
    freed: Mutex<BTreeSet<u32>>,
    _directory: tempfile::TempDir,
}

impl Chunk {
    /// Stored in an extent that begins at block 0.
    fn stored() -> Arc<Self> {
        let (directory, index) = index();
        let (key, digest): (Arc<str>, _) = ("a".into(), Digest::of("a"));
        let (freed, _directory) = (Mutex::default(), directory);
        let chunk = Arc::new(Self { index, key, digest, freed, _directory });
        chunk.set(0);
        chunk
    }

    fn free(&self, extent: Extent) {
        let is_new = self.freed.lock().unwrap().insert(extent.first_block);
        assert!(is_new, "the extent at {} is given back twice", extent.first_block);
    }

    fn set(&self, first_block: u32) {
        let entered = self.index.enter_set(self.digest, &self.key, 0, 0);
        assert!(matches!(entered, ClaimOutcome::Ready(_)));
        let (reservation, mut content) = publication(&self.index, &self.key, LENGTH_BYTES);
        content.extent.first_block = first_block;
        let publication = Some((reservation, content));
        let (_, freed) = self.index.finish_set(self.digest, publication);
        freed.into_iter().for_each(|extent| self.free(extent));
    }

    fn get(&self) {
        if let Ok(pin) = self.index.pin_stored(Hashed::of(&self.key), LENGTH_BYTES, 0) {
            self.read(&pin);
        }
    }

    fn read(&self, pin: &Pin) {
        // As long as a transfer takes.
        for _ in 0..3 {
            assert!(!self.freed.lock().unwrap().contains(&pin.extent.first_block), "in use");
            self.index.version_of(pin);
        }
        self.index.unpin(pin, true).into_iter().for_each(|extent| self.free(extent));
    }

    fn delete(&self) {
        let (_, freed) = self.index.delete(self.digest, &self.key);
        freed.into_iter().for_each(|extent| self.free(extent));
    }

    fn evict(&self) {
        for victim in self.index.coldest(1) {
            let freed = self.index.evict(victim);
            freed.into_iter().for_each(|(extent, _)| self.free(extent));
        }
    }
}

/// Runs `change` beside two readers, each of which may come before and after it.
fn beside_readers(last_block: u32, change: impl Fn(&Chunk) + Copy + Send + Sync + 'static) {
    explore(move || {
        let chunk = Chunk::stored();
        let readers = [0, 1].map(|_| {
            let chunk = Arc::clone(&chunk);
            spawn(move || chunk.get())
        });
        let evictor = spawn({
            let chunk = Arc::clone(&chunk);
            move || chunk.evict()
        });
        change(&chunk);
        readers.into_iter().chain([evictor]).for_each(|thread| thread.join().unwrap());
        chunk.delete();
        let all: BTreeSet<u32> = (0..=last_block).collect();
        assert_eq!(*chunk.freed.lock().unwrap(), all, "each extent is given back");
        assert_eq!((chunk.index.keys(), chunk.index.stored_bytes()), (0, 0));
    });
}

#[test]
fn a_deleted_chunk_is_freed_by_its_last_reader() {
    beside_readers(0, Chunk::delete);
}

#[test]
fn a_replaced_chunk_is_freed_by_its_last_reader() {
    beside_readers(1, |chunk| chunk.set(1));
}
