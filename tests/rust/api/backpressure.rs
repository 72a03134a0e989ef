//! A bounded queue of SETs: past it they are refused at once. Nothing else is held up.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::faults::{Fault, scripted_and_stuck};
use crate::common::{Client, MIB, Memory, config, key, pattern};
use kvring::testing::Action;
use kvring::{Config, FailureCode};

/// A store whose device does nothing while `stuck` is set, or until it is cancelled, and then fails writes of two blocks.
fn open(directory: &Path, stuck: &Arc<AtomicBool>, set_up: impl FnOnce(&mut Config)) -> Client {
    let mut config = config(directory, 256 * MIB);
    config.tuning.set_queue_operations = 3;
    config.set_queue_bytes = MIB;
    set_up(&mut config);
    let mut engine = scripted_and_stuck(Arc::clone(stuck), |_, action, length| match action {
        Action::Write if length == 8192 => Fault::Errno(libc::EIO),
        _ => Fault::None,
    });
    Client::over(config, move |queue_depth, waker| Ok(engine(queue_depth, waker)?.cancellable()))
}

fn queued(client: &Client) -> (u64, u64) {
    let stats = client.connector.stats();
    (stats.set_queued_operations, stats.set_queued_bytes)
}

#[test]
fn past_the_bound_a_batch_is_refused_at_once_and_the_others_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    let client = open(directory.path(), &stuck, |_| ());
    let memory = Memory::patterned(4096, 0, 1);
    let waiting = client.submit_set(&[key(0), key(1)], &[&memory, &memory]);
    // Completes although the device is stuck, and its memory is free again.
    let owned = Arc::new(());
    let keep_alive = Box::new(Arc::clone(&owned));
    let buffers = [memory.buffer(), memory.buffer()];
    let refused = client.connector.submit_set(&[key(2), key(3)], &buffers, keep_alive).unwrap();
    let refused = client.wait(refused);
    assert!(!refused.ok);
    assert_eq!(refused.results, [false, false]);
    assert_eq!(refused.code, Some(FailureCode::QueueFull));
    assert!(refused.error.starts_with("queue full: 2 SETs of 8192 bytes"), "{}", refused.error);
    assert!(refused.error.contains("the limits are 3 SETs and"), "{}", refused.error);
    assert!(refused.error.contains("set_queue_bytes = 1048576"), "{}", refused.error);
    drop(refused);
    assert_eq!(Arc::strong_count(&owned), 1);
    assert_eq!(queued(&client), (2, 8192));
    assert_eq!((client.counter("set_rejected_queue_full"), client.counter("set_failed")), (2, 2));
    // What is no SET is not held up.
    assert_eq!(client.exists(&[key(0)]), [false]);
    assert_eq!(client.delete(&[key(5)]), [true]);

    stuck.store(false, Ordering::SeqCst);
    assert!(client.wait(waiting).ok);
    assert_eq!(queued(&client), (0, 0), "who sees the answer finds the room");
    assert_eq!(client.exists(&[key(0), key(1), key(2)]), [true, true, false]);
    assert!(client.set_one(&key(2), &memory), "there is room again");
}

#[test]
fn bytes_are_bounded_too_and_a_large_batch_goes_alone() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    let client = open(directory.path(), &stuck, |_| ());
    let large = Memory::patterned(2 * MIB as usize, 0, 1);
    let small = Memory::patterned(1, 0, 1);
    let waiting = client.submit_set(&[key(0)], &[&large]);
    assert!(client.set(&[key(1)], &[&small]).error.starts_with("queue full: 1 SETs of 2097152"));
    stuck.store(false, Ordering::SeqCst);
    assert!(client.wait(waiting).ok);
    assert_eq!(client.get_one(&key(0), 2 * MIB as usize), Some(pattern(2 * MIB as usize, 1)));

    // All chunks of a batch count.
    stuck.store(true, Ordering::SeqCst);
    let half = Memory::patterned(MIB as usize / 2, 0, 1);
    let waiting = client.submit_set(&[key(2), key(3)], &[&small, &half]);
    assert!(!client.set(&[key(4)], &[&half]).ok);
    stuck.store(false, Ordering::SeqCst);
    assert!(client.wait(waiting).ok);
}

/// Whatever becomes of a SET, it takes no room any more.
#[test]
fn sets_that_fail_give_their_room_back() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::default();
    let client = open(directory.path(), &stuck, |_| ());
    let (good, bad) = (Memory::patterned(4096, 0, 1), Memory::patterned(8192, 0, 2));
    // Two of one key: the second fails with the first, or on its own.
    let failed = client.set(&[key(0), key(1), key(1)], &[&good, &bad, &bad]);
    assert_eq!(failed.results, [true, false, false]);
    assert_eq!(failed.code, Some(FailureCode::Io));
    assert!(failed.error.starts_with("cannot write"), "{}", failed.error);
    assert_eq!(queued(&client), (0, 0));
    assert!(client.set(&[key(1), key(2), key(3)], &[&good; 3]).ok);
    assert_eq!(queued(&client), (0, 0));
}

/// Also what waits for the device, and behind another SET of its key.
#[test]
fn sets_that_are_dropped_at_close_give_their_room_back() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    let client = open(directory.path(), &stuck, |config| config.tuning.queue_depth = Some(1));
    let memory = Memory::patterned(4096, 0, 1);
    client.submit_set(&[key(0), key(1), key(0)], &[&memory; 3]);
    assert_eq!(queued(&client), (3, 12_288));
    let shutdown = client.close_after(Duration::ZERO);
    assert_eq!((shutdown.clean, shutdown.abandoned), (true, 3));
    assert!(!shutdown.memory_held, "{shutdown}");
    assert_eq!(queued(&client), (0, 0));
    let latencies = client.connector.stats().latencies;
    assert!(latencies.iter().all(|(_, value)| *value == 0), "not done: {latencies:?}");
}

/// A SET of bytes that are on their way is not written again, and is answered like any other.
#[test]
fn duplicates_are_written_once_and_each_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    // What is not written takes no room in the device: the next one goes.
    let client = open(directory.path(), &stuck, |config| config.tuning.queue_depth = Some(1));
    let (memory, copy) = (Memory::patterned(4096, 0, 1), Memory::patterned(4096, 0, 1));
    let first = client.submit_set(&[key(0), key(0)], &[&memory, &copy]);
    let second = client.submit_set(&[key(0)], &[&copy]);
    assert_eq!(queued(&client), (3, 12_288), "each takes room");
    std::thread::sleep(Duration::from_millis(50));
    stuck.store(false, Ordering::SeqCst);
    assert_eq!(client.wait(second).results, [true]);
    assert_eq!(client.wait(first).results, [true, true]);
    assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (1, 2));
    assert_eq!((client.counter("transfers"), queued(&client)), (1, (0, 0)));
    // They have waited since they were submitted.
    let latencies = client.connector.stats().latencies;
    let wait = latencies.iter().find(|(name, _)| name == "set_wait_us_max").unwrap();
    assert!(wait.1 >= 50_000, "{latencies:?}");
    assert_eq!(client.get_one(&key(0), 4096), Some(pattern(4096, 1)));
}
