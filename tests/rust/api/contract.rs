//! The contract with LMCache, line by line, through the core crate.

use crate::common::{Client, MIB, Memory, key, pattern};
use kvring::{BLOCK_BYTES, SubmitError};

const BLOCK: usize = BLOCK_BYTES as usize;

fn open() -> (tempfile::TempDir, Client) {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 256 * MIB);
    (directory, client)
}

/// Lines 1 to 3: any length, any address, mixed in one batch.
#[test]
fn any_length_at_any_address() {
    let (_directory, client) = open();
    let lengths = [
        1,
        511,
        512,
        4095,
        4096,
        4097,
        522_240,
        MIB as usize,
        2 * MIB as usize + 1,
        5 * MIB as usize - 3,
    ];
    let shifts = [0, 1, 7, 512, 2048];
    let all: Vec<(usize, usize)> =
        lengths.iter().flat_map(|length| shifts.map(|shift| (*length, shift))).collect();
    let keys: Vec<String> = (0..all.len() as u64).map(key).collect();
    let stored: Vec<Memory> = all
        .iter()
        .zip(0..)
        .map(|((length, shift), seed)| Memory::patterned(*length, *shift, seed))
        .collect();
    let completion = client.set(&keys, &stored);
    assert!(
        completion.ok && completion.results.iter().all(|stored| *stored),
        "{}",
        completion.error
    );

    // Loaded to other alignments than they were stored from.
    let loaded: Vec<Memory> =
        all.iter().map(|(length, shift)| Memory::new(*length, (shift + 1) % BLOCK)).collect();
    let completion = client.get(&keys, &loaded);
    assert!(completion.ok && completion.results.iter().all(|hit| *hit));
    for (stored, loaded) in stored.iter().zip(&loaded) {
        assert!(stored.bytes() == loaded.bytes());
    }
}

/// The aligned path copies nothing: no byte for whole blocks, less than a block for an odd length.
#[test]
fn aligned_memory_is_not_copied() {
    let (_directory, client) = open();
    let whole = Memory::patterned(3 * MIB as usize, 0, 1);
    assert!(client.set_one("whole", &whole));
    assert_eq!(client.get_one("whole", 3 * MIB as usize).as_deref(), Some(whole.bytes()));
    assert_eq!(client.counter("bounced_bytes"), 0);
    let odd = Memory::patterned(522_240, 0, 2);
    assert!(client.set_one("odd", &odd));
    assert_eq!(client.counter("bounced_bytes"), 522_240 % BLOCK_BYTES);
    assert_eq!(client.get_one("odd", 522_240).as_deref(), Some(odd.bytes()));
    assert_eq!(client.counter("bounced_bytes"), 2 * (522_240 % BLOCK_BYTES));
}

/// Line 9: a miss is a normal answer, in its own place, and leaves its buffer as it was.
#[test]
fn misses_leave_their_buffers_alone() {
    let (_directory, client) = open();
    assert!(client.set_one(&key(1), &Memory::patterned(10_000, 0, 1)));
    assert!(client.set_one(&key(3), &Memory::patterned(10_000, 0, 3)));
    let memory: Vec<Memory> = (0..4).map(|_| Memory::patterned(10_000, 0, 99)).collect();
    let wrong_length = Memory::patterned(9_999, 0, 98);
    let keys: Vec<String> = [1, 2, 3, 1].map(key).into();
    let completion = client.get(&keys, &[&memory[0], &memory[1], &memory[2], &wrong_length]);
    assert!(completion.ok && completion.error.is_empty());
    assert_eq!(completion.results, [true, false, true, false]);
    assert!(memory[0].bytes() == pattern(10_000, 1) && memory[2].bytes() == pattern(10_000, 3));
    assert!(memory[1].bytes() == pattern(10_000, 99) && wrong_length.bytes() == pattern(9_999, 98));
}

/// Line 11: an empty batch completes; a wrong argument is refused before anything is queued.
#[test]
fn empty_batches_and_wrong_arguments() {
    let (_directory, client) = open();
    let none: [Memory; 0] = [];
    for id in [client.submit_set(&[], &none), client.submit_get(&[], &none)] {
        let completion = client.wait(id);
        assert!(completion.ok && completion.results.is_empty());
    }
    assert!(client.exists(&[]).is_empty() && client.delete(&[]).is_empty());

    let memory = Memory::patterned(4096, 0, 1);
    let long = "k".repeat(4097);
    let refuse = |keys: &[&str], buffers: &[kvring::CallerBuffer]| {
        client.connector.submit_set(keys, buffers, Box::new(())).unwrap_err()
    };
    let error = refuse(&["good", "other"], &[memory.buffer()]);
    assert!(matches!(error, SubmitError::CountMismatch { keys: 2, buffers: 1 }), "{error}");
    let error = refuse(&["good", &long], &[memory.buffer(), memory.buffer()]);
    assert!(
        matches!(error, SubmitError::KeyTooLong { position: 1, length_bytes: 4097 }),
        "{error}"
    );
    let error = refuse(&["good", "empty"], &[memory.buffer(), Memory::new(0, 0).buffer()]);
    assert!(matches!(error, SubmitError::EmptyChunk { position: 1 }), "{error}");
    assert_eq!(client.exists(&["good".to_owned()]), [false]);
    assert_eq!(client.connector.stats().in_flight, 0);
}

/// Line 12: the same bytes are not written again; other bytes or another length replace the chunk.
#[test]
fn storing_again() {
    let (_directory, client) = open();
    let first = Memory::patterned(100_000, 0, 1);
    assert!(client.set_one("k", &first) && client.set_one("k", &first));
    assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (1, 1));
    // In several pieces, of which the first one tells; it is compared in turns, the last one shorter, to its last byte.
    let mut bytes = pattern((5 * MIB + 77) as usize, 4);
    let long = Memory::new(bytes.len(), 0);
    long.fill(&bytes);
    assert!(client.set_one("long", &long) && client.set_one("long", &long));
    assert_eq!((client.counter("set_stored"), client.counter("set_unchanged")), (2, 2));
    *bytes.last_mut().unwrap() ^= 1;
    long.fill(&bytes);
    assert!(client.set_one("long", &long));
    assert_eq!(client.counter("set_unchanged"), 2);
    assert_eq!(client.get_one("long", bytes.len()).unwrap(), bytes);
    assert_eq!(client.delete(&["long".to_owned()]), [true]);
    assert!(client.set_one("k", &Memory::patterned(100_000, 0, 2)));
    assert_eq!(client.get_one("k", 100_000).unwrap(), pattern(100_000, 2));
    assert!(client.set_one("k", &Memory::patterned(5_000, 0, 3)));
    assert_eq!(client.get_one("k", 100_000), None);
    assert_eq!(client.get_one("k", 5_000).unwrap(), pattern(5_000, 3));
    client.assert_consistent();
    let stats = client.connector.stats();
    assert_eq!(
        (stats.keys, stats.stored_bytes, stats.allocated_bytes),
        (1, 5_000, 2 * BLOCK_BYTES)
    );
}

/// Line 14: operations on one key keep their order, submitted without waiting for each other. What a SET replaces may be
/// read until that is answered.
#[test]
fn order_per_key() {
    let (_directory, client) = open();
    let length = 3 * MIB as usize;
    let name = [key(1)];
    for round in 0..30 {
        let (old, new) =
            (Memory::patterned(length, 0, round), Memory::patterned(length, 0, round + 1000));
        let [read, gone] = [0, 1].map(|_| Memory::new(length, 0));
        let ids = [
            client.submit_set(&name, &[&old]),
            client.submit_set(&name, &[&new]),
            client.connector.submit_delete(&name).unwrap(),
            client.submit_get(&name, &[&gone]),
            client.connector.submit_exists(&name).unwrap(),
            client.submit_set(&name, &[&new]),
            client.submit_set(&name, &[&old]),
        ];
        let hits: Vec<bool> = ids.iter().map(|id| client.wait(*id).results[0]).collect();
        assert_eq!(hits, [true, true, true, false, false, true, true], "round {round}");
        assert_eq!(client.get(&name, &[&read]).results, [true]);
        assert!(read.bytes() == old.bytes(), "round {round}");
        client.delete(&name);
        assert_eq!(client.exists(&name), [false]);
    }
    let small = Memory::patterned(4096, 0, 1);
    assert!(client.set_one("after", &small));
    client.assert_consistent();
    assert_eq!(client.connector.stats().allocated_bytes, BLOCK_BYTES, "places were lost");
}

/// A delete that is answered while the SET before it is still being written holds for the next start too.
#[test]
fn a_set_that_was_deleted_on_its_way_does_not_come_back() {
    let (directory, client) = open();
    // So long that the delete comes before its end.
    let memory = Memory::patterned(64 * MIB as usize, 0, 1);
    let name = [key(1)];
    let id = client.submit_set(&name, &[&memory]);
    assert_eq!(client.delete(&name), [true]);
    assert!(client.wait(id).ok);
    assert_eq!(client.exists(&name), [false]);
    client.connector.close();
    // Not even for a moment: a kill between publishing and deleting would bring it back.
    let index = std::fs::read(directory.path().join("index.kvring")).unwrap();
    let written = index.windows(name[0].len()).any(|window| window == name[0].as_bytes());
    assert!(!written, "a record was written");
    assert_eq!(Client::open(directory.path(), 256 * MIB).exists(&name), [false]);
}

/// Readers that were there before a delete or a replacement still get their bytes, and the place is free afterwards.
#[test]
fn readers_outlive_deletes() {
    let (_directory, client) = open();
    let length = 4 * MIB as usize;
    let name = [key(1)];
    for round in 0..20 {
        assert!(client.set_one(&name[0], &Memory::patterned(length, 0, round)));
        let reads: Vec<Memory> = (0..4).map(|_| Memory::new(length, 0)).collect();
        let ids: Vec<u64> =
            reads.iter().map(|memory| client.submit_get(&name, &[memory])).collect();
        assert_eq!(client.delete(&name), [true]);
        // Wants the very place that is being read.
        let other = client.submit_set(&[key(2)], &[&Memory::patterned(length, 0, round + 500)]);
        for (id, memory) in ids.iter().zip(&reads) {
            assert_eq!(client.wait(*id).results, [true]);
            assert!(memory.bytes() == pattern(length, round), "round {round}");
        }
        assert!(client.wait(other).ok);
        client.delete(&[key(2)]);
    }
    assert!(client.set_one("after", &Memory::patterned(1, 0, 1)));
    client.assert_consistent();
    assert_eq!(client.connector.stats().allocated_bytes, BLOCK_BYTES);
}

/// Keys of every length up to the limit are kept exactly, and told apart.
#[test]
fn long_keys() {
    let (directory, client) = open();
    let mut keys: Vec<String> = [0, 1, 167, 168, 169, 336, 337, 4095, 4096]
        .iter()
        .map(|length| "k".repeat(*length))
        .collect();
    keys.push("ключ/模型@".repeat(100));
    for (key, seed) in keys.iter().zip(0..) {
        assert!(client.set_one(key, &Memory::patterned(4096 + seed as usize, 0, seed)));
    }
    client.delete(&keys[3..4]);
    client.connector.close();
    let client = Client::open(directory.path(), 256 * MIB);
    for (key, seed) in keys.iter().zip(0..) {
        let expected = (seed != 3).then(|| pattern(4096 + seed as usize, seed));
        assert_eq!(client.get_one(key, 4096 + seed as usize), expected, "{} bytes", key.len());
    }
}
