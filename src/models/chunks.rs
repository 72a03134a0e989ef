//! Chunks that are read while they are deleted, replaced and evicted: their extents are given away once, and never while read.

use std::sync::Arc;

use super::store::{MIB, Store, is_all, memory};
use super::{explore, spawn};

const LENGTH: usize = 8192;

/// A deleted chunk's extent goes to the next SET: a reader must not see that one's bytes.
#[test]
fn a_read_chunk_keeps_its_extent_while_it_is_deleted() {
    explore(|| {
        let store = Store::open(1);
        assert!(store.wait_for(store.set("a", &memory(LENGTH, 1))));
        let loaded = [memory(LENGTH, 0), memory(LENGTH, 0)];
        let readers = loaded.clone().map(|memory| {
            let store = Arc::clone(&store);
            spawn(move || store.get("a", &memory))
        });
        let deleted = store.delete("a");
        let stored = store.set("b", &memory(LENGTH, 2));
        let ids = readers.map(|reader| reader.join().unwrap());
        let answers = store.wait(4);
        assert!(answers[&deleted].results[0] && answers[&stored].ok);
        for (id, memory) in ids.iter().zip(&loaded) {
            // A load that was answered with a miss did not touch the memory, or it began to read.
            assert!(!answers[id].results[0] || is_all(memory, 1), "bytes of another chunk");
        }
        assert!(store.load("a", LENGTH).is_none());
        assert!(is_all(&store.load("b", LENGTH).unwrap(), 2));
        store.wait_for(store.delete("b"));
        store.close();
        assert_eq!(store.allocated_bytes(), 0, "each extent is given back");
    });
}

/// Two SETs of a key, a load and a DELETE of it at the same time.
#[test]
fn a_key_that_is_replaced_has_one_chunk_or_the_other() {
    explore(|| {
        let store = Store::open(2);
        assert!(store.wait_for(store.set("a", &memory(LENGTH, 1))));
        let loaded = memory(LENGTH, 0);
        let reader = spawn({
            let (store, loaded) = (Arc::clone(&store), Arc::clone(&loaded));
            move || store.get("a", &loaded)
        });
        let writer = spawn({
            let store = Arc::clone(&store);
            move || store.set("a", &memory(LENGTH, 2))
        });
        let last = store.set("a", &memory(LENGTH, 3));
        let (got, set) = (reader.join().unwrap(), writer.join().unwrap());
        let answers = store.wait(3);
        assert!(answers[&got].results[0] && answers[&set].ok && answers[&last].ok);
        assert!((1..=3).any(|byte| is_all(&loaded, byte)), "a load sees a whole chunk");
        let stands = store.load("a", LENGTH).unwrap();
        assert!((2..=3).any(|byte| is_all(&stands, byte)));
        assert_eq!(store.allocated_bytes(), LENGTH as u64, "one chunk is left");
        store.close();
    });
}

/// Two chunks fit: the third one evicts, and must not take the extent of one that is read.
#[test]
fn a_read_chunk_is_not_evicted() {
    explore(|| {
        let store = Store::open(1);
        let length = MIB;
        let (names, fills) = (["a", "b"], [1, 2]);
        for (name, fill) in names.iter().zip(fills) {
            assert!(store.wait_for(store.set(name, &memory(length, fill))));
        }
        let loaded = [memory(length, 0), memory(length, 0)];
        let reader = spawn({
            let (store, loaded) = (Arc::clone(&store), loaded.clone());
            move || [store.get("a", &loaded[0]), store.get("b", &loaded[1])]
        });
        let evictor = spawn({
            let store = Arc::clone(&store);
            move || {
                let cache = &store.connector.volumes.all[0].shared.cache;
                cache.evict_coldest();
                // As the maintenance thread does: a SET waits for the record to be cleared.
                cache.index.changes.announce();
            }
        });
        let stored = store.set("d", &memory(length, 4));
        let ids = reader.join().unwrap();
        evictor.join().unwrap();
        let answers = store.wait(3);
        for ((id, memory), fill) in ids.iter().zip(&loaded).zip(fills) {
            assert!(!answers[id].results[0] || is_all(memory, fill), "bytes of another chunk");
        }
        // There is no room for it while both others are read, and the evictor may have come last.
        let found = store.load("d", length);
        assert!(answers[&stored].ok || found.is_none());
        assert!(found.is_none_or(|memory| is_all(&memory, 4)));
        store.close();
    });
}
