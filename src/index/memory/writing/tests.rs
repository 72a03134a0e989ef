//! SETs of a key that is being written, and what goes on to the chunk that replaces another.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::base::block::BLOCK_BYTES;
use crate::base::time::Clock;
use crate::evict::Footprint;
use crate::index::test_index::opened;
use crate::key::Hashed;

/// SETs by number.
type TestIndex = Index<u32>;

const LENGTH_BYTES: u64 = 100;

fn empty() -> (TestIndex, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let index = opened(directory.path(), |_| ());
    index.table.grow().unwrap();
    (index, directory)
}

fn set(index: &TestIndex, key: &str, request: u32) -> bool {
    let entered = index.enter_set(Digest::of(key), &key.into(), 1, request);
    assert!(matches!(entered, ClaimOutcome::Ready(_) | ClaimOutcome::Waits));
    matches!(entered, ClaimOutcome::Ready(_))
}

/// Ends a SET with a chunk of this generation. Returns the next one of its key.
fn finish(index: &TestIndex, key: &str, generation: u64) -> Option<u32> {
    finish_with(index, key, generation, 1)
}

fn finish_with(index: &TestIndex, key: &str, generation: u64, blocks: u32) -> Option<u32> {
    let content = ChunkFields {
        digest: Digest::of(key),
        namespace: 0,
        extent: Extent { file: 0, first_block: 100 * generation as u32, blocks },
        length_bytes: u64::from(blocks - 1) * BLOCK_BYTES + LENGTH_BYTES,
        generation,
        checksum: None,
        variant: 0,
        created_ms: 1,
    };
    let publication = Some((index.table.reserve_record(key.len()).unwrap(), content));
    index.finish_set(Digest::of(key), publication).0
}

#[test]
fn sets_of_a_key_follow_each_other() {
    let (index, _directory) = empty();
    assert!(set(&index, "a", 1) && set(&index, "b", 2) && set(&index, "c", 3));
    assert!(!set(&index, "a", 4) && !set(&index, "a", 5) && !set(&index, "b", 6));
    assert_eq!((finish(&index, "a", 1), finish(&index, "c", 2)), (Some(4), None));
    assert_eq!((finish(&index, "a", 3), finish(&index, "a", 4)), (Some(5), None));
    assert_eq!(index.abandon_waiting(), [6]);
}

/// Order of one key: nothing that was to be stored before a DELETE is stored, and what comes after it is.
#[test]
fn a_delete_is_for_the_sets_before_it() {
    let (index, _directory) = empty();
    let is_doomed = || index.is_doomed(Digest::of("a"));
    let is_stored = || index.stored(Digest::of("a")).is_some();
    assert!(set(&index, "a", 1) && !set(&index, "a", 2) && !is_doomed());
    assert!((0..2).all(|_| index.delete(Digest::of("a"), "a").0));
    assert!(!set(&index, "a", 3) && is_doomed());
    assert_eq!((finish(&index, "a", 1), is_stored(), is_doomed()), (Some(2), false, true));
    assert_eq!((finish(&index, "a", 2), is_stored(), is_doomed()), (Some(3), false, false));
    assert_eq!((finish(&index, "a", 3), is_stored()), (None, true));
}

#[test]
fn a_chunk_of_before_the_crash_is_no_copy_of_what_comes() {
    let (index, _directory) = empty();
    assert!(set(&index, "a", 1));
    assert_eq!(finish(&index, "a", 9), None);
    let stored = |untrusted_before, verify_from| {
        index.untrusted_before.store(untrusted_before, Ordering::Relaxed);
        index.verify_from.store(verify_from, Ordering::Relaxed);
        index.stored(Digest::of("a")).is_some_and(|stored| stored.is_verified)
    };
    assert!(index.first_generation > 10);
    assert!(stored(0, u64::MAX) && stored(9, u64::MAX) && stored(0, 10));
    assert!(!stored(10, u64::MAX) && !stored(0, 9));
}

/// A leased key, the clock, and what is leased.
fn leased() -> (TestIndex, tempfile::TempDir, Arc<AtomicU64>, Footprint) {
    let (now_ms, directory) = (Arc::new(AtomicU64::new(5000)), tempfile::tempdir().unwrap());
    let clock = Clock::by_hand(Arc::clone(&now_ms));
    let index: TestIndex = opened(directory.path(), |config| config.clock = clock);
    index.table.grow().unwrap();
    assert!(set(&index, "a", 1));
    assert_eq!(finish(&index, "a", 1), None);
    assert_eq!(sum(&index), Footprint::default());
    let keys = [Hashed::of("a")].into_iter();
    assert_eq!(index.contains_each(keys, false, 1).stored, [true]);
    let one = sum(&index);
    assert!(one.bytes > 0 && one.slots > 0);
    (index, directory, now_ms, one)
}

fn sum(index: &TestIndex) -> Footprint {
    index.leases.lock().sum(index.now_s())
}

#[test]
fn a_lease_goes_to_the_chunk_that_replaces_one() {
    let (index, _directory, _, one) = leased();
    for generation in [2, 3] {
        assert!(set(&index, "a", 1));
        assert_eq!(finish(&index, "a", generation), None);
        assert_eq!(sum(&index), one, "{generation}");
    }
    // Also where no more may be leased: it takes no more than before.
    let (all, until_s) = (index.leasable(index.now_s()), index.now_s() + 5);
    index.leases.lock().add(until_s, all);
    assert!(set(&index, "a", 1));
    assert_eq!(finish(&index, "a", 4), None);
    index.leases.lock().remove(until_s, all);
    assert_eq!(sum(&index), one);
    // A longer one may take more, as far as there is room.
    for (room, kept) in [(true, 3 * one.bytes), (false, 0)] {
        let taken = index.leasable(index.now_s());
        if !room {
            index.leases.lock().add(until_s, taken);
        }
        assert!(set(&index, "a", 1));
        assert_eq!(finish_with(&index, "a", 5, if room { 3 } else { 9 }), None);
        if !room {
            index.leases.lock().remove(until_s, taken);
        }
        assert_eq!(sum(&index).bytes, kept);
    }
}

/// Leases are summed up by the second in which they end, in a ring: one that never began must not be taken for another.
#[test]
fn what_is_not_leased_adds_no_lease() {
    let (index, _directory, now_ms, _) = leased();
    let ring_s = index.config.lease_s + 2;
    // What is leased at that time ends when the place in the ring is that of 0.
    now_ms.store(u64::from(3 * ring_s - index.config.lease_s - 1) * 1000, Ordering::SeqCst);
    let keys = [Hashed::of("a")].into_iter();
    assert_eq!(index.contains_each(keys, false, 1).stored, [true]);
    let before = sum(&index);
    assert!(before.bytes > 0);
    assert!(set(&index, "b", 1));
    assert_eq!(finish(&index, "b", 2), None);
    assert_eq!(sum(&index), before);
    // Nor does it take one away as it goes.
    assert!(index.delete(Digest::of("b"), "b").0);
    assert_eq!(sum(&index), before);
}

#[test]
fn a_lease_that_has_ended_goes_to_nobody() {
    let (index, _directory, now_ms, _) = leased();
    let until_s = index.now_s() + index.config.lease_s + 1;
    now_ms.store(u64::from(until_s) * 1000, Ordering::SeqCst);
    assert_eq!(index.now_s(), until_s);
    assert!(set(&index, "a", 1));
    assert_eq!(finish(&index, "a", 2), None);
    let shard = index.shard(Digest::of("a")).1;
    let entry = shard.find(Digest::of("a")).unwrap().entry;
    assert_eq!(shard.entries[entry].leased_until_s, 0);
}
