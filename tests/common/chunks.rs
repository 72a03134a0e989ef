//! A store with chunks of several lengths, and how many of them are left.

use std::path::Path;

use super::{Client, MIB, Memory, key, pattern};

/// Capacity of a filled store.
pub(crate) const CAPACITY: u64 = 256 * MIB;

/// Stores chunks of several lengths under keys 0 to `count`, and closes.
pub(crate) fn filled(directory: &Path, count: u64) {
    let client = Client::open(directory, CAPACITY);
    for number in 0..count {
        assert!(client.set_one(&key(number), &Memory::patterned(length(number), 0, number)));
    }
    client.connector.close();
}

pub(crate) fn length(number: u64) -> usize {
    4096 + 1111 * number as usize
}

/// How many of the chunks of `filled` are there; each one that is has the right bytes.
pub(crate) fn intact(client: &Client, count: u64) -> u64 {
    (0..count)
        .filter(|number| {
            let found = client.get_one(&key(*number), length(*number));
            assert!(found.as_ref().is_none_or(|bytes| *bytes == pattern(length(*number), *number)));
            found.is_some()
        })
        .count() as u64
}
