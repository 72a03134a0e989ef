//! A store that grows on a file system which takes its time: loads go on, and no SET fails or sees others go for it.
//!
//! Preallocation is held up here, as a journal or a slow device does it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config, eventually, has_data_files, keys};
use kvring::testing::{Action, FileOperations, SystemFiles};
use kvring::{Config, Durability};

const CAPACITY: u64 = 256 * MIB;
/// The first data file has 64 MiB; the next one is made when a quarter of that is free.
const IN_FIRST_FILE: u64 = 63;

/// Preallocation that waits while the gate is closed.
#[derive(Debug, Default)]
struct Gate {
    /// Calls that wait, and whether they are to.
    state: Mutex<(usize, bool)>,
    opened: Condvar,
}

impl FileOperations for Gate {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: libc::c_int) -> io::Result<()> {
        self.pass();
        SystemFiles.preallocate(file, bytes, flags)
    }
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        while state.1 {
            state = self.opened.wait(state).unwrap();
        }
        state.0 -= 1;
    }

    fn close(&self, closed: bool) {
        self.state.lock().unwrap().1 = closed;
        self.opened.notify_all();
    }

    fn is_waited_at(&self) -> bool {
        self.state.lock().unwrap().0 > 0
    }
}

fn open(mut config: Config) -> (Client, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    config.files = Arc::<Gate>::clone(&gate);
    (Client::with(config), gate)
}

#[test]
fn loads_go_on_while_a_data_file_is_made_and_sets_wait_for_it() {
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (client, gate) = open(config(directory.path(), CAPACITY));
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys = keys(0..2 * IN_FIRST_FILE);
    let (first, rest) = keys.split_at(40);
    assert!(client.set(first, &vec![&memory; first.len()]).ok);
    gate.close(true);
    let future = client.submit_set(rest, &vec![&memory; rest.len()]);
    eventually("the next file is being made", || gate.is_waited_at());
    // Until all is written that has room in the first file.
    eventually("the first file is full", || {
        client.connector.stats().allocated_bytes >= (IN_FIRST_FILE - 1) * MIB
    });
    for key in first {
        assert!(client.get_one(key, MIB as usize).is_some());
    }
    assert_eq!(client.exists(&first[..1]), [true]);
    client.delete(&first[..1]);
    assert!(client.connector.stats().in_flight > 0, "SETs wait");
    gate.close(false);
    let completion = client.wait(future);
    assert!(completion.ok, "{}", completion.error);
    assert_eq!((client.counter("evicted"), client.counter("set_failed")), (0, 0));
    assert!(client.exists(&keys[1..]).iter().all(|held| *held));
    client.assert_consistent();
}

/// What waits for a data file that does not come is dropped at the deadline of close().
#[test]
fn close_drops_what_waits_for_a_data_file() {
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), CAPACITY);
    let (client, gate) = open(config);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys = keys(0..2 * IN_FIRST_FILE);
    gate.close(true);
    client.submit_set(&keys, &vec![&memory; keys.len()]);
    eventually("the first file is full", || client.counter("set_stored") >= IN_FIRST_FILE - 1);
    let shutdown = std::thread::scope(|scope| {
        let closing = scope.spawn(|| client.close_after(Duration::from_millis(100)));
        eventually("its time is over", || client.counter("abandoned") > 0);
        gate.close(false);
        closing.join().unwrap()
    });
    let stored = client.counter("set_stored");
    assert!((IN_FIRST_FILE - 1..=IN_FIRST_FILE + 1).contains(&stored), "{stored}");
    assert_eq!((shutdown.partial_flush, shutdown.abandoned), (true, keys.len() as u64 - stored));
}

/// The sync of a new data file's name waits at the gate, and then it fails.
#[derive(Debug, Default)]
struct FailingNames {
    gate: Gate,
    fails: AtomicBool,
}

impl FileOperations for FailingNames {
    fn sync_all(&self, file: &File) -> io::Result<()> {
        self.gate.pass();
        match self.fails.swap(false, Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => SystemFiles.sync_all(file),
        }
    }
}

/// SETs in `persistent` of which the growth thread makes a data file, whose sync waits at its gate.
fn while_a_sync_of_growth_waits(
    max_retries: u32,
    check: impl FnOnce(&Client, &HeldBack, &FailingNames, u64),
) {
    let directory = tempfile::tempdir().unwrap();
    let names = Arc::new(FailingNames::default());
    let mut config = config(directory.path(), CAPACITY);
    config.durability = Durability::Persistent;
    config.tuning.persistent_max_retries = max_retries;
    config.files = Arc::<FailingNames>::clone(&names);
    let (client, held) = HeldBack::open(config);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys = keys(0..52);
    let (first, rest) = keys.split_at(40);
    assert!(client.set(first, &vec![&memory; first.len()]).ok);
    names.fails.store(true, Ordering::SeqCst);
    names.gate.close(true);
    held.hold(Action::Sync);
    let sets = client.submit_set(rest, &vec![&memory; rest.len()]);
    held.until_given(1);
    eventually("the sync of growth", || names.gate.is_waited_at());
    check(&client, &held, &names, sets);
    assert_eq!(client.wait(sets).ok, max_retries > 0);
    let is_stored = client.exists(rest);
    let stored = |number: usize| client.get_one(&rest[number], MIB as usize).is_some();
    assert!((0..rest.len()).all(|number| is_stored[number] == stored(number)));
    assert!(client.counter("write_retries") > 0 || max_retries == 0);
    client.assert_consistent();
}

/// The kernel tells one caller of the pages that it dropped, and here that is not the one that acknowledges them.
#[test]
fn a_failed_sync_of_the_growth_thread_vouches_for_no_set_that_was_written_before() {
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    for max_retries in [0, 1] {
        while_a_sync_of_growth_waits(max_retries, |_, held, names, _| {
            names.gate.close(false);
            eventually("its failure", || !names.fails.load(Ordering::SeqCst));
            eventually("its end", || !names.gate.is_waited_at());
            held.until_all_have_looked();
            held.release();
        });
    }
}

/// How it ends is known only when it has come back.
#[test]
fn a_group_waits_for_a_sync_of_the_growth_thread_that_is_under_way() {
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    for max_retries in [0, 1] {
        while_a_sync_of_growth_waits(max_retries, |client, held, names, sets| {
            held.release();
            for _ in 0..20 {
                held.until_all_have_looked();
                assert!(client.take(sets).is_none(), "nothing is known of what was written");
            }
            names.gate.close(false);
        });
    }
}
