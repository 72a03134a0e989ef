//! An index that somebody made up, each record with the checksum that it should have: opening stays linear and in bounds, what
//! makes no sense is freed and counted, and the store goes on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::common::records::{RECORD_BYTES, RECORDS_AT, Record, index_of};
use crate::common::{Client, MIB, Memory, eventually, has_data_files, key};
use blake2::digest::consts::U16;
use blake2::{Blake2b, Digest};
use kvring::testing::{FileOperations, SystemFiles};

const CAPACITY: u64 = 64 * MIB;
const LENGTH: usize = 5000;
const SESSION_AT: u64 = 512;
const SESSION_BYTES: usize = 112;

/// Where a record tells these.
const KIND_AT: usize = 13;
const KEY_LENGTH_AT: usize = 14;
const DIGEST_AT: usize = 16;
const GENERATION_AT: usize = 32;
const LENGTH_AT: usize = 40;
const FIRST_BLOCK_AT: usize = 60;
const NEXT_SLOT_AT: usize = 80;
const KEY_AT: usize = 88;

/// No linear pass over some 100,000 records takes as long, on whatever machine; a quadratic one does.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// A store with chunks 0 to 2, closed.
fn three_chunks() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    client.fill(0..3, LENGTH);
    client.connector.close();
    directory
}

fn held(client: &Client, count: u64) -> usize {
    (0..count).filter(|number| client.get_one(&key(*number), LENGTH).is_some()).count()
}

/// Opens the store; it takes a chunk, which is there for the next two sessions as well. Returns `torn` and `kept`.
fn goes_on(directory: &Path) -> (u64, u64) {
    let client = Client::open(directory, CAPACITY);
    let recovery = client.connector.recovery().clone();
    assert!(client.set_one("new", &Memory::patterned(LENGTH, 0, 9)));
    client.connector.close();
    for _ in 0..2 {
        let client = Client::open(directory, CAPACITY);
        assert_eq!(
            (client.connector.recovery().torn, &client.connector.recovery().reset),
            (0, &None)
        );
        assert!(client.get_one("new", LENGTH).is_some());
        client.connector.close();
    }
    (recovery.torn, recovery.kept)
}

#[test]
fn fields_that_make_no_sense_are_freed() {
    for (at, bytes) in [
        (LENGTH_AT, u64::from(u32::MAX).to_le_bytes().to_vec()),
        (LENGTH_AT, ((2_u64 << 30) + 1).to_le_bytes().to_vec()),
        (LENGTH_AT, u64::MAX.to_le_bytes().to_vec()),
        (LENGTH_AT, 0_u64.to_le_bytes().to_vec()),
        (KEY_LENGTH_AT, 4097_u16.to_le_bytes().to_vec()),
        (KEY_LENGTH_AT, u16::MAX.to_le_bytes().to_vec()),
        (KIND_AT, vec![2]),
        (GENERATION_AT, u64::MAX.to_le_bytes().to_vec()),
        (GENERATION_AT, (1_u64 << 63).to_le_bytes().to_vec()),
        (NEXT_SLOT_AT, 0_u32.to_le_bytes().to_vec()),
    ] {
        let directory = three_chunks();
        Record::read(directory.path(), 1).with(at, &bytes).write(directory.path(), 1);
        assert_eq!(goes_on(directory.path()), (1, 2), "{bytes:?} at {at}");
    }
}

/// Below the bound, and nothing is above it: the store starts anew rather than end with this session.
#[test]
fn generations_that_are_used_up_start_again() {
    let directory = three_chunks();
    let last = ((1_u64 << 63) - 1).to_le_bytes();
    Record::read(directory.path(), 1).with(GENERATION_AT, &last).write(directory.path(), 1);
    assert_eq!(goes_on(directory.path()), (0, 0));
}

/// What is left of a record that was cut off with the end of the file stays gone when the file grows, although all of its bytes
/// but zeros are left.
#[test]
fn a_record_that_was_cut_off_does_not_come_back() {
    let directory = three_chunks();
    let last = 1000;
    Record::read(directory.path(), 2).write(directory.path(), last);
    let index = File::options().write(true).open(index_of(directory.path())).unwrap();
    let at = |slot: u64| RECORDS_AT + slot * RECORD_BYTES as u64;
    index.write_all_at(&[0; RECORD_BYTES], at(2)).unwrap();
    index.set_len(at(last) + 200).unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert!(client.connector.recovery().truncated);
    assert_eq!(held(&client, 3), 2);
    // Few free records are left, so the file grows ahead of need.
    assert!(client.set_one("new", &Memory::patterned(LENGTH, 0, 9)));
    eventually("the index grows", || index.metadata().unwrap().len() > at(2 * last));
    client.connector.close();
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!((held(&client, 3), client.connector.recovery().kept), (2, 3));
    assert!(!client.connector.recovery().truncated, "it is told once");
    client.connector.close();
}

/// It is not closed in order, also if the file is as long again by then.
#[test]
fn an_index_that_was_cut_short_while_it_was_open_is_not_closed_in_order() {
    for becomes_long_again in [false, true] {
        let directory = three_chunks();
        let index = File::options().write(true).open(index_of(directory.path())).unwrap();
        let whole_bytes = index.metadata().unwrap().len();
        let client = Client::open(directory.path(), CAPACITY);
        index.set_len(RECORDS_AT + RECORD_BYTES as u64).unwrap();
        if becomes_long_again {
            assert!(client.set_one("new", &Memory::patterned(LENGTH, 0, 9)));
            index.set_len(whole_bytes).unwrap();
        }
        assert!(!client.connector.close().clean, "{becomes_long_again}");
        let client = Client::open(directory.path(), CAPACITY);
        let recovery = client.connector.recovery();
        let kept = 1 + u64::from(becomes_long_again);
        assert_eq!((recovery.clean_shutdown, recovery.kept), (false, kept));
        assert!(client.connector.close().clean);
    }
}

#[test]
fn a_session_block_that_makes_no_sense_counts_as_absent() {
    for generation in [u64::MAX, 1 << 63] {
        let directory = three_chunks();
        let index =
            File::options().read(true).write(true).open(index_of(directory.path())).unwrap();
        let mut session = [0; SESSION_BYTES];
        index.read_exact_at(&mut session, SESSION_AT).unwrap();
        session[16..24].copy_from_slice(&generation.to_le_bytes());
        let checksum = crc32c::crc32c(&session[..SESSION_BYTES - 4]);
        session[SESSION_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        index.write_all_at(&session, SESSION_AT).unwrap();
        assert_eq!(goes_on(directory.path()), (0, 3));
    }
}

// --- many records ---

fn digest_of(key: &str) -> [u8; 16] {
    Blake2b::<U16>::digest(key.as_bytes()).into()
}

/// The record of a chunk of one block.
fn made_up(key: &str, digest: [u8; 16], generation: u64, first_block: u32) -> Record {
    let now_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    Record([0; RECORD_BYTES])
        .with(0, &now_ms.to_le_bytes())
        .with(12, &[1])
        .with(KEY_LENGTH_AT, &(key.len() as u16).to_le_bytes())
        .with(DIGEST_AT, &digest)
        .with(GENERATION_AT, &generation.to_le_bytes())
        .with(LENGTH_AT, &4096_u64.to_le_bytes())
        .with(FIRST_BLOCK_AT, &first_block.to_le_bytes())
        .with(NEXT_SLOT_AT, &u32::MAX.to_le_bytes())
        .with(KEY_AT, key.as_bytes())
}

/// Opens a store whose index is these records, with a data file as long as they need.
fn opened_with(count: u32, record: impl Fn(u32) -> Record) -> (tempfile::TempDir, Client) {
    let directory = three_chunks();
    let path = directory.path();
    let blocks = u64::from(count) + 1;
    let data = File::options().write(true).open(path.join("data-00000.kvring")).unwrap();
    data.set_len((blocks * 4096).max(64 * MIB)).unwrap();
    let records: Vec<u8> = (0..count).flat_map(|number| record(number).sealed()).collect();
    let index = File::options().write(true).open(index_of(path)).unwrap();
    index.set_len(RECORDS_AT + (records.len() as u64).next_multiple_of(MIB)).unwrap();
    index.write_all_at(&records, RECORDS_AT).unwrap();
    let start = Instant::now();
    let client = Client::open(path, 16 * 4096 * blocks);
    assert!(start.elapsed() < HANG_TIMEOUT, "{:?} for {count} records", start.elapsed());
    (directory, client)
}

/// Each key has two records; the older one comes first.
#[test]
fn many_duplicates_take_no_time() {
    if !has_data_files("two records of one place") {
        return;
    }
    let keys = 150_000;
    let (_directory, client) = opened_with(2 * keys, |number| {
        let key = key((number % keys).into());
        made_up(&key, digest_of(&key), u64::from(number) + 1, number)
    });
    let recovery = client.connector.recovery();
    assert_eq!((recovery.kept, recovery.duplicate), (keys.into(), keys.into()));
    client.assert_consistent();
    client.connector.close();
}

#[test]
fn many_overlaps_take_no_time() {
    if !has_data_files("two records of one place") {
        return;
    }
    let count = 200_000;
    for is_ascending in [true, false] {
        let (_directory, client) = opened_with(count, |number| {
            let key = key(number.into());
            let generation = if is_ascending { number + 1 } else { count - number };
            made_up(&key, digest_of(&key), generation.into(), 7)
        });
        let recovery = client.connector.recovery();
        assert_eq!((recovery.kept, recovery.overlapping), (1, u64::from(count) - 1));
        client.connector.close();
    }
}

/// Digests that nobody's keys have, which all lead to one place of one table.
#[test]
fn forged_digests_make_no_search_long() {
    if !has_data_files("two records of one place") {
        return;
    }
    let count = 100_000;
    let (_directory, client) = opened_with(count, |number| {
        let mut digest = [7; 16];
        digest[..4].copy_from_slice(&number.to_le_bytes());
        made_up(&key(number.into()), digest, u64::from(number) + 1, number)
    });
    let recovery = client.connector.recovery();
    assert!(recovery.kept < 1000, "{recovery:?}");
    assert_eq!(recovery.kept + recovery.torn, count.into());
    assert_eq!(held(&client, 3), 0, "what is kept of them is found by no key");
    assert!(client.set_one("new", &Memory::patterned(LENGTH, 0, 9)));
    client.assert_consistent();
    client.connector.close();
}

/// A key whose place in the table is full of forged digests is searched for longer, and found.
#[test]
fn a_key_among_forged_digests_is_found() {
    if !has_data_files("two records of one place") {
        return;
    }
    let (count, digest) = (300, digest_of(&key(0)));
    let (_directory, client) = opened_with(count, |number| {
        let mut forged = digest;
        forged[..4].copy_from_slice(&number.to_le_bytes());
        let (key, digest) = match number + 1 == count {
            true => (key(0), digest),
            false => (key(1 + u64::from(number)), forged),
        };
        made_up(&key, digest, u64::from(number) + 1, number)
    });
    let recovery = client.connector.recovery();
    // What is found soon enough is not held against its key.
    assert!(recovery.torn > 0 && recovery.kept > 1, "{recovery:?}");
    assert_eq!(recovery.kept + recovery.torn, count.into());
    assert!(client.get_one(&key(0), 4096).is_some());
    client.connector.close();
}

/// Counts the syncs of files.
#[derive(Debug, Default)]
struct Syncs(AtomicU64);

impl FileOperations for Syncs {
    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        SystemFiles.sync_data(file)
    }
}

/// The younger record of a key is durable before the older one goes.
#[test]
fn nothing_goes_before_what_replaces_it_is_durable() {
    if !has_data_files("two records of one place") {
        return;
    }
    let syncs_of = |keys: u32| {
        let directory = three_chunks();
        for number in 0..6 {
            let key = key((number % keys).into());
            let record = made_up(&key, digest_of(&key), u64::from(number) + 1, number);
            record.write(directory.path(), number.into());
        }
        let syncs = Arc::new(Syncs::default());
        let mut config = crate::common::config(directory.path(), CAPACITY);
        config.files = Arc::<Syncs>::clone(&syncs);
        let client = Client::with(config);
        let at_open = syncs.0.load(Ordering::Relaxed);
        assert_eq!(client.connector.recovery().kept, keys.into());
        client.connector.close();
        at_open
    };
    let without = syncs_of(6);
    assert!(syncs_of(3) > without, "{without}");
}
