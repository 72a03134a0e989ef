//! A store with chunks of several lengths, and how many of them are left.

use std::fs;
use std::path::{Path, PathBuf};

use kvring::list_chunks;

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

/// Where the chunk of `key` lies in a store that was closed: its file, and where in that it starts.
pub(crate) fn place(directory: &Path, key: &str) -> (PathBuf, u64) {
    let chunk = list_chunks(directory, None)
        .unwrap()
        .map(Result::unwrap)
        .find(|chunk| chunk.key == key)
        .expect("a chunk of that key");
    (directory.join(chunk.file), chunk.offset_bytes)
}

/// Copies a directory with everything below it.
pub(crate) fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
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
