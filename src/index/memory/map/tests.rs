//! A collision of digests, made up: nobody can produce one.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::base::block::BLOCK_BYTES;
use crate::base::time::Clock;
use crate::config::Eviction;
use crate::directory::Directory;
use crate::error::StoreError;
use crate::index::file::index_file::IndexPlace;
use crate::index::file::locked_index::LockedIndex;
use crate::index::file::table::{ChunkFields, Reservation};
use crate::index::memory::writing::ClaimOutcome;
use crate::key::{Hashed, Namespace};
use crate::space_account::SpaceAccount;

mod changes;
#[cfg(kvring_model = "shuttle")]
mod readers;

pub(crate) type TestIndex = Index<u32>;

fn index() -> (tempfile::TempDir, TestIndex) {
    index_with(None)
}

/// An empty one.
pub(crate) fn index_with(ttl_ms: Option<u64>) -> (tempfile::TempDir, TestIndex) {
    let directory = tempfile::tempdir().unwrap();
    let space = Arc::new(SpaceAccount::new(64 << 20));
    let place = IndexPlace::Directory(Arc::new(Directory::open(directory.path()).unwrap()));
    let (table, _) = Table::open(LockedIndex::look(place).unwrap(), space, 0).unwrap();
    let mut config = Config::new(directory.path().to_str().unwrap(), 64 << 20).unwrap();
    (config.eviction, config.ttl) = (Eviction::Lru, ttl_ms.map(Duration::from_millis));
    (directory, Index::new(table, 1, config, &Quotas::default()))
}

fn store(index: &TestIndex, digest: Digest, key: &Arc<str>, length_bytes: u64) {
    assert!(matches!(index.enter_set(digest, key, 0, 0), ClaimOutcome::Ready(_)));
    let mut publication = publication(index, key, length_bytes);
    publication.1.digest = digest;
    assert_eq!(finish(index, digest, Some(publication)), 0);
}

fn exists(index: &TestIndex, keys: &[&str]) -> Vec<bool> {
    index.contains_each(keys.iter().map(Hashed::of), false, 0).stored
}

/// Slots for a key; the file grows for them.
pub(crate) fn reserved(index: &TestIndex, key_length: usize) -> Reservation {
    loop {
        match index.table.reserve_record(key_length) {
            Err(StoreError::Growing { .. }) => index.table.grow().unwrap(),
            outcome => return outcome.unwrap(),
        }
    }
}

/// Ends a SET. Returns the number of operations that go on, and of extents that are free now.
pub(crate) fn finish(
    index: &TestIndex,
    digest: Digest,
    publication: Option<(Reservation, ChunkFields)>,
) -> usize {
    let (next, freed) = index.finish_set(digest, publication);
    usize::from(next.is_some()) + freed.len()
}

/// Stores a chunk that fills its extent.
pub(crate) fn store_in(index: &TestIndex, digest: Digest, key: &str, extent: Extent) -> Digest {
    assert!(matches!(index.enter_set(digest, &key.into(), 0, 0), ClaimOutcome::Ready(_)));
    let (reservation, content) = publication(index, key, extent.size_bytes());
    let content = ChunkFields { digest, extent, ..content };
    assert_eq!(finish(index, digest, Some((reservation, content))), 0);
    digest
}

pub(crate) fn publication(
    index: &TestIndex,
    key: &str,
    length_bytes: u64,
) -> (Reservation, ChunkFields) {
    let content = ChunkFields {
        digest: Digest::of(key),
        namespace: Namespace::of(key).fingerprint(),
        extent: Extent { file: 0, first_block: 0, blocks: 1 },
        length_bytes,
        generation: index.next_generation(),
        checksum: None,
        variant: 0,
        created_ms: 0,
    };
    (reserved(index, key.len()), content)
}

/// The digest finds, the exact key decides: made-up digests stand in for a collision nobody can produce.
#[test]
fn a_colliding_key_neither_reads_nor_overwrites_nor_deletes() {
    let (_directory, index) = index();
    let digest = Digest::of("shared");
    let (good, other): (Arc<str>, Arc<str>) = ("good".into(), "other".into());
    store(&index, digest, &good, 100);
    assert!(index.pin_stored(Hashed { digest, ..Hashed::of(&other) }, 100, 0).is_err());
    assert!(matches!(index.enter_set(digest, &other, 0, 2), ClaimOutcome::Collides(2)));
    assert_eq!(index.delete(digest, &other), (false, None));
    assert!(index.pin_stored(Hashed { digest, ..Hashed::of(&good) }, 100, 0).is_ok());
}

#[test]
fn a_colliding_key_stays_out_for_an_hour() {
    let (_directory, index) = index();
    let digest = Digest::of("shared");
    let (good, other): (Arc<str>, Arc<str>) = ("good".into(), "other".into());
    store(&index, digest, &good, 100);
    assert!(matches!(index.enter_set(digest, &other, 1000, 0), ClaimOutcome::Collides(_)));
    // Even when the other key is gone: what is looked up in between must not change its meaning.
    assert!(index.delete(digest, &good).0);
    let hour_ms = 3_600_000;
    let entered = index.enter_set(digest, &other, 999 + hour_ms, 0);
    assert!(matches!(entered, ClaimOutcome::Quarantined(_)));
    assert!(matches!(index.enter_set(digest, &other, 1000 + hour_ms, 0), ClaimOutcome::Ready(_)));
    // While it is being written, the good key collides in turn.
    assert!(matches!(index.enter_set(digest, &good, 0, 0), ClaimOutcome::Collides(_)));
    assert!(index.pin_stored(Hashed { digest, ..Hashed::of(&good) }, 100, 0).is_err());
}

#[test]
fn a_colliding_key_does_not_exist() {
    let (_directory, index) = index();
    store(&index, Digest::of("other"), &"good".into(), 100);
    assert_eq!(exists(&index, &["other", "good"]), [false, false]);
    store(&index, Digest::of("good"), &"good".into(), 100);
    assert_eq!(exists(&index, &["other", "good"]), [false, true]);
}

/// As at a boot before the first answer of NTP.
#[test]
fn what_is_used_or_stored_by_a_clock_that_is_behind_expires_no_earlier() {
    let (_directory, mut index) = index();
    let now_ms = Arc::new(std::sync::atomic::AtomicU64::new(0));
    index.set_ttl(Some(Duration::from_millis(50_000)));
    index.config.clock = Clock::by_hand(Arc::clone(&now_ms));
    let key: Arc<str> = "one".into();
    let digest = Digest::of(&key);
    store(&index, digest, &key, 100);
    // At the second moment the clock is behind.
    for (at_ms, is_stored) in [(40_000, true), (10_000, true), (89_999, true), (139_999, false)] {
        now_ms.store(at_ms, Ordering::SeqCst);
        index.expire(|_, _| true);
        assert_eq!(index.touch_keys(&[Hashed::of(&key)], at_ms), [is_stored], "{at_ms}");
        if at_ms == 10_000 {
            assert!(matches!(index.enter_set(digest, &key, 0, 0), ClaimOutcome::Ready(_)));
            assert_eq!(finish(&index, digest, Some(publication(&index, &key, 200))), 1);
        }
    }
}

/// The lookup table compares a part of the digest only.
#[test]
fn digests_with_one_tag_are_different_keys() {
    let (_directory, index) = index();
    let [low, high] = Digest::of("one").0;
    let digests: Vec<Digest> = (0..20).map(|bit| Digest([low ^ bit, high])).collect();
    let keys: Vec<Arc<str>> = (0..20).map(|number| format!("{number}").into()).collect();
    for (digest, key) in digests.iter().zip(&keys) {
        assert_eq!((digest.tag(), digest.shard_hash()), (digests[0].tag(), high));
        store(&index, *digest, key, 100);
    }
    assert!(index.delete(digests[3], &keys[3]).0);
    for (number, (digest, key)) in digests.iter().zip(&keys).enumerate() {
        let pin = index.pin_stored(Hashed { digest: *digest, ..Hashed::of(key) }, 100, 0).ok();
        let hit = pin.is_some_and(|pin| index.unpin(&pin, false).is_none());
        assert_eq!(hit, number != 3, "{number}");
    }
}

/// A SET that is on its way to a pinned key and comes to nothing, as its bytes are held or it fails, takes nothing with it.
#[test]
fn a_purge_leaves_pinned_keys_alone_that_are_being_written() {
    let (_directory, index) = index();
    let key: Arc<str> = "model@0@0@a".into();
    let digest = Digest::of(&key);
    store(&index, digest, &key, 100);
    assert_eq!(index.pin_keys(&[Hashed::of(&key)], 0), [true]);
    for publishes in [false, true] {
        assert!(matches!(index.enter_set(digest, &key, 0, 1), ClaimOutcome::Ready(1)));
        let (purged, places) = index.purge("model");
        assert_eq!((purged.keys, purged.pinned, places), (0, vec![key.to_string()], Vec::new()));
        let publication = publishes.then(|| publication(&index, &key, 200));
        // With another chunk, the old one's place.
        assert_eq!(finish(&index, digest, publication), usize::from(publishes));
        assert_eq!(exists(&index, &[&*key]), [true]);
        assert!(index.check(|| BLOCK_BYTES).problems.is_empty());
    }
    assert_eq!(index.unpin_keys(&[Hashed::of(&key)]), [true]);
    assert!(matches!(index.enter_set(digest, &key, 0, 1), ClaimOutcome::Ready(1)));
    assert_eq!(index.purge("model").0.keys, 1);
    // What is being written is not held either, if it is not pinned.
    assert_eq!(finish(&index, digest, Some(publication(&index, &key, 300))), 1);
    assert_eq!(exists(&index, &[&*key]), [false]);
}
