//! A group of SETs in `persistent` whose sync fails: what waits for the next one, and what comes back.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::faults::{Fault, scripted};
use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config, eventually, key};
use kvring::testing::{Action, FileOperations};
use kvring::{Config, Durability, Layout};

/// What a test does to the syncs of a store.
#[derive(Clone, Default)]
struct Syncs {
    held: HeldBack,
    /// So many of those that come fail.
    failing: Arc<AtomicUsize>,
    /// Lengths that were written.
    written: Arc<Mutex<Vec<usize>>>,
}

impl Syncs {
    fn open(&self, mut config: Config, max_retries: u32) -> Client {
        config.durability = Durability::Persistent;
        config.tuning.persistent_max_retries = max_retries;
        let Self { held, failing, written } = self.clone();
        let mut engine = scripted(move |_, action, length| {
            match action {
                Action::Write => written.lock().unwrap().push(length),
                Action::Sync | Action::SyncDirectory => {
                    let left = failing.load(Ordering::SeqCst);
                    failing.store(left.saturating_sub(1), Ordering::SeqCst);
                    if left > 0 {
                        return Fault::Errno(libc::EIO);
                    }
                }
                _ => {}
            }
            Fault::None
        });
        Client::over(config, move |queue_depth, waker| {
            Ok(held.above(Box::new(engine(queue_depth, Arc::clone(&waker))?), waker))
        })
    }

    fn writes_of(&self, length: usize) -> usize {
        self.written.lock().unwrap().iter().filter(|other| **other == length).count()
    }
}

/// A sync that fails may have dropped what was written before it was known, though it waits for the next group.
#[test]
fn what_waits_for_the_next_group_is_written_again_as_often_as_it_may() {
    for max_retries in [0, 1] {
        let (directory, syncs) = (tempfile::tempdir().unwrap(), Syncs::default());
        let client = syncs.open(config(directory.path(), 256 * MIB), max_retries);
        let (first, second) = (Memory::patterned(8192, 0, 1), Memory::patterned(12_288, 0, 2));
        syncs.held.hold(Action::Sync);
        let failing = client.submit_set(&[key(1)], &[&first]);
        syncs.held.until_given(1);
        let waiting = client.submit_set(&[key(2)], &[&second]);
        eventually("it is written", || syncs.writes_of(12_288) == 1);
        syncs.held.until_all_have_looked();
        syncs.failing.store(1, Ordering::SeqCst);
        syncs.held.release();
        assert!(!client.wait(failing).ok);
        assert_eq!(client.wait(waiting).ok, max_retries > 0);
        assert_eq!(syncs.writes_of(12_288), 1 + max_retries as usize);
    }
}

/// A SET that finds no room asks for a sync that gives places back. It comes, though the group that is under way fails.
#[test]
fn places_are_given_back_although_the_group_before_fails() {
    let (directory, syncs) = (tempfile::tempdir().unwrap(), Syncs::default());
    let client = syncs.open(config(directory.path(), 16 * MIB), 0);
    let (long, longest) = (Memory::patterned(1 << 20, 0, 1), Memory::patterned(8 << 20, 0, 1));
    let small = Memory::patterned(4096, 0, 1);
    for number in 0..10 {
        syncs.held.hold(Action::Sync);
        let set = client.submit_set(&[key(number)], &[&long]);
        syncs.held.until_given(1);
        syncs.held.permit(1);
        syncs.held.until_given(2);
        syncs.failing.store(1, Ordering::SeqCst);
        syncs.held.release();
        assert!(!client.wait(set).ok);
    }
    let taken = client.connector.stats().allocated_bytes;
    assert!(taken >= 10 * MIB, "{taken}");
    syncs.held.hold(Action::Sync);
    let set = client.submit_set(&["small".to_owned()], &[&small]);
    syncs.held.until_given(1);
    syncs.held.permit(1);
    syncs.held.until_given(2);
    // There is no room as long as that is under way.
    let waiting = client.submit_set(&["longest".to_owned()], &[&longest]);
    syncs.held.until_all_have_looked();
    assert!(client.take(waiting).is_none());
    syncs.failing.store(1, Ordering::SeqCst);
    syncs.held.release();
    assert!(!client.wait(set).ok);
    client.wait(waiting);
    assert!(client.delete(&["longest".to_owned()]).len() == 1);
    eventually("all is given back", || client.connector.stats().allocated_bytes == 0);
    client.assert_consistent();
}

/// Counts how often all of the index is marked to be written again.
#[derive(Debug, Default)]
struct Marks(AtomicU64);

impl FileOperations for Marks {
    fn mark_changed(&self, _: &File, offset: u64, _: &[AtomicU8]) -> io::Result<()> {
        self.0.fetch_add(u64::from(offset == 0), Ordering::SeqCst);
        Ok(())
    }
}

/// The kernel takes for written what a failed sync has dropped, also what others have written.
#[test]
fn the_index_is_written_again_once_after_the_syncs_of_a_group_have_failed() {
    let (directory, syncs, marks) =
        (tempfile::tempdir().unwrap(), Syncs::default(), Arc::new(Marks::default()));
    let mut config = config(directory.path(), 256 * MIB);
    // Each chunk has two syncs, that of its file and that of its directory.
    config.layout = Layout::Files;
    config.files = Arc::<Marks>::clone(&marks);
    let client = syncs.open(config, 0);
    let memory = Memory::patterned(8192, 0, 1);
    assert!(client.set_one(&key(1), &memory));
    assert_eq!(marks.0.load(Ordering::SeqCst), 0);
    for failing in [1, 2] {
        syncs.failing.store(failing, Ordering::SeqCst);
        assert!(!client.set_one(&key(2), &memory));
        assert!(client.set_one(&key(3), &memory));
        assert_eq!(marks.0.swap(0, Ordering::SeqCst), 1, "{failing}");
    }
}
