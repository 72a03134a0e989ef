//! Order per key while several operations on it are in flight.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use common::{Client, MIB, Memory, key};

/// A DELETE that is answered while two SETs are on their way reaches the first of them too.
#[test]
fn a_delete_behind_two_sets_reaches_both() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 64 * MIB);
    let (first, second) =
        (Memory::patterned(4 * MIB as usize, 0, 1), Memory::patterned(4096, 0, 2));
    for _ in 0..50 {
        let ids =
            [client.submit_set(&[key(1)], &[&first]), client.submit_set(&[key(1)], &[&second])];
        assert_eq!(client.delete(&[key(1)]), [true]);
        assert!(ids.iter().all(|id| client.wait(*id).ok));
        assert_eq!(client.exists(&[key(1)]), [false]);
    }
    client.connector.close();
    let client = Client::open(directory.path(), 64 * MIB);
    let stats = client.connector.stats();
    assert_eq!((stats.keys, stats.records, stats.allocated_bytes), (0, 0, 0));
}
