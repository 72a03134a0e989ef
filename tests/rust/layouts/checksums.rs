//! Checksums of chunks: how mismatches are told.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common::{Client, MIB, Memory, key, logged};
use kvring::list_chunks;

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 5000;

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
    let found = client.get(&keys, &blocks).results;
    assert_eq!(found, vec![false; keys.len()]);
    assert_eq!(client.counter("checksum_mismatch"), COUNT);
    client.connector.close();
    let lines = logged::lines(path, "does not match its checksum").len();
    let what = "chunks did not match their checksums and were dropped";
    let (counted, more_lines) = logged::counted(path, what);
    assert_eq!(lines as u64 + counted, COUNT);
    assert!(lines + more_lines < 30, "{lines} and {more_lines}");
}
