//! A bounded queue of SETs: past it they are refused at once, or wait for a bounded time. Nothing else is held up.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::faults::{Fault, FaultEngine};
use common::{Client, MIB, Memory, config, key, once, pattern};
use kvring::{Config, Connector};

/// A store whose device does nothing while `stuck` is set.
fn open(directory: &Path, stuck: &Arc<AtomicBool>, set_up: impl FnOnce(&mut Config)) -> Client {
    let mut config = config(directory, 256 * MIB);
    config.set_queue_operations = 3;
    config.set_queue_bytes = MIB;
    set_up(&mut config);
    let stuck = Arc::clone(stuck);
    let make_engine = once(move |queue_depth, waker| {
        FaultEngine::new(queue_depth, waker, Box::new(|_, _, _| Fault::None), stuck)
    });
    Client::from(Connector::open_with_engine(config, make_engine).unwrap())
}

/// Lets the device go on.
fn let_go(client: &Client, stuck: &AtomicBool) {
    stuck.store(false, Ordering::SeqCst);
    // Something new to do, so that the reactor looks.
    assert!(client.set(&[key(99)], &[&Memory::patterned(4096, 0, 99)]).results.len() == 1);
}

#[test]
fn past_the_bound_a_batch_is_refused_at_once_and_the_others_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    let client = open(directory.path(), &stuck, |_| ());
    let memory = Memory::patterned(4096, 0, 1);
    let queued = client.submit_set(&[key(0), key(1)], &[&memory, &memory]);
    // Completes although the device is stuck.
    let refused = client.set(&[key(2), key(3)], &[&memory, &memory]);
    assert!(!refused.ok);
    assert_eq!(refused.results, [false, false]);
    assert!(refused.error.starts_with("queue full: 2 SETs of 8192 bytes"), "{}", refused.error);
    assert!(refused.error.contains("set_queue_operations = 3"), "{}", refused.error);
    let stats = client.connector.stats();
    assert_eq!((stats.set_queued_operations, stats.set_queued_bytes), (2, 8192));
    assert_eq!(client.counter("set_rejected_queue_full"), 2);
    // What is no SET is not held up.
    assert_eq!(client.exists(&[key(0)]), [false]);
    assert_eq!(client.delete(&[key(5)]), [true]);

    let_go(&client, &stuck);
    assert!(client.wait(queued).ok);
    assert_eq!(client.exists(&[key(0), key(1), key(2)]), [true, true, false]);
    let stats = client.connector.stats();
    assert_eq!((stats.set_queued_operations, stats.set_queued_bytes), (0, 0));
    assert!(client.set_one(&key(2), &memory), "there is room again");
}

#[test]
fn bytes_are_bounded_too_and_a_large_batch_goes_alone() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    let client = open(directory.path(), &stuck, |_| ());
    let large = Memory::patterned(2 * MIB as usize, 0, 1);
    let queued = client.submit_set(&[key(0)], &[&large]);
    let refused = client.set(&[key(1)], &[&Memory::patterned(1, 0, 1)]);
    assert!(refused.error.contains("set_queue_bytes = 1048576"), "{}", refused.error);
    let_go(&client, &stuck);
    assert!(client.wait(queued).ok);
    assert_eq!(client.get_one(&key(0), 2 * MIB as usize), Some(pattern(2 * MIB as usize, 1)));
}

#[test]
fn a_submit_that_may_block_waits_for_room() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    let client = open(directory.path(), &stuck, |config| {
        config.blocks = true;
        config.backpressure_timeout = Duration::from_secs(50);
    });
    let memory = Memory::patterned(4096, 0, 1);
    let keys: Vec<String> = (0..3).map(key).collect();
    let queued = client.submit_set(&keys, &[&memory; 3]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.submit_set(&[key(3)], &[&memory]));
        while !waiting.is_finished() {
            stuck.store(false, Ordering::SeqCst);
            // The reactor looks at the device again when something comes.
            client
                .connector
                .submit_get(&[key(0)], &[Memory::new(4096, 0).buffer()], Box::new(()))
                .unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(client.wait(waiting.join().unwrap()).ok);
    });
    assert!(client.wait(queued).ok);
    assert_eq!(client.counter("set_rejected_queue_full"), 0);
}

#[test]
fn a_submit_that_may_block_is_refused_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(true));
    let client = open(directory.path(), &stuck, |config| {
        config.blocks = true;
        config.backpressure_timeout = Duration::from_millis(20);
    });
    let memory = Memory::patterned(4096, 0, 1);
    let keys: Vec<String> = (0..3).map(key).collect();
    let queued = client.submit_set(&keys, &[&memory; 3]);
    assert!(client.set(&[key(3)], &[&memory]).error.starts_with("queue full"));
    let_go(&client, &stuck);
    assert!(client.wait(queued).ok);
}
