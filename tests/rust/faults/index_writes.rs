//! An index whose file refuses to be written: nothing is acknowledged that is not in it, loads go on, and when it lasts SETs and
//! DELETEs are refused instead of keeping their callers waiting, until it can be written again.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::common::faults::{Fault, scripted};
use crate::common::held_back::HeldBack;
use crate::common::{
    Client, MIB, Memory, config, config_of, eventually, key, keys, path_of, side_by_side,
};
use kvring::testing::{Action, FileOperations, SystemFiles};
use kvring::{Durability, Layout};

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 10_000;

/// Files of a store whose index takes no record while it is to refuse them.
#[derive(Debug, Default)]
struct TroubledIndex {
    /// What it says; 0 while it takes them.
    errno: AtomicI32,
    /// Only where it is below this.
    directory: Option<PathBuf>,
    /// The thread that writes records ends in a panic.
    panics: AtomicBool,
    refused: AtomicUsize,
}

impl FileOperations for TroubledIndex {
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let is_record = offset >= 4096;
        assert!(!(is_record && self.panics.load(Ordering::SeqCst)), "a panic of the test");
        let errno = self.errno.load(Ordering::SeqCst);
        if is_record && errno != 0 && self.is_meant(file) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(errno));
        }
        SystemFiles.write_at(file, bytes, offset)
    }
}

impl TroubledIndex {
    fn is_meant(&self, file: &File) -> bool {
        self.directory.as_ref().is_none_or(|directory| path_of(file).starts_with(directory))
    }

    fn refuse(&self, is_full: bool) {
        self.errno.store(if is_full { libc::ENOSPC } else { 0 }, Ordering::SeqCst);
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
    (Client::over(config, held.engines()), files)
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
fn an_index_that_goes_on_refusing_degrades_the_store() {
    let stores = [
        (Durability::BestEffort, Layout::Extents),
        (Durability::Persistent, Layout::Extents),
        (Durability::Persistent, Layout::Files),
    ];
    side_by_side(stores, |(durability, layout)| degrades_and_recovers(durability, layout));
}

fn degrades_and_recovers(durability: Durability, layout: Layout) {
    let directory = tempfile::tempdir().unwrap();
    let index = Arc::new(TroubledIndex::default());
    let mut config = config(directory.path(), CAPACITY);
    (config.durability, config.layout) = (durability, layout);
    config.files = Arc::<TroubledIndex>::clone(&index);
    let client = Client::with(config.clone());
    for number in 1..=3 {
        assert!(client.set_one(&key(number), &chunk(number)));
    }
    index.refuse(true);
    let (replacing, new) = (chunk(10), chunk(11));
    let deleted = client.connector.submit_delete(&[key(1)]).unwrap();
    let replaced = client.submit_set(&[key(2)], &[&replacing]);
    // It may get the extent of the first one.
    let stored = client.submit_set(&[key(4)], &[&new]);
    for future_id in [deleted, replaced, stored] {
        let answer = client.wait(future_id);
        assert!(
            !answer.ok && answer.error.contains("index.kvring cannot be written"),
            "{}",
            answer.error
        );
        assert!(answer.error.contains("free space on that file system"), "{}", answer.error);
    }
    let path = |client: &Client| client.connector.stats().paths[0].clone();
    assert!(path(&client).in_use && path(&client).trouble.contains("cannot be written"));

    let refused = client.set(&[key(5)], &[&new]);
    assert!(!refused.ok && refused.error.contains("cannot be written"), "{}", refused.error);
    let refused = client.connector.submit_delete(&[key(3)]).unwrap();
    assert!(!client.wait(refused).ok);
    let refused = client.connector.delete(&[key(3)]).unwrap_err().to_string();
    assert!(refused.contains("not all keys are removed") && refused.contains("cannot be written"));
    assert!(client.connector.purge("test/model").is_err());
    assert_eq!(client.exists(&[key(1), key(3)]), [false, true], "what is refused has no effect");
    assert_eq!(client.get_one(&key(3), LENGTH).unwrap(), chunk(3).bytes(), "loads go on");
    let second = client.get_one(&key(2), LENGTH).unwrap();
    assert!([2, 10].map(|seed| chunk(seed).bytes().to_vec()).contains(&second));

    index.refuse(false);
    eventually("it is stored in again", || client.set_one(&key(5), &new));
    assert_eq!(path(&client).trouble, "");
    assert_eq!(client.connector.delete(&[key(3)]).unwrap(), [true]);
    client.assert_consistent();
    assert!(client.connector.close().clean);
    let client = Client::with(config);
    assert_eq!(client.exists(&[key(1), key(3), key(5)]), [false, false, true]);
    assert_eq!(client.get_one(&key(2), LENGTH).unwrap(), second);
    assert_eq!(client.get_one(&key(5), LENGTH).unwrap(), new.bytes());
}

/// One that is full stays in use; one whose device fails does not, as others take its keys.
#[test]
fn of_several_paths_one_whose_index_cannot_be_written() {
    let paths_in_use = |errno| {
        let parent = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| parent.path().join(name));
        let directory = Some(paths[0].clone());
        let index = Arc::new(TroubledIndex { directory, ..TroubledIndex::default() });
        let mut config = config_of(&paths, CAPACITY);
        config.files = Arc::<TroubledIndex>::clone(&index);
        let client = Client::with(config);
        let memory = chunk(1);
        let (keys, others) = (keys(0..40), keys(40..80));
        assert!(client.set(&keys, &[&memory; 40]).ok);
        index.errno.store(errno, Ordering::SeqCst);
        let stored = client.set(&others, &[&memory; 40]).results;
        assert!(stored.contains(&true) && stored.contains(&false), "of one path alone");
        eventually("it is said", || !client.connector.stats().paths[0].trouble.is_empty());
        let refused = client.connector.submit_delete(&keys).unwrap();
        let in_use = || -> Vec<bool> {
            client.connector.stats().paths.iter().map(|one| one.in_use).collect()
        };
        if errno == libc::EIO {
            eventually("it is out of use", || in_use() == [false, true]);
            assert!(client.set(&others, &[&memory; 40]).ok, "the other one takes them");
        } else {
            let removed = client.wait(refused).results;
            assert_eq!(client.exists(&keys), removed.iter().map(|one| !one).collect::<Vec<_>>());
            assert!(removed.contains(&true) && removed.contains(&false), "of one path alone");
        }
        in_use()
    };
    assert_eq!(paths_in_use(libc::EDQUOT), [true, true]);
    assert_eq!(paths_in_use(libc::EIO), [false, true]);
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

#[test]
fn a_set_that_is_in_the_device_when_the_index_refuses_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(TroubledIndex::default());
    let mut config = config(directory.path(), CAPACITY);
    config.files = Arc::<TroubledIndex>::clone(&files);
    let (reached, is_reached) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let mut writes = 0;
    let engine = scripted(move |_, action, _| {
        writes += u64::from(action == Action::Write);
        if action == Action::Write && writes == 2 {
            reached.send(()).unwrap();
            may_go.recv().unwrap();
        }
        Fault::None
    });
    let client = Client::over(config, engine);
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

/// Nobody writes what is removed from then on: a restart brings it back.
#[test]
fn a_removal_fails_when_the_thread_that_writes_records_has() {
    let directory = tempfile::tempdir().unwrap();
    let (client, index) = open(directory.path(), Durability::BestEffort);
    for number in 1..=3 {
        assert!(client.set_one(&key(number), &chunk(number)));
    }
    index.panics.store(true, Ordering::SeqCst);
    let says_why = |error: String| {
        assert!(error.contains("the thread that writes its records has stopped"), "{error}");
    };
    says_why(client.connector.delete(&[key(1)]).unwrap_err().to_string());
    says_why(client.connector.delete(&[key(2)]).unwrap_err().to_string());
    says_why(client.connector.purge("test/model").unwrap_err().to_string());
    client.connector.close();
    drop(client);
    index.panics.store(false, Ordering::SeqCst);
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(client.exists(&[key(1), key(2), key(3)]), [true; 3]);
}
