//! Second attempts: what one bad sector costs the neighbours that the kernel joins with it, and where the device is given up.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::faults::{Fault, faulty, scripted};
use crate::common::{Client, MIB, Memory, config, keys};
use kvring::Durability;
use kvring::testing::Action;

/// Chunks that are told apart by their length, one of which is [`BAD_LENGTH`].
const COUNT: u64 = 24;
const BAD_LENGTH: usize = 7 * 4096;
/// A chunk that could not be read is verified in the background, so long after that for the first time: so many reads may come
/// before a slow test counts them.
const FIRST_VERIFIED: Duration = Duration::from_millis(100);
const MOST_VERIFIED: u64 = 3;

fn chunks_of_many_lengths() -> (Vec<String>, Vec<Memory>) {
    let chunk = |number| Memory::patterned(4096 * (number as usize + 1), 0, number);
    (keys(0..COUNT), (0..COUNT).map(chunk).collect())
}

/// A device that fails the first attempt of each length that moves one way, and each attempt of a bad one; how many there
/// were. Or all of them fail.
fn failing_at_first(
    way: Action,
    bad_length: usize,
    all_fail: bool,
) -> (Arc<AtomicU64>, impl FnMut(u64, Action, usize) -> Fault + Send + 'static) {
    let (attempts, mut seen) = (Arc::new(AtomicU64::new(0)), HashSet::new());
    let counted = Arc::clone(&attempts);
    let script = move |_, action, length| {
        if action != way {
            return Fault::None;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        let fails = seen.insert(length) || length == bad_length || all_fail;
        if fails { Fault::Errno(libc::EIO) } else { Fault::None }
    };
    (attempts, script)
}

/// The kernel joins requests for neighbours, and fails all of them for one bad sector. Where everything fails, it is not
/// tried again chunk by chunk.
#[test]
fn neighbours_of_what_cannot_be_read_are_no_misses() {
    for (all_fail, most_reads) in [(false, 2 * COUNT), (true, COUNT + 16)] {
        let directory = tempfile::tempdir().unwrap();
        let (reads, script) = failing_at_first(Action::Read, BAD_LENGTH, all_fail);
        let client = faulty(directory.path(), script);
        let (keys, stored) = chunks_of_many_lengths();
        assert!(client.set(&keys, &stored).ok);
        let read: Vec<Memory> =
            stored.iter().map(|stored| Memory::new(stored.bytes().len(), 0)).collect();
        let began = Instant::now();
        let completion = client.get(&keys, &read);
        let attempts = reads.load(Ordering::SeqCst);
        let verified = if began.elapsed() < FIRST_VERIFIED { 0 } else { MOST_VERIFIED };
        let expected: Vec<bool> =
            stored.iter().map(|stored| stored.bytes().len() != BAD_LENGTH && !all_fail).collect();
        assert_eq!(completion.results, expected);
        let hits = || read.iter().zip(&stored).zip(&expected).filter(|(_, hit)| **hit);
        assert!(hits().all(|((read, stored), _)| read.bytes() == stored.bytes()));
        assert_eq!(client.counter("read_errors"), COUNT - hits().count() as u64);
        assert!((most_reads..=most_reads + verified).contains(&attempts), "{attempts}");
        client.assert_consistent();
    }
}

/// A device that takes long to fail is found out with one second attempt, and not with one for each chunk.
#[test]
fn who_waits_for_a_slow_failure_has_no_second_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let reads = Arc::new(AtomicU64::new(0));
    let client = faulty(directory.path(), {
        let reads = Arc::clone(&reads);
        move |_, action, _| {
            if action != Action::Read {
                return Fault::None;
            }
            if reads.fetch_add(1, Ordering::SeqCst) == COUNT {
                // Longer than anybody waits for his second attempt.
                thread::sleep(Duration::from_millis(10_500));
            }
            Fault::Errno(libc::EIO)
        }
    });
    let (keys, stored) = chunks_of_many_lengths();
    assert!(client.set(&keys, &stored).ok);
    let read: Vec<Memory> =
        stored.iter().map(|stored| Memory::new(stored.bytes().len(), 0)).collect();
    let completion = client.get(&keys, &read);
    assert_eq!(completion.results, [false; COUNT as usize]);
    let attempts = reads.load(Ordering::SeqCst);
    assert!((COUNT + 1..=COUNT + 1 + MOST_VERIFIED).contains(&attempts), "{attempts}");
    client.assert_consistent();
}

/// As with reads; a second attempt is none of the retries of `persistent`.
#[test]
fn neighbours_of_what_cannot_be_written_are_stored() {
    for durability in [Durability::BestEffort, Durability::Persistent] {
        for (all_fail, most_writes) in [(false, 2 * COUNT), (true, COUNT + 16)] {
            let directory = tempfile::tempdir().unwrap();
            let (writes, script) = failing_at_first(Action::Write, BAD_LENGTH, all_fail);
            let mut config = config(directory.path(), 256 * MIB);
            (config.durability, config.tuning.persistent_max_retries) = (durability, 0);
            let client = Client::over(config, scripted(script));
            let (keys, chunks) = chunks_of_many_lengths();
            let completion = client.set(&keys, &chunks);
            let expected: Vec<bool> =
                chunks.iter().map(|chunk| chunk.bytes().len() != BAD_LENGTH && !all_fail).collect();
            assert_eq!(completion.results, expected);
            assert!(completion.error.contains("Input/output error"), "{}", completion.error);
            assert_eq!(client.exists(&keys), expected);
            let stored = || keys.iter().zip(&chunks).zip(&expected).filter(|(_, stored)| **stored);
            for ((key, chunk), _) in stored() {
                let length = chunk.bytes().len();
                assert!(client.get_one(key, length).unwrap() == chunk.bytes(), "{length}");
            }
            assert_eq!(client.counter("write_errors"), COUNT - stored().count() as u64);
            assert_eq!(writes.load(Ordering::SeqCst), most_writes);
            client.assert_consistent();
        }
    }
}
