//! Checksums of chunks: 64 bits tell what 32 bits do not, and chunks with 32 bits stay readable.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::chunks::place;
use crate::common::records::Record;
use crate::common::{Client, MIB, Memory, key, logged, pattern};
use kvring::list_chunks;

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 5000;

/// Where the record tells the kind of its chunk's checksum, and the checksum itself.
const KIND_AT: usize = 13;
const CHECKSUM_AT: usize = 64;
const CRC_32C: u8 = 1;
const CRC_64_NVME: u8 = 2;

fn memory(bytes: &[u8]) -> Memory {
    let memory = Memory::new(bytes.len(), 0);
    memory.fill(bytes);
    memory
}

/// Two different chunks of one length with the same CRC-32C.
fn with_one_crc_32c() -> [Vec<u8>; 2] {
    let mut seen: HashMap<u32, Vec<u8>> = HashMap::new();
    (0..1_000_000)
        .find_map(|seed| {
            let bytes = pattern(24, seed);
            seen.insert(crc32c::crc32c(&bytes), bytes.clone()).map(|other| [other, bytes])
        })
        .unwrap()
}

fn overwrite(directory: &Path, key: &str, bytes: &[u8]) {
    let (file, at) = place(directory, key);
    File::options().write(true).open(file).unwrap().write_all_at(bytes, at).unwrap();
}

/// Makes the chunk in `slot` one that an earlier kvring has stored.
fn make_old(directory: &Path, slot: u64, bytes: &[u8]) {
    let checksum = u64::from(crc32c::crc32c(bytes));
    let record = Record::read(directory, slot);
    assert_eq!(record.0[KIND_AT], CRC_64_NVME);
    let old = record.with(KIND_AT, &[CRC_32C]).with(CHECKSUM_AT, &checksum.to_le_bytes());
    old.write(directory, slot);
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

#[test]
fn other_bytes_with_the_same_crc_32c_are_other_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    let [one, other] = with_one_crc_32c();
    assert!(client.set_one("k", &memory(&one)) && client.set_one("k", &memory(&other)));
    assert_eq!(client.get_one("k", other.len()), Some(other.clone()));
    assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (2, 0));
    client.connector.close();
    overwrite(directory.path(), "k", &one);
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(client.get_one("k", one.len()), None, "not what was stored");
    assert_eq!(client.counter("checksum_mismatch"), 1);
}

#[test]
fn chunks_with_a_crc_32c_are_verified_by_it_and_stored_anew() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    let chunks: Vec<Memory> = (0..3).map(|number| Memory::patterned(LENGTH, 0, number)).collect();
    for (number, chunk) in (0..).zip(&chunks) {
        assert!(client.set_one(&key(number), chunk));
    }
    client.connector.close();
    (0..).zip(&chunks).for_each(|(slot, chunk)| make_old(directory.path(), slot, chunk.bytes()));
    overwrite(directory.path(), &key(1), &[0xff; 7]);

    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(client.connector.recovery().kept, 3);
    let found: Vec<_> = (0..3).map(|number| client.get_one(&key(number), LENGTH)).collect();
    assert_eq!(found[0].as_deref(), Some(chunks[0].bytes()));
    assert_eq!((&found[1], client.counter("checksum_mismatch")), (&None, 1));
    assert_eq!(found[2].as_deref(), Some(chunks[2].bytes()));

    // Its very bytes are stored once more, and then count as unchanged.
    assert!(client.set_one(&key(0), &chunks[0]));
    assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (1, 0));
    assert!(client.set_one(&key(0), &chunks[0]));
    assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (1, 1));
    client.connector.close();
    let client = Client::open(directory.path(), CAPACITY);
    let found: Vec<_> = [0, 2].map(|number| client.get_one(&key(number), LENGTH)).into();
    assert_eq!(found[0].as_deref(), Some(chunks[0].bytes()));
    assert_eq!(found[1].as_deref(), Some(chunks[2].bytes()));
    client.connector.close();
    let kinds: Vec<u8> = (0..4)
        .map(|slot| Record::read(directory.path(), slot))
        .filter(|record| record.0[12] == 1)
        .map(|record| record.0[KIND_AT])
        .collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == CRC_64_NVME).count(), 1, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == CRC_32C).count(), 1, "{kinds:?}");
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
