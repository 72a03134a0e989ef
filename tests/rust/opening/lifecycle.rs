//! Opening, closing, and what holds while a store is open.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Client, MIB, Memory, key};
use kvring::SubmitError;

const CAPACITY: u64 = 256 * MIB;

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
                                    client.submit_get(&keys, &own)
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
