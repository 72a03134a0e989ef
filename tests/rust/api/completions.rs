//! Completions of SETs apart from all others, and calls that are done when they return.

use std::os::fd::BorrowedFd;

use crate::common::{Client, MIB, Memory, eventually, key};
use kvring::{Completion, Connector, SubmitError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn is_readable(descriptor: i32) -> bool {
    // SAFETY: the connector keeps it open while it lives.
    let event = unsafe { BorrowedFd::borrow_raw(descriptor) };
    poll(&mut [PollFd::new(event, PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
}

fn take(connector: &Connector, of_sets: bool) -> Vec<Completion> {
    let mut taken = Vec::new();
    connector.take(of_sets, &mut taken);
    taken
}

#[test]
fn stores_complete_in_a_queue_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 64 * MIB);
    let connector = &client.connector;
    assert_eq!(connector.set_event_fd(), connector.event_fd());
    connector.split_completions().unwrap();
    connector.split_completions().unwrap();
    let (sets, others) = (connector.set_event_fd(), connector.event_fd());
    assert_ne!(sets, others);
    let memory = Memory::patterned(5000, 0, 1);
    let set = client.submit_set(&[key(1)], &[&memory]);
    eventually("the store", || is_readable(sets));
    assert!(!is_readable(others) && take(connector, false).is_empty());
    let get = client.submit_get(&[key(1)], &[&memory]);
    let exists = connector.submit_exists(&[key(1)]).unwrap();
    assert_eq!(client.wait(get).results, [true]);
    assert_eq!(client.wait(exists).results, [true]);
    let taken = take(connector, true);
    assert_eq!((taken.len(), taken[0].future_id, taken[0].ok), (1, set, true));
    // Whoever polls clears it.
    assert!(is_readable(sets) && take(connector, true).is_empty());
    assert_eq!(connector.stats().in_flight, 0);
    client.submit_set(&[key(2)], &[&memory]);
    assert!(connector.close().clean);
    assert!(take(connector, true).is_empty(), "none after close");
}

#[test]
fn exists_and_delete_are_done_when_they_return() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 64 * MIB);
    let memory = Memory::patterned(5000, 0, 1);
    let keys: Vec<String> = (0..3).map(key).collect();
    assert!(client.set(&keys[..2], &[&memory; 2]).ok);
    let connector = &client.connector;
    assert_eq!(connector.exists(&keys).unwrap(), [true, true, false]);
    assert_eq!(connector.delete(&keys[1..]).unwrap(), [true, false]);
    assert_eq!(connector.exists(&keys).unwrap(), [true, false, false]);
    assert_eq!((client.counter("deleted"), client.counter("delete_absent")), (1, 1));
    client.assert_consistent();
    assert!(connector.close().clean);
    assert!(matches!(connector.delete(&keys), Err(SubmitError::Closed)));
    assert!(matches!(connector.exists(&keys), Err(SubmitError::Closed)));
    // No restart brings it back, not even after a kill: the record is cleared.
    assert_eq!(Client::open(directory.path(), 64 * MIB).connector.recovery().kept, 1);
}
