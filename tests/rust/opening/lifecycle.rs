//! Opening, closing, and what holds while a store is open.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Client, MIB, Memory, config, key};
use kvring::{Connector, OpenError, SubmitError};

const CAPACITY: u64 = 256 * MIB;

#[test]
fn one_owner() {
    let directory = tempfile::tempdir().unwrap();
    let first = Client::open(directory.path(), CAPACITY);
    let error = Connector::open(config(directory.path(), CAPACITY)).map(drop).unwrap_err();
    let pid = std::process::id().to_string();
    assert!(matches!(&error, OpenError::InUse { holder, .. } if holder.contains(&pid)), "{error}");
    assert!(first.set_one("k", &Memory::patterned(10, 0, 1)), "the holder is not disturbed");
    first.connector.close();
    // Closed, not dropped: that is enough.
    assert!(Client::open(directory.path(), CAPACITY).get_one("k", 10).is_some());
}

#[test]
fn closed_connectors_refuse_and_drain_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    let memory = Memory::patterned(10, 0, 1);
    client.submit_set(&[key(1)], &[&memory]);
    client.connector.close();
    client.connector.close();
    let mut completions = Vec::new();
    client.connector.drain(&mut completions);
    assert!(completions.is_empty());
    let refused = client.connector.submit_set(&[key(1)], &[memory.buffer()], Box::new(()));
    assert!(matches!(refused, Err(SubmitError::Closed)));
    assert!(matches!(client.connector.submit_exists(&[key(1)]), Err(SubmitError::Closed)));
}

/// Line 4: close() returns with operations in flight, and nothing is written to their buffers afterwards.
#[test]
fn close_leaves_no_buffer_in_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let length = MIB as usize;
    let client = Client::open(directory.path(), CAPACITY);
    let stored = Memory::patterned(length, 0, 1);
    let keys: Vec<String> = (0..100).map(key).collect();
    assert!(client.set(&keys, &vec![&stored; 100]).ok);
    let read: Vec<Memory> = (0..100).map(|_| Memory::new(length, 0)).collect();
    for _ in 0..5 {
        client.submit_get(&keys, &read.iter().collect::<Vec<_>>());
        client.submit_set(&(1000..1100).map(key).collect::<Vec<_>>(), &vec![&stored; 100]);
    }
    client.connector.close();
    assert_eq!(client.connector.stats().in_flight, 0);
    let poison = vec![0xa5_u8; length];
    read.iter().for_each(|memory| memory.fill(&poison));
    thread::sleep(Duration::from_millis(300));
    assert!(read.iter().all(|memory| memory.bytes() == poison));
}

/// With no time to drain, what is queued is dropped and says so; what was answered is there.
#[test]
fn close_at_the_deadline_drops_the_queue() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), CAPACITY);
    let client = Client::with(config);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    assert!(client.set_one("answered", &memory));
    for batch in 0..10 {
        let keys: Vec<String> = (batch * 15..batch * 15 + 15).map(key).collect();
        client.submit_set(&keys, &[&memory; 15]);
    }
    client.close_after(Duration::ZERO);
    assert!(client.counter("abandoned") > 0);
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(client.get_one("answered", MIB as usize).unwrap(), memory.bytes());
    let kept = client.connector.recovery().kept;
    let loaded = (0..150).filter_map(|number| client.get_one(&key(number), MIB as usize));
    assert_eq!(loaded.inspect(|bytes| assert!(bytes == memory.bytes())).count() as u64 + 1, kept);
}

/// Line 7: exactly one completion per batch, over 100,000 operations from eight threads on shared keys.
#[test]
fn one_completion_each_from_many_threads() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    let done = AtomicBool::new(false);
    let mut all: Vec<u64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..8_u64)
            .map(|worker| {
                let client = &client;
                scope.spawn(move || {
                    let memory = Memory::patterned(4096 + worker as usize, worker as usize, worker);
                    (0..800_u64)
                        .map(|round| {
                            let first = (worker * 7 + round) % 50;
                            let keys: Vec<String> = (first..first + 16).map(key).collect();
                            match (worker + round) % 4 {
                                0 => client.submit_set(&keys, &[&memory; 16]),
                                1 => client.connector.submit_exists(&keys).unwrap(),
                                2 => client.connector.submit_delete(&keys).unwrap(),
                                _ => {
                                    let own: Vec<Memory> = (0..16)
                                        .map(|_| Memory::new(4096 + worker as usize, 0))
                                        .collect();
                                    client.submit_get(&keys, &own.iter().collect::<Vec<_>>())
                                }
                            }
                        })
                        .collect::<Vec<u64>>()
                })
            })
            .collect();
        let drainer = scope.spawn(|| {
            let mut completions = Vec::new();
            while !done.load(Ordering::SeqCst) || completions.len() < 6400 {
                client.connector.drain(&mut completions);
                thread::yield_now();
                if done.load(Ordering::SeqCst) && client.connector.stats().in_flight == 0 {
                    client.connector.drain(&mut completions);
                    break;
                }
            }
            completions
        });
        let mut submitted: Vec<u64> =
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
        done.store(true, Ordering::SeqCst);
        let completions = drainer.join().unwrap();
        assert!(
            completions.iter().all(|completion| completion.ok && completion.results.len() == 16)
        );
        submitted.sort_unstable();
        let mut completed: Vec<u64> =
            completions.iter().map(|completion| completion.future_id).collect();
        completed.sort_unstable();
        assert_eq!(submitted, completed);
        completed
    });
    all.dedup();
    assert_eq!(all.len(), 6400);
    assert_eq!(client.connector.stats().in_flight, 0);
}

/// The reactor sleeps while nothing is asked: it does not go round once.
#[test]
fn idle_means_idle() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert!(client.set_one("k", &Memory::patterned(4096, 0, 1)));
    client.exists(&["k".to_owned()]);
    // Before, it has to be given a processor for its last turn.
    crate::common::eventually("half a second without a turn", || {
        let before = client.counter("reactor_turns");
        thread::sleep(Duration::from_millis(500));
        client.counter("reactor_turns") == before
    });
    assert!(client.get_one("k", 4096).is_some(), "and it wakes again");
}

/// Else its file system could not be unmounted before the connector is dropped, which nobody expects.
#[test]
fn a_closed_connector_holds_no_file_open() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert!(client.set_one("k", &Memory::patterned(10_000, 0, 1)));
    let held = |list: &str| {
        let path = directory.path().to_str().unwrap();
        match list {
            "maps" => fs::read_to_string("/proc/self/maps").unwrap().contains(path),
            _ => fs::read_dir("/proc/self/fd").unwrap().any(|link| {
                fs::read_link(link.unwrap().path()).is_ok_and(|file| file.starts_with(path))
            }),
        }
    };
    assert!(held("fd") && held("maps"));
    client.connector.close();
    assert!(!held("fd") && !held("maps"));
    let stats = client.connector.stats();
    assert_eq!((stats.keys, stats.stored_bytes, stats.shutdown_clean), (1, 10_000, true));
}
