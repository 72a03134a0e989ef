//! What must stay, what goes, and what is remembered of it.

use super::*;
use crate::index::memory::map::tests::{TestIndex, index_with, store_in};
use crate::index::memory::shard::Pin;

const MIB: u64 = 1 << 20;
const EXTENT: Extent = Extent { file: 0, first_block: 0, blocks: 2 };

fn store(index: &TestIndex, key: &str) -> Digest {
    store_in(index, Digest::of(key), key, EXTENT)
}

fn get(index: &TestIndex, key: &str) -> Option<Pin> {
    let length_bytes = EXTENT.size_bytes();
    index.pin_stored(Hashed::of(key), length_bytes, 0).ok()
}

fn coldest(index: &TestIndex) -> Option<Victim> {
    index.coldest(1).first().copied()
}

#[test]
fn what_is_read_stays_until_its_last_reader_is_gone() {
    let (_directory, index) = index_with(None);
    store(&index, "a");
    let victim = coldest(&index).unwrap();
    assert!(!index.must_stay(victim));
    let pins = [get(&index, "a").unwrap(), get(&index, "a").unwrap()];
    assert!(index.must_stay(victim) && index.evict(victim).is_none());
    assert!(coldest(&index).is_none(), "it is not chosen again");
    assert!(index.unpin(&pins[0], true).is_none());
    assert!(coldest(&index).is_none(), "the other one reads it");
    assert!(index.unpin(&pins[1], true).is_none());
    let victim = coldest(&index).unwrap();
    assert!(!index.must_stay(victim));
    assert_eq!(index.evict(victim).unwrap().0, EXTENT);
}

#[test]
fn what_is_outdated_goes() {
    let (_directory, index) = index_with(None);
    let digest = store(&index, "a");
    assert!(index.is_stored(digest));
    assert_eq!(index.drop_outdated(digest), Some(EXTENT));
    assert!(!index.is_stored(digest));
    assert_eq!(index.drop_outdated(digest), None);
}

#[test]
fn a_key_is_admitted_when_it_comes_often_or_was_evicted() {
    let (_directory, index) = index_with(None);
    let digest = store(&index, "a");
    let admits = |sets_needed| index.admits(digest, &"a".into(), sets_needed);
    let since_mib = || index.shard(digest).1.ghosts.get(digest).unwrap().since_mib;
    assert_eq!((admits(3), index.is_stored(digest)), (Err(Some(EXTENT)), false));
    assert_eq!(since_mib(), 0);
    index.evicted_bytes.store(7 << 20, Ordering::Relaxed);
    // It is remembered as of the last SET.
    assert_eq!((admits(3), since_mib()), (Err(None), 7));
    assert_eq!((admits(3), admits(3)), (Ok(()), Ok(())));
    store(&index, "a");
    assert!(index.evict(coldest(&index).unwrap()).is_some());
    assert_eq!(admits(3), Ok(()));
}

#[test]
fn misses_that_a_larger_store_would_not_have_are_counted() {
    let (_directory, index) = index_with(None);
    store(&index, "a");
    assert!(index.evict(coldest(&index).unwrap()).is_some());
    let evicted_bytes = index.evicted_bytes.load(Ordering::Relaxed);
    assert_eq!(evicted_bytes, EXTENT.size_bytes());
    let counted = |bytes_later: u64, key: &str| {
        let before = index.would_hit();
        index.evicted_bytes.store(evicted_bytes + bytes_later, Ordering::Relaxed);
        assert!(get(&index, key).is_none());
        let after = index.would_hit();
        [after[0] - before[0], after[1] - before[1]]
    };
    let capacity = index.config.capacity_bytes();
    assert_eq!((counted(0, "a"), counted(0, "b")), ([1, 1], [0, 0]));
    assert_eq!((counted(capacity / 2, "a"), counted(capacity / 2 + MIB, "a")), ([1, 1], [0, 1]));
    assert_eq!((counted(capacity, "a"), counted(capacity + MIB, "a")), ([0, 1], [0, 0]));
    // What was deleted would not be there either.
    let digest = store(&index, "b");
    assert_eq!(index.delete(digest, "b"), (true, Some(EXTENT)));
    assert_eq!(counted(0, "b"), [0, 0]);
}
