//! Damage, exhaustively: whatever is flipped, cut, swapped or mismatched, the store opens (or refuses a newer version),
//! and every key is exactly what was stored or a miss.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::chunks::{copy_all, place};
use crate::common::{Client, MIB, Memory, config, key, layout, pattern};
use kvring::{Connector, Layout, OpenError};

const CAPACITY: u64 = 64 * MIB;
const RECORDS_AT: usize = 4096;
const RECORD_BYTES: usize = 256;
/// A page of records: twelve keys with one each, and one key with a chain of four.
const KEYS: u64 = 13;
const RECORDS: usize = 16;

fn name(number: u64) -> String {
    if number == 12 { "long/".repeat(120) } else { key(number) }
}

fn length(number: u64) -> usize {
    1000 + 5000 * number as usize
}

/// A closed store, and what its index looked like.
struct Golden {
    directory: tempfile::TempDir,
    index: Vec<u8>,
    /// The files of chunks, where each has its own: opening removes those whose record is damaged.
    own_files: Vec<(PathBuf, Vec<u8>)>,
}

impl Golden {
    fn new(seed: u64) -> Self {
        // In memory: tens of thousands of opens and closes, each of which syncs.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let client = Client::open(directory.path(), CAPACITY);
        for number in 0..KEYS {
            let memory = Memory::patterned(length(number), 0, seed + number);
            assert!(client.set_one(&name(number), &memory));
        }
        client.connector.close();
        let mut index = fs::read(directory.path().join("index.kvring")).unwrap();
        assert_eq!(index[RECORDS_AT + (RECORDS - 1) * RECORD_BYTES + 12], 2, "the last key part");
        // The rest of the index is free records: left out, an open has less to read.
        index.truncate(RECORDS_AT + RECORDS * RECORD_BYTES);
        let own_files = match layout() {
            Layout::Extents => Vec::new(),
            Layout::Files => (0..KEYS)
                .map(|number| place(directory.path(), &name(number)).0)
                .map(|path| (path.clone(), fs::read(path).unwrap()))
                .collect(),
        };
        Self { directory, index, own_files }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn index_path(&self) -> PathBuf {
        self.path().join("index.kvring")
    }

    /// Opens the store with `index` for its sidecar and says which keys are there; each that is has the right bytes.
    fn open_with(&self, index: &[u8]) -> Result<Vec<bool>, OpenError> {
        fs::write(self.index_path(), index).unwrap();
        self.restore_own_files();
        self.open(0)
    }

    fn restore_own_files(&self) {
        for (path, bytes) in self.own_files.iter().filter(|(path, _)| !path.exists()) {
            fs::write(path, bytes).unwrap();
        }
    }

    fn open(&self, seed: u64) -> Result<Vec<bool>, OpenError> {
        // A damaged time of last use says nothing here.
        let mut config = config(self.path(), CAPACITY);
        config.ttl = None;
        let client = Client::from(Connector::open(config)?);
        let memory: Vec<Memory> = (0..KEYS).map(|number| Memory::new(length(number), 0)).collect();
        let keys: Vec<String> = (0..KEYS).map(name).collect();
        let completion = client.get(&keys, &memory);
        assert!(completion.ok, "{}", completion.error);
        for (number, hit) in (0..KEYS).zip(&completion.results) {
            let memory = &memory[number as usize];
            assert!(
                !hit || memory.bytes() == pattern(length(number), seed + number),
                "key {number}"
            );
        }
        assert_eq!(client.exists(&keys), completion.results, "a miss is the end of it");
        Ok(completion.results)
    }

    /// Whether the places of what was lost can be used again. Spoils the store for further damage.
    fn assert_usable(&self) {
        let client = Client::open(self.path(), CAPACITY);
        for number in 100..200 {
            assert!(client.set_one(&key(number), &Memory::patterned(5000, 0, number)));
        }
        for number in 100..200 {
            assert_eq!(client.get_one(&key(number), 5000).unwrap(), pattern(5000, number));
        }
        client.connector.close();
        self.open(0).unwrap();
    }
}

fn count(hits: &[bool]) -> usize {
    hits.iter().filter(|hit| **hit).count()
}

#[test]
fn every_bit_of_header_and_session() {
    let golden = Golden::new(0);
    for bit in (0..48 * 8).chain(512 * 8..(512 + 112) * 8) {
        let mut index = golden.index.clone();
        index[bit / 8] ^= 1 << (bit % 8);
        let version = u32::from_le_bytes(index[8..12].try_into().unwrap());
        match golden.open_with(&index) {
            Ok(hits) => {
                assert!(version <= 1, "bit {bit}");
                // The session block costs nothing; without a header there is no index.
                let expected = if bit < 48 * 8 { 0 } else { KEYS as usize };
                assert_eq!(count(&hits), expected, "bit {bit}");
            }
            Err(OpenError::NewerFormat { found, .. }) => {
                assert!(found == version && version > 1, "bit {bit}");
                assert!(fs::read(golden.index_path()).unwrap() == index, "it was not left alone");
            }
            Err(error) => panic!("bit {bit}: {error}"),
        }
    }
}

/// A flipped bit of a record costs that record's key at most.
fn every_bit_of_records(records: std::ops::Range<usize>) {
    let golden = Golden::new(0);
    for bit in records.start * RECORD_BYTES * 8..records.end * RECORD_BYTES * 8 {
        let mut index = golden.index.clone();
        index[RECORDS_AT + bit / 8] ^= 1 << (bit % 8);
        let hits = golden.open_with(&index).unwrap();
        let in_last_used = bit / 8 % RECORD_BYTES < 8;
        let expected = if in_last_used { KEYS } else { KEYS - 1 };
        assert_eq!(count(&hits), expected as usize, "bit {bit}");
    }
    golden.assert_usable();
}

#[test]
fn every_bit_of_a_page_of_records_first_half() {
    every_bit_of_records(0..RECORDS / 2);
}

#[test]
fn every_bit_of_a_page_of_records_second_half() {
    every_bit_of_records(RECORDS / 2..RECORDS);
}

#[test]
fn cut_at_every_record_and_anywhere() {
    let golden = Golden::new(0);
    let boundaries = (0..=RECORDS).map(|record| RECORDS_AT + record * RECORD_BYTES);
    let anywhere = (0..100).map(|number| number * 7919 % golden.index.len());
    for length in boundaries.chain(anywhere) {
        let hits = golden.open_with(&golden.index[..length]).unwrap();
        let whole_records = length.saturating_sub(RECORDS_AT) / RECORD_BYTES;
        let expected = if whole_records == RECORDS { KEYS as usize } else { whole_records.min(12) };
        assert_eq!(count(&hits), expected, "{length} bytes");
    }
    golden.assert_usable();
}

fn edit(path: &Path, offset: u64, change: impl FnOnce(&mut u8)) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    change(&mut byte[0]);
    file.write_all_at(&byte, offset).unwrap();
}

#[test]
fn a_flipped_bit_in_a_thousand_payload_places() {
    let golden = Golden::new(0);
    let places: Vec<_> = (0..KEYS).map(|number| place(golden.path(), &name(number))).collect();
    let mut state = 1_u64;
    for _ in 0..1000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = (state >> 33) % KEYS;
        let (file, start) = &places[number as usize];
        let offset = start + (state >> 20) % length(number) as u64;
        let mask = 1 << ((state >> 50) % 8);
        golden.restore_own_files();
        edit(file, offset, |byte| *byte ^= mask);
        let hits = golden.open_with(&golden.index).unwrap();
        // The file of a chunk that was found damaged is gone.
        if file.exists() {
            edit(file, offset, |byte| *byte ^= mask);
        }
        assert!(!hits[number as usize] && count(&hits) == KEYS as usize - 1, "key {number}");
    }
    assert_eq!(count(&golden.open_with(&golden.index).unwrap()), KEYS as usize, "all undone");
}

#[test]
fn an_index_with_the_data_of_another_store() {
    let (golden, other) = (Golden::new(0), Golden::new(1000));
    for (index, data) in [(&golden, &other), (&other, &golden)] {
        let mixed = Golden {
            directory: tempfile::tempdir_in("/dev/shm").unwrap(),
            index: golden.index.clone(),
            own_files: Vec::new(),
        };
        // Files have the names that they would have in the other store, so that they are found.
        copy_all(data.path(), mixed.path());
        fs::copy(index.index_path(), mixed.index_path()).unwrap();
        assert_eq!(count(&mixed.open(0).unwrap()), 0);
    }
}
