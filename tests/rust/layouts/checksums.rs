//! Checksums of chunks: what is compared, and how mismatches are told.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common::{Client, MIB, Memory, key, logged, pattern};
use kvring::list_chunks;

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 5000;

fn memory(bytes: &[u8]) -> Memory {
    let memory = Memory::new(bytes.len(), 0);
    memory.fill(bytes);
    memory
}

/// A long chunk is compared in turns, of which the last one is shorter.
#[test]
fn long_chunks_are_compared_to_their_last_byte() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    let mut bytes = pattern((5 * MIB + 77) as usize, 1);
    for unchanged in [0, 1] {
        assert!(client.set_one(&key(1), &memory(&bytes)));
        assert_eq!(client.counter("set_unchanged"), unchanged);
    }
    *bytes.last_mut().unwrap() ^= 1;
    assert!(client.set_one(&key(1), &memory(&bytes)));
    assert_eq!(client.counter("set_unchanged"), 1);
    assert_eq!(client.get_one(&key(1), bytes.len()).unwrap(), bytes);
}

/// close() tells of those that are not told yet.
#[test]
fn many_mismatches_have_few_lines_that_add_up() {
    const COUNT: u64 = 300;
    logged::keep();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let keys: Vec<String> = (0..COUNT).map(key).collect();
    let client = Client::open(path, CAPACITY);
    assert!(client.set(&keys, &vec![&Memory::patterned(LENGTH, 0, 1); keys.len()]).ok);
    client.connector.close();
    for chunk in list_chunks(path, None).unwrap().map(Result::unwrap) {
        let file = File::options().write(true).open(path.join(chunk.file)).unwrap();
        file.write_all_at(&[0xff; 7], chunk.offset_bytes).unwrap();
    }
    let client = Client::open(path, CAPACITY);
    let blocks: Vec<Memory> = keys.iter().map(|_| Memory::new(LENGTH, 0)).collect();
    let found = client.get(&keys, &blocks.iter().collect::<Vec<_>>()).results;
    assert_eq!(found, vec![false; keys.len()]);
    assert_eq!(client.counter("checksum_mismatch"), COUNT);
    client.connector.close();
    let lines = logged::lines(path, "does not match its checksum").len();
    let what = "chunks did not match their checksums and were dropped";
    let (counted, more_lines) = logged::counted(path, what);
    assert_eq!(lines as u64 + counted, COUNT);
    assert!(lines + more_lines < 30, "{lines} and {more_lines}");
}
