//! A store opens with the same content, whatever the number of threads that read its index: also a damaged one, that was not closed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::common::chunks::copy_all;
use crate::common::random::Random;
use crate::common::records::{RECORD_BYTES, RECORDS_AT, Record, index_of};
use crate::common::{Client, MIB, Memory, config, has_data_files};
use blake2::digest::consts::U16;
use blake2::{Blake2b, Digest};
use kvring::{Eviction, Recovery};

const CAPACITY: u64 = 512 * MIB;
const RECORDS: u32 = 40_000;
/// Blocks of the data file.
const BLOCKS: u32 = 60_000;
const KEY_PART: usize = 168;
const SESSION_AT: u64 = 512;
const SESSION_BYTES: usize = 112;

fn record(state: u8, digest: [u8; 16], generation: u64, length: u64) -> Record {
    Record([0; RECORD_BYTES])
        .with(12, &[state])
        .with(16, &digest)
        .with(32, &generation.to_le_bytes())
        .with(40, &length.to_le_bytes())
        .with(80, &u32::MAX.to_le_bytes())
}

fn digest_of(text: &str) -> [u8; 16] {
    Blake2b::<U16>::digest(text.as_bytes()).into()
}

/// Records of chunks, whole and damaged in every way, some with keys of two parts.
fn made_up(random: &mut Random) -> Vec<u8> {
    let now_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let mut records = Vec::new();
    let mut slot = 0;
    while slot < RECORDS {
        // Few, so that of some two records neither is the younger one.
        let generation = 1 + random.below(50);
        // Fewer keys than records, so some have several.
        let (model, number) = (random.below(4), random.below(30_000));
        let mut key = format!("model{model}@0@0@{number}");
        let is_long = random.below(10) == 0;
        if is_long {
            key.extend(std::iter::repeat_n('x', 200 - key.len()));
        }
        let forged = if random.below(20) == 0 { &format!("{key}, another") } else { &key };
        let digest = digest_of(forged);
        // Some have not been used for longer than `ttl`.
        let used_ms = now_ms - random.below(3) * random.below(3) * 1_800_000;
        let first_part = &key.as_bytes()[..key.len().min(KEY_PART)];
        let head = record(1, digest, generation, 1 + random.below(5 * 4096))
            .with(0, &(used_ms / 100_000 * 100_000).to_le_bytes())
            .with(14, &(key.len() as u16).to_le_bytes())
            .with(60, &(random.below(u64::from(BLOCKS) + 100) as u32).to_le_bytes())
            .with(72, &digest_of(&format!("model{model}\0"))[..8])
            .with(88, first_part);
        let next = if random.below(8) == 0 { slot - slot.min(1) } else { slot + 1 };
        let head = if is_long { head.with(80, &next.to_le_bytes()) } else { head };
        let mut parts = vec![head.sealed()];
        if is_long {
            let part = record(2, digest, generation, 1).with(88, &key.as_bytes()[KEY_PART..]);
            parts.push(part.sealed());
            if random.below(4) == 0 {
                // A second head that leads to the same part.
                let twin = head.with(80, &(slot + 1).to_le_bytes());
                parts.push(twin.sealed());
            }
        }
        for mut part in parts {
            if random.below(30) == 0 {
                part[random.below(RECORD_BYTES as u64) as usize] ^= 1;
            }
            records.extend(part);
            slot += 1;
        }
    }
    records
}

/// Opens a store with so many threads; returns what it has, and the index that it leaves.
fn opened(path: &Path, threads: usize, eviction: Eviction) -> (Recovery, Vec<String>, Vec<u8>) {
    let mut config = config(path, CAPACITY);
    (config.eviction, config.ttl) = (eviction, Some(Duration::from_secs(3600)));
    (config.tuning.open_threads, config.tuning.high_watermark) = (Some(threads), 1.0);
    let client = Client::with(config);
    client.assert_consistent();
    let recovery = client.connector.recovery().clone();
    let mut keys = Vec::new();
    for (namespace, _) in client.connector.usage().unwrap() {
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let (some, next) = client.connector.keys(&namespace, from, 1000).unwrap();
            keys.extend(some.into_iter().map(|(key, _)| format!("{namespace}: {key}")));
            cursor = next;
        }
    }
    keys.sort();
    client.connector.close();
    let mut index = vec![0; RECORDS as usize * RECORD_BYTES];
    File::open(index_of(path)).unwrap().read_exact_at(&mut index, RECORDS_AT).unwrap();
    (recovery, keys, index)
}

#[test]
fn any_number_of_threads_opens_the_same() {
    if !has_data_files("records of made-up extents") {
        return;
    }
    for (seed, eviction) in [(1, Eviction::Lru), (2, Eviction::Fifo), (3, Eviction::Adaptive)] {
        let directory = tempfile::tempdir().unwrap();
        let first = directory.path().join("1");
        let client = Client::open(&first, CAPACITY);
        assert!(client.set_one("first", &Memory::patterned(4096, 0, 1)));
        client.connector.close();
        let data = File::options().write(true).open(first.join("data-00000.kvring")).unwrap();
        data.set_len(u64::from(BLOCKS) * 4096 / MIB * MIB).unwrap();
        let records = made_up(&mut Random::new(seed));
        let index = File::options().read(true).write(true).open(index_of(&first)).unwrap();
        index.set_len(RECORDS_AT + (records.len() as u64).next_multiple_of(MIB)).unwrap();
        index.write_all_at(&records, RECORDS_AT).unwrap();
        mark_unclean(&index);
        let copies = [2, 3, 8].map(|threads| (threads, directory.path().join(threads.to_string())));
        copies.iter().for_each(|(_, copy)| copy_all(&first, copy));
        let expected = opened(&first, 1, eviction);
        let found = &expected.0;
        let dropped =
            [found.torn, found.out_of_range, found.overlapping, found.duplicate, found.expired];
        assert!(found.kept > 1000 && dropped.iter().all(|count| *count > 50), "{found:?}");
        assert!(!found.clean_shutdown, "{found:?}");
        assert_eq!(expected.1.len() as u64, found.kept);
        for (threads, copy) in copies {
            let (recovery, keys, index) = opened(&copy, threads, eviction);
            assert_eq!(recovery, expected.0, "with {threads} threads");
            assert!(keys == expected.1, "other keys with {threads} threads");
            assert!(index == expected.2, "another index with {threads} threads");
        }
    }
}

/// As a process leaves it that was killed.
fn mark_unclean(index: &File) {
    let mut session = [0; SESSION_BYTES];
    index.read_exact_at(&mut session, SESSION_AT).unwrap();
    session[0] = 0;
    let checksum = crc32c::crc32c(&session[..SESSION_BYTES - 4]);
    session[SESSION_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    index.write_all_at(&session, SESSION_AT).unwrap();
}
