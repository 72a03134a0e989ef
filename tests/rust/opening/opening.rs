//! What opening makes of what the last owner left damaged.

use std::fs::{self, File};
use std::path::Path;

use crate::common::chunks::{filled, intact, length};
use crate::common::records::{RECORD_BYTES, RECORDS_AT, Record, overwrite};
use crate::common::{Client, Memory, has_data_files, layout, logged};
use kvring::{BLOCK_BYTES, Layout, list_chunks};

const CAPACITY: u64 = crate::common::chunks::CAPACITY;
const INDEX: &str = "index.kvring";

/// Whatever state its bytes give a record: a reader and the open count the same ones, and the open frees them.
#[test]
fn every_record_of_a_garbled_page_is_torn_once() {
    logged::keep();
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 40);
    for slot in 0..32 {
        let garbage = [slot as u8 % 16 + 1; RECORD_BYTES];
        overwrite(&directory.path().join(INDEX), RECORDS_AT + slot * RECORD_BYTES as u64, &garbage);
    }
    let listed = || {
        let mut chunks = list_chunks(directory.path(), None).unwrap();
        (chunks.by_ref().map(Result::unwrap).count(), chunks.damage().torn)
    };
    assert_eq!(listed(), (8, 32));
    let client = Client::open(directory.path(), CAPACITY);
    let recovery = client.connector.recovery();
    assert_eq!((recovery.kept, recovery.torn), (8, 32));
    let told = "8 chunks recovered after clean shutdown; lost: 32 torn";
    assert_eq!(logged::lines(directory.path(), told).len(), 1);
    client.connector.close();
    assert_eq!(listed(), (8, 0));
}

#[test]
fn records_behind_the_end_of_their_file_are_dropped() {
    if !has_data_files("its length is looked at when a chunk is read, tests/rust/layouts/files.rs")
    {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 10);
    let blocks: u64 = (0..5).map(|number| (length(number) as u64).div_ceil(BLOCK_BYTES)).sum();
    let data =
        File::options().write(true).open(directory.path().join("data-00000.kvring")).unwrap();
    data.set_len(blocks * BLOCK_BYTES).unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(
        (client.connector.recovery().kept, client.connector.recovery().out_of_range),
        (5, 5)
    );
    assert_eq!(intact(&client, 10), 5);
}

#[test]
fn of_two_records_for_one_place_or_key_the_younger_stays() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 2);
    // A copy of record 1 with an older generation in a free slot: the same key and the same place. Were it believed, the chunk would be a
    // miss.
    let mut older = Record::read(directory.path(), 1).with(32, &0_u64.to_le_bytes());
    older.0[64] ^= 0xff;
    older.write(directory.path(), 7);
    // And one at another place: the same key only.
    older.with(60, &1000_u32.to_le_bytes()).write(directory.path(), 8);
    let client = Client::open(directory.path(), CAPACITY);
    let recovery = client.connector.recovery();
    let thrown_out = (recovery.overlapping, recovery.duplicate, recovery.out_of_range);
    // A place of a number that no file has is none.
    let expected = if layout() == Layout::Extents { (1, 1, 0) } else { (1, 0, 1) };
    assert_eq!((recovery.kept, thrown_out), (2, expected));
    assert_eq!(intact(&client, 2), 2);
    client.connector.close();
    assert_eq!(Client::open(directory.path(), CAPACITY).connector.recovery().duplicate, 0);
}

#[test]
fn a_lost_index_costs_hits_and_nothing_else() {
    type Damage = fn(&Path);
    let kinds: [(&str, Damage); 5] = [
        ("missing", |index| fs::remove_file(index).unwrap()),
        ("empty", |index| fs::write(index, []).unwrap()),
        ("cut off", |index| File::options().write(true).open(index).unwrap().set_len(100).unwrap()),
        ("foreign", |index| fs::write(index, vec![7; 100_000]).unwrap()),
        ("damaged", |index| overwrite(index, 20, &[0xff; 8])),
    ];
    for (name, damage) in kinds {
        let directory = tempfile::tempdir().unwrap();
        filled(directory.path(), 5);
        damage(&directory.path().join(INDEX));
        let client = Client::open(directory.path(), CAPACITY);
        assert_eq!(intact(&client, 5), 0, "{name}");
        assert_eq!(client.connector.recovery().kept, 0, "{name}");
        assert!(client.connector.recovery().reset.is_some(), "{name}");
        assert!(!client.connector.recovery().clean_shutdown, "{name}");
        assert!(client.set_one("new", &Memory::patterned(9000, 0, 1)), "{name}");
        client.connector.close();
        assert!(Client::open(directory.path(), CAPACITY).get_one("new", 9000).is_some(), "{name}");
    }
}
