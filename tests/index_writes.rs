//! An index whose file refuses to be written: nothing is acknowledged that is not in it, loads go on, and when it lasts the
//! store fails instead of keeping its callers waiting.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Client, MIB, Memory, config, eventually, key};
use kvring::{Connector, Durability};

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 10_000;

/// The index that refuses records.
static REFUSING: Mutex<Option<PathBuf>> = Mutex::new(None);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Only one index can refuse at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// pwrite(2), without any room for a record of that index.
// SAFETY: the name is the C library's, and so are signature, meaning and errno.
#[unsafe(no_mangle)]
extern "C" fn pwrite64(
    file: RawFd,
    bytes: *const libc::c_void,
    count: libc::size_t,
    offset: libc::off64_t,
) -> libc::ssize_t {
    let is_refused = REFUSING.lock().unwrap().as_ref().is_some_and(|index| {
        offset >= 4096 && std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap() == *index
    });
    if is_refused {
        REFUSED.fetch_add(1, Ordering::SeqCst);
        nix::errno::Errno::set_raw(libc::ENOSPC);
        return -1;
    }
    // SAFETY: as the caller vouches.
    unsafe { libc::syscall(libc::SYS_pwrite64, file, bytes, count, offset) as libc::ssize_t }
}

fn refuse(directory: Option<&Path>) {
    REFUSED.store(0, Ordering::SeqCst);
    *REFUSING.lock().unwrap() = directory.map(|path| path.join("index.kvring"));
}

fn until_refused() {
    let before = REFUSED.load(Ordering::SeqCst);
    eventually("another try", || REFUSED.load(Ordering::SeqCst) > before + 1);
}

fn open(directory: &Path, durability: Durability) -> Client {
    let mut config = config(directory, CAPACITY);
    config.durability = durability;
    Client::from(Connector::open(config).unwrap())
}

fn chunk(seed: u64) -> Memory {
    Memory::patterned(LENGTH, 0, seed)
}

#[test]
fn nothing_is_acknowledged_before_the_index_takes_it() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for durability in [Durability::BestEffort, Durability::Persistent] {
        let directory = tempfile::tempdir().unwrap();
        let client = open(directory.path(), durability);
        for number in 1..=3 {
            assert!(client.set_one(&key(number), &chunk(number)));
        }
        refuse(Some(directory.path()));
        let (replacing, again, new) = (chunk(10), chunk(10), chunk(11));
        let deleted = client.connector.submit_delete(&[key(1)]).unwrap();
        let replaced = client.submit_set(&[key(2)], &[&replacing]);
        let repeated = client.submit_set(&[key(2)], &[&again]);
        let stored = client.submit_set(&[key(4)], &[&new]);
        until_refused();
        assert_eq!(client.get_one(&key(3), LENGTH).unwrap(), chunk(3).bytes(), "loads go on");
        assert_eq!(client.exists(&[key(1), key(3)]), [false, true]);
        until_refused();
        for future_id in [deleted, replaced, repeated, stored] {
            assert!(client.take(future_id).is_none(), "{durability:?}: answered too early");
        }
        refuse(None);
        for future_id in [deleted, replaced, repeated, stored] {
            assert!(client.wait(future_id).ok, "{durability:?}");
        }
        assert!(client.connector.close().clean);
        let client = open(directory.path(), durability);
        assert_eq!(client.exists(&[key(1)]), [false]);
        for (number, seed) in [(2, 10), (3, 3), (4, 11)] {
            assert_eq!(client.get_one(&key(number), LENGTH).unwrap(), chunk(seed).bytes());
        }
    }
}

#[test]
fn an_index_that_goes_on_refusing_fails_the_store() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let client = open(directory.path(), Durability::BestEffort);
    for number in 1..=2 {
        assert!(client.set_one(&key(number), &chunk(number)));
    }
    refuse(Some(directory.path()));
    let (replacing, new) = (chunk(10), chunk(11));
    let deleted = client.connector.submit_delete(&[key(1)]).unwrap();
    let replaced = client.submit_set(&[key(2)], &[&replacing]);
    let stored = client.submit_set(&[key(3)], &[&new]);
    for future_id in [deleted, replaced, stored] {
        assert!(!client.wait(future_id).ok, "it is not in the index");
    }
    assert_eq!(client.exists(&[key(1), key(2)]), [false, false], "nobody can load anything");
    refuse(None);
    assert!(!client.connector.close().clean);
    let client = open(directory.path(), Durability::BestEffort);
    for number in 1..=2 {
        assert_eq!(client.get_one(&key(number), LENGTH).unwrap(), chunk(number).bytes());
    }
    assert_eq!(client.exists(&[key(3)]), [false]);
}

/// close() does not wait for what the index refuses, and what was not answered is not promised.
#[test]
fn close_gives_up_what_the_index_refuses() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let client = open(directory.path(), Durability::BestEffort);
    assert!(client.set_one(&key(1), &chunk(1)));
    refuse(Some(directory.path()));
    client.connector.submit_delete(&[key(1)]).unwrap();
    until_refused();
    assert!(!client.connector.close().clean);
    refuse(None);
    let client = open(directory.path(), Durability::BestEffort);
    assert_eq!(client.get_one(&key(1), LENGTH).unwrap(), chunk(1).bytes());
}
