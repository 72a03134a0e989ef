//! Reactors that are woken, that take up what is pending, and that wait for each other's loads; and their end.

use std::sync::Arc;

use super::store::{Store, is_all, memory};
use super::{explore, spawn};
use crate::config::Durability;

const LENGTH: usize = 8192;

/// A load of a key that is being written is a miss or a hit, and the SET waits for the loads of other reactors.
#[test]
fn sets_that_wait_for_loads_end() {
    explore(|| {
        let store = Store::open(2);
        assert!(store.wait_for(store.set("a", &memory(LENGTH, 1))));
        let (loaded, awaited) = (memory(LENGTH, 0), memory(LENGTH, 0));
        let reader = spawn({
            let (store, loaded) = (Arc::clone(&store), Arc::clone(&loaded));
            move || store.get("a", &loaded)
        });
        let waiting = spawn({
            let (store, awaited) = (Arc::clone(&store), Arc::clone(&awaited));
            move || store.get("b", &awaited)
        });
        let set = store.set("b", &memory(LENGTH, 2));
        let other = store.set("c", &memory(LENGTH, 3));
        let (got, waited) = (reader.join().unwrap(), waiting.join().unwrap());
        let answers = store.wait(4);
        assert!(answers[&got].results[0] && is_all(&loaded, 1));
        assert!(answers[&set].ok && answers[&other].ok);
        assert!(!answers[&waited].results[0] || is_all(&awaited, 2));
        store.close();
    });
}

/// A SET waits until the record of a deleted chunk is cleared in the file, as it may get that one's extent.
#[test]
fn a_set_behind_a_delete_ends() {
    explore(|| {
        let store = Store::open(1);
        assert!(store.wait_for(store.set("a", &memory(LENGTH, 1))));
        store.delete("a");
        store.set("b", &memory(LENGTH, 2));
        assert!(store.wait(2).values().all(|one| one.ok));
        store.close();
    });
}

/// In `persistent`, groups of SETs wait for the syncs of other reactors and for the record writer.
#[test]
fn groups_that_wait_for_each_other_end() {
    explore(|| {
        let store = Store::open_with(2, |config| config.durability = Durability::Persistent);
        let others = ["a", "b"].map(|key| {
            let store = Arc::clone(&store);
            spawn(move || store.set(key, &memory(LENGTH, 1)))
        });
        store.set("a", &memory(LENGTH, 2));
        others.into_iter().for_each(|other| _ = other.join().unwrap());
        assert!(store.wait(3).values().all(|one| one.ok));
        assert_eq!(store.allocated_bytes(), 2 * LENGTH as u64, "a chunk for each key");
        store.close();
    });
}

/// What one reactor has not taken up is taken up by another.
#[test]
fn what_is_pending_is_taken_up_once() {
    explore(|| {
        let store = Store::open(2);
        assert!(store.wait_for(store.set("a", &memory(LENGTH, 1))));
        let loaded = [0, 1].map(|_| memory(LENGTH, 0));
        let others = [("a", 0), ("b", 1)].map(|(key, number)| {
            let (store, loaded) = (Arc::clone(&store), Arc::clone(&loaded[number]));
            spawn(move || store.get(key, &loaded))
        });
        store.set("c", &memory(LENGTH, 3));
        let set = store.set("b", &memory(LENGTH, 2));
        let [got, waited] = others.map(|other| other.join().unwrap());
        let answers = store.wait(4);
        assert!(answers[&set].ok && answers[&got].results[0] && is_all(&loaded[0], 1));
        assert!(!answers[&waited].results[0] || is_all(&loaded[1], 2));
        store.close();
    });
}

/// Each batch is refused, or answered before the close returns; no memory is used after it.
#[test]
fn a_submit_beside_a_close_is_refused_or_answered() {
    explore(|| {
        let store = Store::open(2);
        assert!(store.wait_for(store.set("a", &memory(LENGTH, 1))));
        let used = [memory(LENGTH, 0), memory(LENGTH, 2)];
        let submitting = [0, 1].map(|number| {
            let (store, memory) = (Arc::clone(&store), Arc::clone(&used[number]));
            spawn(move || match number {
                0 => store.try_get("a", &memory),
                _ => store.try_set("b", &memory),
            })
        });
        let shutdown = store.connector.close();
        assert!(shutdown.clean && !shutdown.memory_held, "{shutdown:?}");
        submitting.into_iter().for_each(|thread| _ = thread.join().unwrap());
        assert!(used.iter().all(|memory| Arc::strong_count(memory) == 1), "a batch is left");
        assert!(store.try_get("a", &used[0]).is_none());
    });
}

/// The same of calls that wait for what they remove.
#[test]
fn a_delete_beside_a_close_returns() {
    explore(|| {
        let store = Store::open(1);
        assert!(store.wait_for(store.set("a", &memory(LENGTH, 1))));
        let deleting = spawn({
            let store = Arc::clone(&store);
            move || store.connector.delete(&["a"]).ok()
        });
        let closing = spawn({
            let store = Arc::clone(&store);
            move || store.connector.close()
        });
        let shutdown = store.connector.close();
        assert!(shutdown.clean);
        assert_eq!(closing.join().unwrap(), shutdown);
        deleting.join().unwrap();
    });
}
