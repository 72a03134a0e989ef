//! An index whose file refuses to be written: nothing is acknowledged that is not in it, loads go on, and when it lasts the
//! store fails instead of keeping its callers waiting.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::faults::{Fault, FaultEngine};
use common::held_back::HeldBack;
use common::{Client, MIB, Memory, config, eventually, key, once};
use kvring::testing::{Action, FileOperations, SystemFiles};
use kvring::{Connector, Durability};

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 10_000;

/// Files of a store whose index takes no record while it is to refuse them, or takes its time for each.
#[derive(Debug, Default)]
struct TroubledIndex {
    is_full: AtomicBool,
    refused: AtomicUsize,
    is_slow: AtomicBool,
    slowed: AtomicUsize,
}

impl FileOperations for TroubledIndex {
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let is_record = offset >= 4096;
        if is_record && self.is_full.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if is_record && self.is_slow.load(Ordering::SeqCst) {
            self.slowed.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(6));
        }
        SystemFiles.write_at(file, bytes, offset)
    }
}

impl TroubledIndex {
    fn refuse(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    fn until_refused(&self) {
        let before = self.refused.load(Ordering::SeqCst);
        eventually("another try", || self.refused.load(Ordering::SeqCst) > before + 1);
    }
}

fn open(directory: &Path, durability: Durability) -> (Client, Arc<TroubledIndex>) {
    open_held(directory, durability, &HeldBack::default())
}

fn open_held(
    directory: &Path,
    durability: Durability,
    held: &HeldBack,
) -> (Client, Arc<TroubledIndex>) {
    let files = Arc::new(TroubledIndex::default());
    let mut config = config(directory, CAPACITY);
    config.durability = durability;
    config.files = Arc::<TroubledIndex>::clone(&files);
    let held = held.clone();
    let make_engine = move |queue_depth, waker| held.engine(queue_depth, waker);
    (Client::from(Connector::open_with_engine(config, make_engine).unwrap()), files)
}

fn chunk(seed: u64) -> Memory {
    Memory::patterned(LENGTH, 0, seed)
}

#[test]
fn nothing_is_acknowledged_before_the_index_takes_it() {
    for durability in [Durability::BestEffort, Durability::Persistent] {
        let directory = tempfile::tempdir().unwrap();
        let (client, index) = open(directory.path(), durability);
        for number in 1..=3 {
            assert!(client.set_one(&key(number), &chunk(number)));
        }
        index.refuse(true);
        let (replacing, again, new) = (chunk(10), chunk(10), chunk(11));
        let deleted = client.connector.submit_delete(&[key(1)]).unwrap();
        let replaced = client.submit_set(&[key(2)], &[&replacing]);
        let repeated = client.submit_set(&[key(2)], &[&again]);
        let stored = client.submit_set(&[key(4)], &[&new]);
        index.until_refused();
        assert_eq!(client.get_one(&key(3), LENGTH).unwrap(), chunk(3).bytes(), "loads go on");
        assert_eq!(client.exists(&[key(1), key(3)]), [false, true]);
        index.until_refused();
        for future_id in [deleted, replaced, repeated, stored] {
            assert!(client.take(future_id).is_none(), "{durability:?}: answered too early");
        }
        index.refuse(false);
        for future_id in [deleted, replaced, repeated, stored] {
            assert!(client.wait(future_id).ok, "{durability:?}");
        }
        assert!(client.connector.close().clean);
        let (client, _) = open(directory.path(), durability);
        assert_eq!(client.exists(&[key(1)]), [false]);
        for (number, seed) in [(2, 10), (3, 3), (4, 11)] {
            assert_eq!(client.get_one(&key(number), LENGTH).unwrap(), chunk(seed).bytes());
        }
    }
}

/// Its record may still be in the file: a process that is killed would find other bytes there.
#[test]
fn nothing_is_written_where_a_chunk_was_before_the_index_forgets_it() {
    for durability in [Durability::BestEffort, Durability::Persistent] {
        let directory = tempfile::tempdir().unwrap();
        let held = HeldBack::default();
        let (client, index) = open_held(directory.path(), durability, &held);
        assert!(client.set_one(&key(1), &chunk(1)));
        index.refuse(true);
        let deleted = client.connector.submit_delete(&[key(1)]).unwrap();
        index.until_refused();
        held.hold(Action::Write);
        let new = chunk(2);
        let stored = client.submit_set(&[key(2)], &[&new]);
        held.until_all_have_looked();
        index.until_refused();
        assert_eq!(held.given_bytes(), [], "{durability:?}");
        index.refuse(false);
        held.until_given(1);
        held.release();
        for future_id in [deleted, stored] {
            assert!(client.wait(future_id).ok, "{durability:?}");
        }
        assert_eq!(client.get_one(&key(2), LENGTH).unwrap(), chunk(2).bytes());
    }
}

#[test]
fn an_index_that_goes_on_refusing_fails_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (client, index) = open(directory.path(), Durability::BestEffort);
    for number in 1..=2 {
        assert!(client.set_one(&key(number), &chunk(number)));
    }
    index.refuse(true);
    let (replacing, new) = (chunk(10), chunk(11));
    let deleted = client.connector.submit_delete(&[key(1)]).unwrap();
    let replaced = client.submit_set(&[key(2)], &[&replacing]);
    let stored = client.submit_set(&[key(3)], &[&new]);
    for future_id in [deleted, replaced, stored] {
        assert!(!client.wait(future_id).ok, "it is not in the index");
    }
    assert_eq!(client.exists(&[key(1), key(2)]), [false, false], "nobody can load anything");
    index.refuse(false);
    assert!(!client.connector.close().clean);
    let (client, _) = open(directory.path(), Durability::BestEffort);
    for number in 1..=2 {
        assert_eq!(client.get_one(&key(number), LENGTH).unwrap(), chunk(number).bytes());
    }
    assert_eq!(client.exists(&[key(3)]), [false]);
}

/// close() does not wait for what the index refuses, and what was not answered is not promised.
#[test]
fn close_gives_up_what_the_index_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let (client, index) = open(directory.path(), Durability::BestEffort);
    for number in 1..=2 {
        assert!(client.set_one(&key(number), &chunk(number)));
    }
    index.refuse(true);
    client.connector.submit_delete(&[key(1), key(2)]).unwrap();
    index.until_refused();
    let shutdown = client.connector.close();
    assert!(!shutdown.clean);
    assert_eq!(shutdown.abandoned, 2);
    index.refuse(false);
    let (client, _) = open(directory.path(), Durability::BestEffort);
    assert_eq!(client.get_one(&key(1), LENGTH).unwrap(), chunk(1).bytes());
}

/// It gives up when nothing was written for ten seconds.
#[test]
fn close_waits_for_a_slow_index_while_it_writes() {
    let directory = tempfile::tempdir().unwrap();
    let (client, index) = open(directory.path(), Durability::BestEffort);
    for number in 1..=3 {
        assert!(client.set_one(&key(number), &chunk(number)));
    }
    index.is_slow.store(true, Ordering::SeqCst);
    client.connector.submit_delete(&[key(1)]).unwrap();
    eventually("the first write", || index.slowed.load(Ordering::SeqCst) == 1);
    client.connector.submit_delete(&[key(2)]).unwrap();
    let shutdown = client.connector.close();
    assert!(shutdown.clean, "{shutdown}");
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(client.exists(&[key(1), key(2), key(3)]), [false, false, true]);
}

#[test]
fn a_set_that_is_in_the_device_when_the_store_fails_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(TroubledIndex::default());
    let mut config = config(directory.path(), CAPACITY);
    config.files = Arc::<TroubledIndex>::clone(&files);
    let (reached, is_reached) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let make_engine = once(move |queue_depth, waker| {
        let mut writes = 0;
        let script = move |_, action, _| {
            writes += u64::from(action == Action::Write);
            if action == Action::Write && writes == 2 {
                reached.send(()).unwrap();
                may_go.recv().unwrap();
            }
            Fault::None
        };
        FaultEngine::new(queue_depth, waker, Box::new(script), Arc::default())
    });
    let client = Client::from(Connector::open_with_engine(config, make_engine).unwrap());
    assert!(client.set_one(&key(1), &chunk(1)));
    let new = chunk(2);
    let stored = client.submit_set(&[key(2)], &[&new]);
    is_reached.recv().unwrap();
    files.refuse(true);
    let deleted = client.connector.submit_delete(&[key(1)]).unwrap();
    assert!(!client.wait(deleted).ok);
    go.send(()).unwrap();
    assert!(!client.wait(stored).ok);
}
