//! What the store does by itself: expiry, eviction, and what must stay: leased, pinned, being read.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::held_back::HeldBack;
use crate::common::logged;
use crate::common::{Client, MIB, Memory, config, eventually, key, keys, pattern};
use kvring::testing::{Action, Clock};
use kvring::{Config, Eviction, list_chunks};

const HOUR_MS: u64 = 3_600_000;
const START_MS: u64 = 1_800_000_000_000;

/// A store, and the clock that it goes by.
struct Timed {
    now_ms: Arc<AtomicU64>,
    client: Client,
}

impl Timed {
    fn open(directory: &Path, now_ms: u64, set_up: impl FnOnce(&mut Config)) -> Self {
        let now_ms = Arc::new(AtomicU64::new(now_ms));
        let mut config = config(directory, 32 * MIB);
        config.ttl = Some(Duration::from_millis(HOUR_MS));
        config.clock = Clock::by_hand(Arc::clone(&now_ms));
        set_up(&mut config);
        Self { now_ms, client: Client::with(config) }
    }

    fn set_clock(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }
}

#[test]
fn what_was_not_used_for_long_enough_is_a_miss_at_once_and_given_back_later() {
    let directory = tempfile::tempdir().unwrap();
    let Timed { now_ms, client } = &Timed::open(directory.path(), START_MS, |_| ());
    let memory = Memory::patterned(5000, 0, 1);
    assert!(client.set(&keys(0..200), &[&memory; 200]).ok);
    now_ms.store(START_MS + HOUR_MS / 2, Ordering::SeqCst);
    // A load is a use, and so is storing the same bytes again.
    assert!(client.get_one(&key(7), 5000).is_some());
    assert!(client.set_one(&key(8), &memory));
    assert_eq!(client.counter("set_unchanged"), 1);
    now_ms.store(START_MS + HOUR_MS - 1, Ordering::SeqCst);
    assert!(client.get_one(&key(9), 5000).is_some());

    now_ms.store(START_MS + HOUR_MS, Ordering::SeqCst);
    let held = client.exists(&keys(0..200));
    let still: Vec<usize> = (0..200).filter(|number| held[*number]).collect();
    assert_eq!(still, [7, 8, 9]);
    assert_eq!(client.get_one(&key(0), 5000), None);
    assert_eq!(client.connector.stats().keys, 200, "nothing was given back yet");
    assert_eq!(client.connector.expire().unwrap(), 197);
    let stats = client.connector.stats();
    assert_eq!((stats.keys, stats.stored_bytes), (3, 15_000));
    assert_eq!((client.counter("expired"), client.counter("expired_bytes")), (197, 197 * 5000));
    client.assert_consistent();
    client.assert_consistent();
    assert_eq!(client.connector.stats().allocated_bytes, 3 * 8192);
    // What has expired can be stored again.
    assert!(client.set_one(&key(0), &memory));
    assert_eq!(client.get_one(&key(0), 5000), Some(pattern(5000, 1)));
}

#[test]
fn a_clock_that_is_set_back_expires_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let timed = Timed::open(directory.path(), START_MS, |_| ());
    assert!(timed.client.set_one("key", &Memory::patterned(10, 0, 1)));
    timed.set_clock(1000);
    assert_eq!(timed.client.connector.expire().unwrap(), 0);
    assert!(timed.client.get_one("key", 10).is_some(), "and used in the past");
    timed.set_clock(START_MS + HOUR_MS - 1);
    assert_eq!(
        timed.client.exists(&["key".into()]),
        [true],
        "the use in the past made it no older"
    );
    timed.set_clock(START_MS + 2 * HOUR_MS);
    assert_eq!(timed.client.exists(&["key".into()]), [false]);
}

/// A store whose clock was ahead while ten chunks were stored, and the clocks of both kinds.
fn used_in_the_future(directory: &Path) -> (Timed, Arc<AtomicU64>) {
    let passed_ms = Arc::new(AtomicU64::new(0));
    let timed = Timed::open(directory, START_MS + 1000 * HOUR_MS, |config| {
        config.clock = config.clock.clone().with_passed(Arc::clone(&passed_ms));
        // A lease would hold what has expired.
        config.lease_s = 0;
    });
    assert!(timed.client.set(&keys(0..10), &[&Memory::patterned(10, 0, 1); 10]).ok);
    timed.set_clock(START_MS);
    assert_eq!(timed.client.connector.expire().unwrap(), 0);
    (timed, passed_ms)
}

/// What was used while the clock was ahead is not to stay until that time has come.
#[test]
fn a_use_in_the_future_counts_as_one_of_now_after_an_hour() {
    let directory = tempfile::tempdir().unwrap();
    let (timed, passed_ms) = used_in_the_future(directory.path());
    let pass = |ms: u64| {
        passed_ms.fetch_add(ms, Ordering::SeqCst);
        timed.now_ms.fetch_add(ms, Ordering::SeqCst);
        timed.client.connector.expire().unwrap()
    };
    assert_eq!(pass(HOUR_MS - 1000), 0);
    assert_eq!(pass(1000), 0, "from here on the clock is believed");
    assert_eq!(pass(HOUR_MS - 1000), 0);
    assert_eq!(timed.client.exists(&keys(0..10)), [true; 10]);
    let seen_ms = timed.now_ms.load(Ordering::SeqCst);
    timed.client.connector.close();
    let timed = Timed::open(directory.path(), seen_ms, |config| config.lease_s = 0);
    assert_eq!(timed.client.connector.recovery().kept, 10);
    timed.set_clock(seen_ms + 1000);
    assert_eq!(timed.client.exists(&keys(0..10)), [false; 10]);
    assert_eq!(timed.client.connector.expire().unwrap(), 10);
    timed.client.assert_consistent();
}

/// As at a boot, before the first answer of NTP.
#[test]
fn a_clock_that_is_wrong_for_a_while_expires_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (timed, passed_ms) = used_in_the_future(directory.path());
    passed_ms.store(HOUR_MS / 2, Ordering::SeqCst);
    assert_eq!(timed.client.connector.expire().unwrap(), 0);
    timed.set_clock(START_MS + 1000 * HOUR_MS + HOUR_MS / 2);
    assert_eq!(timed.client.connector.expire().unwrap(), 0);
    // It is wrong once more, later: that is not added up.
    passed_ms.store(HOUR_MS * 3 / 4, Ordering::SeqCst);
    timed.set_clock(0);
    assert_eq!(timed.client.connector.expire().unwrap(), 0);
    passed_ms.store(HOUR_MS * 5 / 4, Ordering::SeqCst);
    assert_eq!(timed.client.connector.expire().unwrap(), 0);
    timed.set_clock(START_MS + 1000 * HOUR_MS + HOUR_MS / 2);
    assert_eq!(timed.client.exists(&keys(0..10)), [true; 10]);
}

#[test]
fn expiry_goes_on_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let timed = Timed::open(directory.path(), START_MS, |_| ());
    let memory = Memory::patterned(5000, 0, 1);
    assert!(timed.client.set(&keys(0..10), &[&memory; 10]).ok);
    timed.set_clock(START_MS + HOUR_MS / 2);
    assert!(timed.client.get_one(&key(3), 5000).is_some());
    timed.client.connector.close();
    let timed = Timed::open(directory.path(), START_MS + HOUR_MS, |_| ());
    assert_eq!(timed.client.connector.recovery().expired, 0, "what was used just then stays");
    timed.client.connector.close();
    let timed = Timed::open(directory.path(), START_MS + HOUR_MS + 1, |_| ());
    let recovery = timed.client.connector.recovery();
    assert_eq!((recovery.kept, recovery.expired), (1, 9));
    assert!(timed.client.get_one(&key(3), 5000).is_some());
    timed.client.assert_consistent();
    timed.client.connector.close();
    // Without a ttl nothing does.
    let timed =
        Timed::open(directory.path(), START_MS + 1000 * HOUR_MS, |config| config.ttl = None);
    assert!(timed.client.get_one(&key(3), 5000).is_some());
}

/// In the order of arrival no use counts, also after a restart.
#[test]
fn what_came_first_goes_first_though_it_was_used_last() {
    for (eviction, is_gone) in [(Eviction::Fifo, 0), (Eviction::Lru, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let open =
            |now_ms| Timed::open(directory.path(), now_ms, |config| config.eviction = eviction);
        let timed = open(START_MS);
        let memory = Memory::patterned(MIB as usize, 0, 1);
        for number in 0..3 {
            timed.set_clock(START_MS + number);
            assert!(timed.client.set_one(&key(number), &memory));
        }
        timed.set_clock(START_MS + 1000);
        assert!(timed.client.get_one(&key(0), MIB as usize).is_some());
        timed.client.connector.close();
        let timed = open(START_MS + 2000);
        let mut next = 3;
        while timed.client.counter("evicted") == 0 {
            assert!(timed.client.set_one(&key(next), &memory));
            next += 1;
        }
        assert!(!timed.client.exists(&[key(is_gone)])[0], "{eviction:?}");
    }
}

/// Uses are known at once, and in the index soon: a kill forgets no more than those of some seconds.
#[test]
fn uses_reach_the_index_while_the_store_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let timed = Timed::open(directory.path(), START_MS, |_| ());
    let memory = Memory::patterned(10, 0, 1);
    assert!(timed.client.set(&keys(0..2), &[&memory; 2]).ok);
    timed.set_clock(START_MS + 5);
    assert!((0..3).all(|_| timed.client.get_one(&key(1), 10).is_some()));
    let use_of = |number: u64| {
        let mut chunks = list_chunks(directory.path(), None).unwrap().map(Result::unwrap);
        let chunk = chunks.find(|chunk| chunk.key == key(number)).unwrap();
        (chunk.uses, chunk.last_used_ms)
    };
    eventually("the uses", || use_of(1) == (3, START_MS + 5));
    assert_eq!(use_of(0), (0, START_MS));
}

/// What EXISTS promised is kept for `lease_s`, and not for longer.
#[test]
fn what_exists_found_is_not_evicted_while_it_is_leased() {
    let directory = tempfile::tempdir().unwrap();
    let timed = Timed::open(directory.path(), START_MS, |config| config.lease_s = 10);
    let client = &timed.client;
    let memory = Memory::patterned(MIB as usize, 0, 1);
    assert!(client.set(&keys(0..20), &[&memory; 20]).ok);
    // Eight of 32 MiB may be leased.
    assert_eq!(client.exists(&keys(0..9)), [true; 9]);
    assert_eq!(client.counter("leases_refused"), 1);
    assert_eq!(client.connector.stats().leased_bytes, 8 * MIB);
    timed.set_clock(START_MS + 10_000);
    for number in 100..200 {
        assert!(client.set_one(&key(number), &memory));
    }
    assert!((0..8).all(|number| client.get_one(&key(number), MIB as usize).is_some()));
    assert_eq!(client.get_one(&key(8), MIB as usize), None, "it got no lease");
    timed.set_clock(START_MS + 11_000);
    for number in 200..300 {
        assert!(client.set_one(&key(number), &memory));
    }
    assert!((0..8).all(|number| client.get_one(&key(number), MIB as usize).is_none()));
    client.assert_consistent();
}

/// A wall clock that jumps ahead by a year and back again while EXISTS asks: leases end when their time has passed, and new ones are
/// given all the while.
#[test]
fn a_wall_clock_that_jumps_neither_keeps_leases_nor_refuses_them() {
    const YEAR_MS: u64 = 365 * 24 * HOUR_MS;
    let directory = tempfile::tempdir().unwrap();
    let passed_ms = Arc::new(AtomicU64::new(5_000));
    let timed = Timed::open(directory.path(), START_MS, |config| {
        (config.lease_s, config.ttl) = (10, None);
        config.clock = std::mem::take(&mut config.clock).with_passed(Arc::clone(&passed_ms));
    });
    let client = &timed.client;
    let memory = Memory::patterned(MIB as usize, 0, 1);
    assert!(client.set(&keys(0..20), &[&memory; 20]).ok);
    timed.set_clock(START_MS + YEAR_MS);
    assert_eq!(client.exists(&keys(0..8)), [true; 8]);
    assert_eq!(client.connector.stats().leased_bytes, 8 * MIB);
    timed.set_clock(START_MS);
    assert_eq!(client.connector.stats().leased_bytes, 8 * MIB, "not for a year only");
    passed_ms.store(16_000, Ordering::SeqCst);
    assert_eq!(client.connector.stats().leased_bytes, 0, "their time has passed");
    assert_eq!(client.exists(&keys(8..16)), [true; 8]);
    assert_eq!(client.counter("leases_refused"), 0);
    for number in 100..200 {
        assert!(client.set_one(&key(number), &memory));
    }
    let held = |numbers: std::ops::Range<u64>| client.get(&keys(numbers), &[&memory; 8]).results;
    assert_eq!(held(0..8), [false; 8], "what is not leased any more goes");
    assert_eq!(held(8..16), [true; 8], "what is leased stays");
    client.assert_consistent();
}

/// A lease holds a chunk beyond its ttl: the load that follows finds it.
#[test]
fn what_is_leased_does_not_expire() {
    let directory = tempfile::tempdir().unwrap();
    let timed = Timed::open(directory.path(), START_MS, |_| ());
    assert!(timed.client.set(&keys(0..2), &[&Memory::patterned(10, 0, 1); 2]).ok);
    timed.set_clock(START_MS + HOUR_MS - 1);
    assert_eq!(timed.client.exists(&keys(0..1)), [true]);
    timed.set_clock(START_MS + HOUR_MS + 5000);
    assert_eq!(timed.client.connector.expire().unwrap(), 1);
    assert!(timed.client.get_one(&key(0), 10).is_some());
}

#[test]
fn what_is_pinned_stays_and_does_not_stop_the_store() {
    for eviction in Eviction::ALL {
        let directory = tempfile::tempdir().unwrap();
        let timed = Timed::open(directory.path(), START_MS, |config| config.eviction = eviction);
        let client = &timed.client;
        let memory = Memory::patterned(MIB as usize, 0, 1);
        assert!(client.set(&keys(0..20), &[&memory; 20]).ok);
        // Half of the capacity.
        let pinned = client.connector.pin(&keys(0..18)).unwrap();
        assert_eq!(pinned.iter().filter(|pinned| **pinned).count(), 16, "{eviction:?}");
        assert_eq!(client.connector.stats().pinned_bytes, 16 * MIB);
        timed.set_clock(START_MS + 2 * HOUR_MS);
        for number in 100..200 {
            assert!(client.set_one(&key(number), &memory), "{eviction:?}, {number}");
        }
        assert!((0..16).all(|number| client.get_one(&key(number), MIB as usize).is_some()));
        assert_eq!(client.connector.unpin(&keys(15..17)).unwrap(), [true, false]);
        timed.set_clock(START_MS + 4 * HOUR_MS);
        client.connector.expire().unwrap();
        assert_eq!(client.connector.stats().keys, 15, "{eviction:?}");
        client.assert_consistent();
    }
}

/// A place is not given away under its reader, however much room is needed.
#[test]
fn what_is_being_read_is_not_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 32 * MIB);
    (config.lease_s, config.tuning.set_in_flight_while_loading_bytes) = (0, 32 * MIB);
    let (client, reads) = HeldBack::open(config);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    assert!(client.set(&keys(0..27), &[&memory; 27]).ok);
    let loaded = Memory::new(MIB as usize, 0);
    reads.hold(Action::Read);
    let get = client.submit_get(&keys(0..1), &[&loaded]);
    reads.until_given(1);
    let other = Memory::patterned(MIB as usize, 0, 2);
    assert!(client.set(&keys(100..140), &[&other; 40]).ok);
    assert_eq!(client.exists(&keys(0..27)).iter().filter(|held| **held).count(), 1);
    reads.release();
    assert!(client.wait(get).results == [true] && loaded.bytes() == pattern(MIB as usize, 1));
    client.assert_consistent();
}

#[test]
fn a_prefix_ends_at_the_first_miss_and_is_leased_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let timed = Timed::open(directory.path(), START_MS, |_| ());
    let client = &timed.client;
    let memory = Memory::patterned(1000, 0, 1);
    assert!(client.set(&keys(0..100), &[&memory; 100]).ok);
    client.delete(&keys(70..71));
    let prefix =
        |keys: &[String]| client.wait(client.connector.submit_prefix(keys).unwrap()).results;
    let found = prefix(&keys(0..100));
    assert_eq!(found.len(), 100);
    assert!(found[..70].iter().all(|held| *held) && found[70..].iter().all(|held| !held));
    let leased_bytes = client.connector.stats().leased_bytes;
    assert_eq!(leased_bytes, 70 * 4096, "what is behind it is not leased");
    assert_eq!(prefix(&keys(70..100)), [false; 30]);
    assert!(prefix(&[]).is_empty());
    assert_eq!(prefix(&keys(99..100)), [true]);
    assert_eq!((client.counter("exists_hits"), client.counter("exists_misses")), (71, 2));
}

#[test]
fn a_store_that_is_only_written_says_so_until_something_is_found() {
    logged::keep();
    let directory = tempfile::tempdir().unwrap();
    let Timed { now_ms, client } =
        &Timed::open(directory.path(), START_MS, |config| config.ttl = None);
    let note = || {
        let path = client.connector.stats().paths.remove(0);
        assert_eq!(path.unused == 1, !path.note.is_empty());
        path.note
    };
    let memory = Memory::patterned(MIB as usize, 0, 1);
    assert!(client.set(&keys(0..3), &[&memory; 3]).ok);
    assert_eq!(client.exists(&keys(10..11)), [false]);
    now_ms.store(START_MS + HOUR_MS, Ordering::SeqCst);
    assert_eq!(note(), "", "a tenth of 32 MiB is more");
    assert!(client.set_one(&key(3), &memory));
    now_ms.store(START_MS + HOUR_MS - 1000, Ordering::SeqCst);
    assert_eq!(note(), "", "it is too early");
    now_ms.store(START_MS + 3 * HOUR_MS, Ordering::SeqCst);
    assert!(note().starts_with("nothing was found since the open 3 h ago, though 4 MiB"));
    let lines = || logged::lines(directory.path(), "nothing was found");
    eventually("the log says so", || !lines().is_empty());
    assert_eq!(client.exists(&keys(0..1)), [true]);
    assert_eq!((note().as_str(), lines().len()), ("", 1));
}
