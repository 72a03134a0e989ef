//! How much is looked at while a lock is held.

use std::cell::Cell;
use std::sync::Arc;

use super::*;
use crate::index::memory::map::tests::{TestIndex, finish, index_with, publication, store_in};
use crate::index::memory::writing::ClaimOutcome;
use crate::key::Hashed;

thread_local! {
    /// Most entries that were looked at while a lock was held, and how often some were.
    static HOLDS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

pub(crate) fn note_hold(looked_at: u32) {
    HOLDS.set((HOLDS.get().0.max(looked_at), HOLDS.get().1 + 1));
}

const COUNT: u32 = 500;
const SHARD: u64 = 7;

fn key(number: u32) -> String {
    format!("{}@0@0@{number}", if number.is_multiple_of(5) { "purged" } else { "model" })
}

/// All in one shard.
fn index(ttl_ms: Option<u64>) -> (tempfile::TempDir, TestIndex) {
    let (directory, index) = index_with(ttl_ms);
    for number in 0..COUNT {
        let digest = Digest([u64::from(number) << 32, SHARD]);
        store_in(&index, digest, &key(number), Extent { file: 0, first_block: number, blocks: 1 });
    }
    (directory, index)
}

/// What `act` returns, and the most entries it looked at while it held a lock.
fn most_at_once<R>(act: impl FnOnce() -> R) -> (R, u32) {
    HOLDS.set((0, 0));
    let result = act();
    let (most, holds) = HOLDS.get();
    assert!(holds >= COUNT / ENTRIES_AT_ONCE, "{holds} holds");
    (result, most)
}

#[test]
fn some_entries_are_looked_at_while_a_lock_is_held() {
    let (_directory, index) = index(None);
    let namespace = |number| Namespace::of(&key(number)).name();
    let ((keys, next), most) = most_at_once(|| index.keys_of(&namespace(0), 0, usize::MAX));
    assert!((most, keys.len(), next) == (64, COUNT as usize / 5, None), "{most} of {}", keys.len());
    assert!((0..COUNT).step_by(5).all(|number| keys.contains(&(key(number), KeyState::Stored))));
    let (check, most) = most_at_once(|| index.check(|| u64::from(COUNT) * 4096));
    assert_eq!((check.problems, most), (Vec::new(), 64));
    let ((purged, places), most) = most_at_once(|| index.purge(&namespace(0)));
    assert_eq!((purged.keys, places.len(), most), (100, 100, 64));
    assert_eq!(index.keys_of(&namespace(1), 0, usize::MAX).0.len(), 400);
    assert_eq!(index.check(|| 400 * 4096).problems, Vec::<String>::new());
}

#[test]
fn some_entries_are_looked_at_for_expiry() {
    let (_directory, index) = index(Some(1000));
    let mut expired = 0;
    let ((), most) = most_at_once(|| {
        index.expire(|extents, _| {
            expired += extents.len();
            true
        });
    });
    assert_eq!((expired, most, index.keys()), (COUNT as usize, ENTRIES_AT_ONCE, 0));
}

#[test]
fn purges_at_the_same_time_forget_a_namespace_once() {
    let (_directory, index) = index_with(None);
    let key: Arc<str> = "purged@0@0@0".into();
    let namespace = Namespace::of(&key).name();
    std::thread::scope(|scope| {
        for shard in 0..3 {
            let (index, key, namespace) = (&index, &key, &namespace);
            scope.spawn(move || {
                for _ in 0..30 {
                    // Remembered, as it is not stored for the first time.
                    assert!(index.admits(Digest([0, shard]), key, 2).is_err());
                    index.purge(namespace);
                }
            });
        }
    });
    assert_eq!(index.check(|| 0).problems, Vec::<String>::new());
}

#[test]
fn a_check_tells_what_does_not_fit() {
    let digest = Digest([u64::from(COUNT - 1) << 32, SHARD]);
    let what_differs = |spoil: fn(&mut ChunkEntry)| {
        let (_directory, index) = index(None);
        let mut shard = index.shard(digest).1;
        let number = shard.find(digest).unwrap().entry;
        spoil(&mut shard.entries[number]);
        drop(shard);
        let chunk = format!("{:?}", ChunkRef { shard: SHARD as u32, entry: number });
        let problems = index.check(|| u64::from(COUNT) * 4096).problems.join("; ");
        problems.replace(&chunk, "it")
    };
    assert_eq!(what_differs(|_| ()), "");
    let told = what_differs(|entry| entry.length_bytes -= 1);
    assert!(
        told.starts_with("it does not fit its record; keys, bytes and pins are counted"),
        "{told}"
    );
    let told = what_differs(|entry| _ = entry.set(Flag::Detached, true));
    assert_eq!(told, "it is gone, or there twice");
}

#[test]
fn checks_of_paths_add_up() {
    let check = |number: u64| Check {
        keys: number,
        stored_bytes: 10 * number,
        moving_bytes: 100 * number,
        reserved_bytes: 1000 * number,
        problems: vec![number.to_string()],
    };
    let mut sum = check(2);
    sum.add(check(3), |problem| format!("path: {problem}"));
    assert_eq!(sum, Check { problems: vec!["2".into(), "path: 3".into()], ..check(5) });
    assert_eq!([KeyState::Stored, KeyState::Writing].map(KeyState::name), ["stored", "writing"]);
}

/// A purge ends what is being written in its namespace, and leaves that of others alone.
#[test]
fn what_is_being_written_counts_for_its_namespace_and_is_purged_with_it() {
    let (_directory, index) = index(None);
    let keys = ["model@0@0@a", "model@0@0@b", "other@0@0@c"].map(Arc::<str>::from);
    for key in &keys {
        assert!(matches!(index.enter_set(Digest::of(key), key, 0, 0), ClaimOutcome::Ready(_)));
    }
    let name = |key: &str| Namespace::of(key).name();
    let writing = || -> Vec<(String, u64, u64)> {
        let usage = index.usage().into_iter();
        usage.map(|(name, usage)| (name, usage.keys, usage.writing_keys)).collect()
    };
    let expected = [(name(&keys[0]), 400, 2), (name(&keys[2]), 0, 1), (name(&key(0)), 100, 0)];
    assert_eq!(writing(), expected);
    assert_eq!(index.purge(&name(&keys[0])).0.keys, 400);
    for key in &keys {
        finish(&index, Digest::of(key), Some(publication(&index, key, 4096)));
    }
    assert_eq!(writing(), [(name(&keys[2]), 1, 0), (name(&key(0)), 100, 0)]);
}

#[test]
fn all_uses_are_written_some_at_a_time() {
    let (_directory, index) = index(None);
    let mut shard = index.shards[SHARD as usize].0.lock();
    (0..COUNT).for_each(|number| shard.note_use(number, 1));
    drop(shard);
    let left = || index.shards[SHARD as usize].0.lock().used.len();
    assert!(index.write_uses(SHARD as usize));
    assert_eq!(left(), COUNT as usize - 64);
    index.write_all_uses();
    assert_eq!((left(), index.write_uses(SHARD as usize)), (0, false));
}

/// Whoever pins a key while its namespace is purged pins nothing: the SET in flight clears the record of what it replaces.
#[test]
fn a_purge_takes_the_stored_chunk_in_the_step_in_which_it_refuses_its_set() {
    let (_directory, index) = index(None);
    let (digest, key) = (Digest([0, SHARD]), Arc::<str>::from(key(0)));
    assert!(matches!(index.enter_set(digest, &key, 0, 0), ClaimOutcome::Ready(_)));
    let name = Namespace::of(&key).name();
    let (mut purged, mut extents) = (Purged::default(), Vec::new());
    index.purge_pending(SHARD as usize, &name, &mut purged, &mut extents);
    assert_eq!((purged.keys, purged.bytes, extents.len()), (1, 4096, 1));
    assert_eq!(index.pin_keys(&[Hashed { digest, ..Hashed::of(&key) }], 0), [false]);
    assert!(!index.invalidate(digest), "there is no record of an older chunk");
    assert_eq!(finish(&index, digest, None), 0);
    assert_eq!(index.purge(&name).0.keys, 99);
    assert_eq!(index.check(|| 400 * 4096).problems, Vec::<String>::new());
}
