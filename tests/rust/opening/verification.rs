//! Chunks of owners who did not close are verified, however many sessions it takes until somebody has the time for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::chunks::{copy_all, place};
use crate::common::faults::{Fault, scripted, scripted_and_stuck};
use crate::common::held_back::HeldBack;
use crate::common::records::overwrite;
use crate::common::{Client, MIB, Memory, config, key, keys, pattern};
use kvring::Admission;
use kvring::testing::Action;
use tempfile::TempDir;

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 5000;

/// A store whose reads never come to an end, except by being cancelled: so verification does not get on.
fn open_without_reads(directory: &Path) -> Client {
    let held = HeldBack::default();
    held.hold(Action::Read);
    let mut engine = scripted(|_, _, _| Fault::None);
    Client::over(config(directory, CAPACITY), move |queue_depth, waker| {
        Ok(held.above(Box::new(engine(queue_depth, Arc::clone(&waker))?), waker))
    })
}

/// What a kill leaves of a store while no operation is under way.
fn killed(client: Client, directory: &TempDir) -> TempDir {
    let left = tempfile::tempdir().unwrap();
    copy_all(directory.path(), left.path());
    client.close_after(Duration::ZERO);
    left
}

/// Three chunks of a session that closed, seven of one that was killed; chunk 5, one of the seven, is damaged.
fn killed_and_damaged() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    client.fill(0..3, LENGTH);
    client.connector.close();
    let client = Client::open(directory.path(), CAPACITY);
    client.fill(3..10, LENGTH);
    let directory = killed(client, &directory);
    let (file, start) = place(directory.path(), &key(5));
    overwrite(&file, start + 77, &[0xff; 3]);
    directory
}

/// Opens the store, lets it verify what it has to, and tells what is left of `count` chunks.
fn verified(directory: &Path, to_verify: u64, count: u64) -> Vec<bool> {
    let client = Client::open(directory, CAPACITY);
    assert_eq!(client.connector.recovery().to_verify, to_verify);
    let hang = Instant::now() + Duration::from_secs(60);
    while client.counter("verified_after_crash") < to_verify {
        assert!(Instant::now() < hang, "verification hangs");
        thread::sleep(Duration::from_millis(5));
    }
    let latencies = client.connector.stats().latencies;
    assert!(latencies.iter().all(|(_, value)| *value == 0), "nobody asked for it: {latencies:?}");
    client.exists(&keys(0..count))
}

fn all_but_the_damaged(count: u64) -> Vec<bool> {
    (0..count).map(|number| number != 5).collect()
}

#[test]
fn a_second_kill_before_it_is_done() {
    let directory = killed_and_damaged();
    let client = open_without_reads(directory.path());
    assert_eq!(client.connector.recovery().to_verify, 7);
    client.fill(10..12, LENGTH);
    let directory = killed(client, &directory);
    // Those of both sessions, and not those of the one that closed.
    assert_eq!(verified(directory.path(), 9, 12), all_but_the_damaged(12));
}

#[test]
fn a_close_before_it_is_done() {
    let directory = killed_and_damaged();
    let client = open_without_reads(directory.path());
    client.fill(10..12, LENGTH);
    assert!(client.close_after(Duration::ZERO).clean);
    let client = open_without_reads(directory.path());
    assert!(client.connector.recovery().clean_shutdown);
    // Once more, with nothing written: what is to be verified must come from the session block.
    client.close_after(Duration::ZERO);
    assert_eq!(verified(directory.path(), 9, 12), all_but_the_damaged(12));
}

#[test]
fn a_close_and_a_kill_before_it_is_done() {
    let directory = killed_and_damaged();
    open_without_reads(directory.path()).close_after(Duration::ZERO);
    let client = open_without_reads(directory.path());
    let directory = killed(client, &directory);
    assert_eq!(verified(directory.path(), 7, 10), all_but_the_damaged(10));
}

/// A SET with the bytes of a chunk that is still to be verified must not trust its record: they may be in the record alone.
#[test]
fn a_set_of_the_bytes_of_a_damaged_chunk_stores_them() {
    let directory = killed_and_damaged();
    let stuck = Arc::new(AtomicBool::new(true));
    let engine = scripted_and_stuck(Arc::clone(&stuck), |_, _, _| Fault::None);
    let client = Client::over(config(directory.path(), CAPACITY), engine);
    assert_eq!(client.connector.recovery().to_verify, 7);
    // Its turn comes before the other chunks are verified.
    let memory = Memory::patterned(LENGTH, 0, 5);
    let future_id = client.submit_set(&[key(5)], &[&memory]);
    stuck.store(false, Ordering::SeqCst);
    assert!(client.wait(future_id).ok);
    let found = client.get_one(&key(5), LENGTH);
    assert!(found == Some(pattern(LENGTH, 5)), "answered as stored, and not there");
}

/// A SET of the bytes of a chunk that is still to be verified, which admission refuses, leaves the chunk.
#[test]
fn a_refused_set_of_the_bytes_of_an_unverified_chunk_keeps_it() {
    for (admission, budget_bytes) in
        [(Admission::SecondUse, None), (Admission::Always, Some(24 * 3600))]
    {
        let directory = killed_and_damaged();
        let held_back = HeldBack::default();
        let mut config = config(directory.path(), CAPACITY);
        (config.admission, config.write_budget_bytes) = (admission, budget_bytes);
        held_back.hold(Action::Read);
        let client = Client::over(config, held_back.engines());
        assert_eq!(client.connector.recovery().to_verify, 7);
        // With a budget, the first write leaves a debt.
        let debt = Memory::patterned(LENGTH, 0, 99);
        assert!(client.set_one(&key(99), &debt));
        let others = || (3..10).filter(|number| *number != 5);
        client.fill(others(), LENGTH);
        let refused = client.counter("set_over_write_budget");
        assert_eq!(refused > 0, budget_bytes.is_some());
        assert_eq!(client.exists(&keys(others())), [true; 6], "{admission:?}");
        // Other bytes are refused as before, and nothing outdated stays.
        assert!(client.set_one(&key(3), &Memory::patterned(LENGTH, 0, 77)));
        assert_eq!(client.exists(&[key(3)]), [false], "{admission:?}");
        held_back.release();
        assert!(client.get_one(&key(4), LENGTH) == Some(pattern(LENGTH, 4)));
    }
}
