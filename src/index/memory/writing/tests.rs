//! What waits for a key that is being written, and what goes on to the chunk that replaces another.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::base::block::BLOCK_BYTES;
use crate::base::time::Clock;
use crate::evict::Footprint;
use crate::index::ReadOutcome;
use crate::index::memory::reader_pins::MAX_WAITING_GETS;
use crate::index::test_index::opened;
use crate::key::Hashed;

/// Operations by number.
type TestIndex = Index<u32, u32>;

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

/// A GET that has to wait.
fn get(index: &TestIndex, key: &str, length_bytes: u64, request: u32) {
    let entered = index.enter_get(Digest::of(key), key, length_bytes, 1, request, |_| ());
    assert!(matches!(entered, ReadOutcome::Waits));
}

/// Ends a SET with a chunk of this generation. Returns what comes next, as a letter and a number.
fn finish(index: &TestIndex, key: &str, generation: u64) -> Vec<(char, u32)> {
    finish_with(index, key, generation, 1)
}

fn finish_with(index: &TestIndex, key: &str, generation: u64, blocks: u32) -> Vec<(char, u32)> {
    let content = ChunkFields {
        digest: Digest::of(key),
        namespace: 0,
        extent: Extent { file: 0, first_block: 100 * generation as u32, blocks },
        length_bytes: u64::from(blocks - 1) * BLOCK_BYTES + LENGTH_BYTES,
        generation,
        checksum: None,
        created_ms: 1,
    };
    let publication = Some((index.table.reserve(key.len()).unwrap(), content));
    let (resumed, _) = index.finish_set(Digest::of(key), publication, |_| ());
    let of = |one: &Resumed<u32, u32, ()>| match one {
        Resumed::Hit(request, ()) => ('h', *request),
        Resumed::Miss(request) => ('m', *request),
        Resumed::Start(request) => ('s', *request),
    };
    resumed.iter().map(of).collect()
}

fn awaited(index: &TestIndex) -> usize {
    index.awaited.load(Ordering::SeqCst)
}

#[test]
fn keys_are_awaited_while_loads_wait_for_them() {
    let (index, _directory) = empty();
    let is_awaited = |key| index.is_awaited(Digest::of(key));
    assert!(set(&index, "a", 1) && set(&index, "b", 2));
    assert_eq!((awaited(&index), is_awaited("a"), is_awaited("b")), (0, false, false));
    get(&index, "a", LENGTH_BYTES, 3);
    get(&index, "a", LENGTH_BYTES + 1, 4);
    assert_eq!((awaited(&index), is_awaited("a"), is_awaited("b")), (1, true, false));
    get(&index, "b", LENGTH_BYTES, 5);
    assert_eq!((awaited(&index), is_awaited("b"), is_awaited("c")), (2, true, false));
    // What does not fit waits for the next one, if there is one.
    assert!(!set(&index, "b", 6));
    get(&index, "b", LENGTH_BYTES, 7);
    get(&index, "b", LENGTH_BYTES + 1, 8);
    assert_eq!(finish(&index, "a", 1), [('h', 3), ('m', 4)]);
    assert_eq!((awaited(&index), is_awaited("a")), (1, false));
    assert_eq!(finish(&index, "b", 2), [('h', 5), ('h', 7), ('s', 6)]);
    assert_eq!((awaited(&index), is_awaited("b")), (1, true));
    assert_eq!(finish(&index, "b", 3), [('m', 8)]);
    assert_eq!((awaited(&index), is_awaited("b")), (0, false));
}

#[test]
fn a_set_without_loads_leaves_those_of_others_awaited() {
    let (index, _directory) = empty();
    assert!(set(&index, "a", 1) && set(&index, "b", 2) && set(&index, "c", 4));
    get(&index, "a", LENGTH_BYTES, 3);
    assert_eq!(finish(&index, "b", 1), []);
    assert_eq!(awaited(&index), 1);
    assert_eq!(index.abandon_waiting(), (vec![3], vec![]));
    assert_eq!(awaited(&index), 0);
}

#[test]
fn late_loads_leave_the_others_waiting() {
    let (index, _directory) = empty();
    assert!(set(&index, "a", 1));
    get(&index, "a", LENGTH_BYTES, 3);
    get(&index, "a", LENGTH_BYTES, 4);
    assert!(!set(&index, "a", 5));
    let take = |key, late| index.take_late_gets(Digest::of(key), |request| *request == late);
    assert_eq!((take("a", 9), take("b", 3), awaited(&index)), (vec![], vec![], 1));
    assert_eq!((take("a", 3), awaited(&index)), (vec![3], 1));
    assert_eq!((take("a", 4), awaited(&index)), (vec![4], 0));
    assert_eq!((take("a", 5), awaited(&index)), (vec![], 0));
    assert_eq!(finish(&index, "a", 1), [('s', 5)]);
}

#[test]
fn only_a_set_behind_another_waits() {
    let (index, _directory) = empty();
    let has_waiting_set = |key| index.has_waiting_set(Digest::of(key));
    assert!(!has_waiting_set("a"));
    assert!(set(&index, "a", 1));
    get(&index, "a", LENGTH_BYTES, 2);
    assert!(!has_waiting_set("a"));
    assert!(!set(&index, "a", 3));
    assert!(has_waiting_set("a") && !has_waiting_set("b"));
}

/// Under the lock of the shard.
#[test]
fn a_set_that_ends_does_not_look_at_all_that_wait() {
    let (index, _directory) = empty();
    let (sets, others) = (1000, 3);
    for number in 0..sets {
        assert_eq!(set(&index, "a", number), number == 0);
    }
    (0..others).for_each(|number| get(&index, "a", LENGTH_BYTES + 1, number));
    for number in 1..sets {
        assert_eq!(finish(&index, "a", u64::from(number)), [('s', number)]);
    }
    let looked_at = index.shard(Digest::of("a")).1.pending_mut(Digest::of("a")).unwrap().looked_at;
    assert!(looked_at <= (sets * (others + 1)) as usize, "{looked_at} of {sets}");
    assert_eq!(finish(&index, "a", 1), [('m', 0), ('m', 1), ('m', 2)]);
}

#[test]
fn so_many_loads_wait_for_a_key_and_no_more() {
    let (index, _directory) = empty();
    assert!(set(&index, "a", 1) && set(&index, "b", 2));
    let more = |key, request| {
        let entered = index.enter_get(Digest::of(key), key, LENGTH_BYTES, 1, request, |_| ());
        matches!(entered, ReadOutcome::Waits)
    };
    assert!((0..MAX_WAITING_GETS as u32).all(|number| more("a", number)));
    assert!(!more("a", 9999) && more("b", 9999));
    // There is room again when one has gone.
    assert_eq!(index.take_late_gets(Digest::of("a"), |request| *request == 5), [5]);
    assert!(more("a", 5) && !more("a", 9999));
    assert_eq!(finish(&index, "a", 1).len(), MAX_WAITING_GETS);
}

/// Order of one key: what comes before a DELETE reads what was written before it, and what comes after it does not.
#[test]
fn a_chunk_is_for_the_loads_before_its_delete() {
    let (index, _directory) = empty();
    let delete = || index.delete(Digest::of("a"), "a").0;
    assert!(set(&index, "a", 1));
    get(&index, "a", LENGTH_BYTES, 2);
    assert!(!set(&index, "a", 3));
    get(&index, "a", LENGTH_BYTES, 4);
    get(&index, "a", LENGTH_BYTES + 1, 5);
    assert!(delete() && delete());
    assert!(!set(&index, "a", 6));
    get(&index, "a", LENGTH_BYTES, 7);
    assert_eq!(finish(&index, "a", 1), [('h', 2), ('h', 4), ('s', 3)]);
    assert_eq!(finish(&index, "a", 2), [('m', 5), ('s', 6)]);
    assert_eq!(finish(&index, "a", 3), [('h', 7)]);
    assert!(index.stored(Digest::of("a")).is_some());
}

#[test]
fn a_chunk_of_before_the_crash_is_no_copy_of_what_comes() {
    let (index, _directory) = empty();
    assert!(set(&index, "a", 1));
    assert_eq!(finish(&index, "a", 9), []);
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
    assert_eq!(finish(&index, "a", 1), []);
    assert_eq!(sum(&index), Footprint::default());
    let keys = [Hashed::of("a")].into_iter();
    assert_eq!(index.contains_each(keys, false, 1), (vec![true], 0));
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
        assert_eq!(finish(&index, "a", generation), []);
        assert_eq!(sum(&index), one, "{generation}");
    }
    // Also where no more may be leased: it takes no more than before.
    let (all, until_s) = (index.leasable(index.now_s()), index.now_s() + 5);
    index.leases.lock().add(until_s, all);
    assert!(set(&index, "a", 1));
    assert_eq!(finish(&index, "a", 4), []);
    index.leases.lock().remove(until_s, all);
    assert_eq!(sum(&index), one);
    // A longer one may take more, as far as there is room.
    for (room, kept) in [(true, 3 * one.bytes), (false, 0)] {
        let taken = index.leasable(index.now_s());
        if !room {
            index.leases.lock().add(until_s, taken);
        }
        assert!(set(&index, "a", 1));
        assert_eq!(finish_with(&index, "a", 5, if room { 3 } else { 9 }), []);
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
    assert_eq!(index.contains_each(keys, false, 1), (vec![true], 0));
    let before = sum(&index);
    assert!(before.bytes > 0);
    assert!(set(&index, "b", 1));
    assert_eq!(finish(&index, "b", 2), []);
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
    assert_eq!(finish(&index, "a", 2), []);
    let shard = index.shard(Digest::of("a")).1;
    let entry = shard.find(Digest::of("a")).unwrap().entry;
    assert_eq!(shard.entries[entry].leased_until_s, 0);
}
