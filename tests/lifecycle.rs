//! Opening, closing, restarting, filling up, and what damage between two lives leads to.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Client, MIB, Memory, config, key, pattern};
use kvring::{BLOCK_BYTES, Connector, OpenError, SubmitError};

const CAPACITY: u64 = 256 * MIB;
const INDEX: &str = "index.kvring";
const HEADER_BYTES: u64 = 4096;
const RECORD_BYTES: u64 = 256;

/// Stores chunks of several lengths under keys 0 to `count`, and closes.
fn filled(directory: &Path, count: u64) {
    let client = Client::open(directory, CAPACITY);
    for number in 0..count {
        assert!(client.set_one(&key(number), &Memory::patterned(length(number), 0, number)));
    }
    client.connector.close();
}

fn length(number: u64) -> usize {
    4096 + 1111 * number as usize
}

/// What all files of a store take.
fn on_disk_bytes(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

/// How many of the chunks of `filled` are there; each one that is has the right bytes.
fn intact(client: &Client, count: u64) -> u64 {
    (0..count)
        .filter(|number| {
            let found = client.get_one(&key(*number), length(*number));
            assert!(found.as_ref().is_none_or(|bytes| *bytes == pattern(length(*number), *number)));
            found.is_some()
        })
        .count() as u64
}

#[test]
fn everything_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 50);
    for _ in 0..3 {
        let client = Client::open(directory.path(), CAPACITY);
        assert!(client.connector.recovery().clean_shutdown);
        assert_eq!(client.connector.recovery().kept, 50);
        assert_eq!(client.exists(&(0..50).map(key).collect::<Vec<_>>()), [true; 50]);
        assert_eq!(intact(&client, 50), 50);
        let stats = client.connector.stats();
        assert_eq!(stats.held_bytes, (0..50).map(|number| length(number) as u64).sum::<u64>());
        // New chunks take places of their own.
        let fresh = format!("fresh-{}", stats.used_bytes);
        assert!(client.set_one(&fresh, &Memory::patterned(300_000, 0, 1)));
        assert_eq!(intact(&client, 50), 50);
        client.delete(&[fresh]);
        client.connector.close();
    }
}

#[test]
fn one_owner() {
    let directory = tempfile::tempdir().unwrap();
    let first = Client::open(directory.path(), CAPACITY);
    let error = Connector::open(config(directory.path(), CAPACITY)).map(drop).unwrap_err();
    let pid = std::process::id().to_string();
    assert!(matches!(&error, OpenError::InUse { holder, .. } if holder.contains(&pid)), "{error}");
    assert!(first.set_one("k", &Memory::patterned(10, 0, 1)), "the holder is not disturbed");
    first.connector.close();
    // Closed, not dropped: that is enough.
    assert!(Client::open(directory.path(), CAPACITY).get_one("k", 10).is_some());
}

#[test]
fn closed_connectors_refuse_and_drain_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    let memory = Memory::patterned(10, 0, 1);
    client.submit_set(&[key(1)], &[&memory]);
    client.connector.close();
    client.connector.close();
    let mut completions = Vec::new();
    client.connector.drain(&mut completions);
    assert!(completions.is_empty());
    let refused = client.connector.submit_set(&[key(1)], &[memory.buffer()], Box::new(()));
    assert!(matches!(refused, Err(SubmitError::Closed)));
    assert!(matches!(client.connector.submit_exists(&[key(1)]), Err(SubmitError::Closed)));
}

/// Line 4: close() returns with operations in flight, and nothing is written to their buffers afterwards.
#[test]
fn close_leaves_no_buffer_in_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let length = MIB as usize;
    let client = Client::open(directory.path(), CAPACITY);
    let stored = Memory::patterned(length, 0, 1);
    let keys: Vec<String> = (0..100).map(key).collect();
    assert!(client.set(&keys, &vec![&stored; 100]).ok);
    let read: Vec<Memory> = (0..100).map(|_| Memory::new(length, 0)).collect();
    for _ in 0..5 {
        client.submit_get(&keys, &read.iter().collect::<Vec<_>>());
        client.submit_set(&(1000..1100).map(key).collect::<Vec<_>>(), &vec![&stored; 100]);
    }
    client.connector.close();
    assert_eq!(client.connector.stats().in_flight, 0);
    let poison = vec![0xa5_u8; length];
    read.iter().for_each(|memory| memory.fill(&poison));
    thread::sleep(Duration::from_millis(300));
    assert!(read.iter().all(|memory| memory.bytes() == poison));
}

/// With no time to drain, what is queued is dropped and says so; what was answered is there.
#[test]
fn close_at_the_deadline_drops_the_queue() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), CAPACITY);
    config.drain_timeout = Duration::ZERO;
    let client = Client::from(Connector::open(config).unwrap());
    let memory = Memory::patterned(MIB as usize, 0, 1);
    assert!(client.set_one("answered", &memory));
    for batch in 0..10 {
        let keys: Vec<String> = (batch * 15..batch * 15 + 15).map(key).collect();
        client.submit_set(&keys, &[&memory; 15]);
    }
    client.connector.close();
    assert!(client.counter("abandoned") > 0);
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(client.get_one("answered", MIB as usize).unwrap(), memory.bytes());
    let kept = client.connector.recovery().kept;
    let loaded = (0..150).filter_map(|number| client.get_one(&key(number), MIB as usize));
    assert_eq!(loaded.inspect(|bytes| assert!(bytes == memory.bytes())).count() as u64 + 1, kept);
}

#[test]
fn full_stores_evict_what_was_not_used_for_the_longest_time() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 32 * MIB);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..200).map(key).collect();
    assert!(client.set(&keys[..20], &[&memory; 20]).ok);
    for key in &keys[20..] {
        assert!(client.get_one(&keys[3], MIB as usize).is_some());
        assert!(client.set_one(key, &memory));
    }
    let held = client.exists(&keys);
    assert!(held[3] && held[175..].iter().all(|held| *held), "the used one, and the last ones");
    let count = held.iter().filter(|held| **held).count();
    assert!((27..=32).contains(&count), "{count} MiB of 32");
    assert_eq!(client.counter("evicted"), 200 - count as u64);
    client.assert_consistent();
    assert!(on_disk_bytes(directory.path()) <= 32 * MIB);
}

/// Keys can take more room than chunks: the index keeps to the capacity too.
#[test]
fn the_index_counts_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 16 * MIB);
    let memory = Memory::patterned(4096, 0, 1);
    let keys: Vec<String> = (0..3500).map(|number| format!("{number:04096}")).collect();
    for keys in keys.chunks(500) {
        assert!(client.set(keys, &vec![&memory; keys.len()]).ok);
    }
    assert!(on_disk_bytes(directory.path()) <= 16 * MIB);
    let held = client.exists(&keys).iter().filter(|held| **held).count() as u64;
    assert!(held > 100 && client.counter("evicted") == 3500 - held, "{held}");
    client.assert_consistent();
    client.delete(&keys);
    assert!(client.set_one("again", &memory));
    assert_eq!(client.connector.stats().allocated_bytes, BLOCK_BYTES);
}

#[test]
fn a_smaller_capacity_keeps_what_fits() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 200 * MIB);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..150).map(key).collect();
    assert!(client.set(&keys, &vec![&memory; 150]).ok);
    // The first data file is used last.
    std::thread::sleep(Duration::from_millis(10));
    assert!(keys[..64].iter().all(|key| client.get_one(key, MIB as usize).is_some()));
    client.connector.close();
    let client = Client::open(directory.path(), 100 * MIB);
    let held = client.exists(&keys);
    let count = held.iter().filter(|held| **held).count() as u64;
    assert!(held[..64].iter().all(|held| *held), "what was used last");
    assert!((80..100).contains(&count), "{count} MiB of 100");
    assert_eq!(client.connector.recovery().out_of_range, 150 - count);
    assert!(on_disk_bytes(directory.path()) <= 100 * MIB);
    assert_eq!(client.get_one(&keys[0], MIB as usize).unwrap(), memory.bytes());
    client.assert_consistent();
    // And it grows again with a larger one.
    client.connector.close();
    let client = Client::open(directory.path(), 200 * MIB);
    assert!(client.set(&keys, &vec![&memory; 150]).ok);
    assert_eq!(client.counter("evicted"), 0);
    client.assert_consistent();
}

/// Line 7: exactly one completion per batch, over 100,000 operations from eight threads on shared keys.
#[test]
fn one_completion_each_from_many_threads() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    let done = AtomicBool::new(false);
    let mut all: Vec<u64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..8_u64)
            .map(|worker| {
                let client = &client;
                scope.spawn(move || {
                    let memory = Memory::patterned(4096 + worker as usize, worker as usize, worker);
                    (0..800_u64)
                        .map(|round| {
                            let first = (worker * 7 + round) % 50;
                            let keys: Vec<String> = (first..first + 16).map(key).collect();
                            match (worker + round) % 4 {
                                0 => client.submit_set(&keys, &[&memory; 16]),
                                1 => client.connector.submit_exists(&keys).unwrap(),
                                2 => client.connector.submit_delete(&keys).unwrap(),
                                _ => {
                                    let own: Vec<Memory> = (0..16)
                                        .map(|_| Memory::new(4096 + worker as usize, 0))
                                        .collect();
                                    client.submit_get(&keys, &own.iter().collect::<Vec<_>>())
                                }
                            }
                        })
                        .collect::<Vec<u64>>()
                })
            })
            .collect();
        let drainer = scope.spawn(|| {
            let mut completions = Vec::new();
            while !done.load(Ordering::SeqCst) || completions.len() < 6400 {
                client.connector.drain(&mut completions);
                thread::yield_now();
                if done.load(Ordering::SeqCst) && client.connector.stats().in_flight == 0 {
                    client.connector.drain(&mut completions);
                    break;
                }
            }
            completions
        });
        let mut submitted: Vec<u64> =
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
        done.store(true, Ordering::SeqCst);
        let completions = drainer.join().unwrap();
        assert!(
            completions.iter().all(|completion| completion.ok && completion.results.len() == 16)
        );
        submitted.sort_unstable();
        let mut completed: Vec<u64> =
            completions.iter().map(|completion| completion.future_id).collect();
        completed.sort_unstable();
        assert_eq!(submitted, completed);
        completed
    });
    all.dedup();
    assert_eq!(all.len(), 6400);
    assert_eq!(client.connector.stats().in_flight, 0);
}

/// The reactor sleeps while nothing is asked: it does not go round once.
#[test]
fn idle_means_idle() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert!(client.set_one("k", &Memory::patterned(4096, 0, 1)));
    client.exists(&["k".to_owned()]);
    let before = settled_turns(&client);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(client.counter("reactor_turns"), before);
    assert!(client.get_one("k", 4096).is_some(), "and it wakes again");
}

/// The number of turns once the reactor has gone to sleep after its last work.
fn settled_turns(client: &Client) -> u64 {
    let mut turns = client.counter("reactor_turns");
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = client.counter("reactor_turns");
        if now == turns {
            return now;
        }
        turns = now;
    }
}

/// A file system in memory: the same promises, whichever way it takes transfers.
#[test]
fn tmpfs_works() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let client = Client::open(directory.path(), 32 * MIB);
    for number in 0..20 {
        assert!(
            client
                .set_one(&key(number), &Memory::patterned(length(number), number as usize, number))
        );
    }
    client.connector.close();
    assert_eq!(intact(&Client::open(directory.path(), 32 * MIB), 20), 20);
}

/// After an owner that did not close, what it wrote is verified in idle moments: a rotten chunk is gone before anybody asks.
#[test]
fn what_a_dead_owner_wrote_is_verified() {
    let (original, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(original.path(), 3);
    let client = Client::open(original.path(), CAPACITY);
    for number in 3..10 {
        let memory = Memory::patterned(length(number), 0, number);
        assert!(client.set_one(&key(number), &memory));
    }
    // What a kill would leave, as no operation is under way.
    for name in [INDEX, "data-00000.kvring"] {
        fs::copy(original.path().join(name), copy.path().join(name)).unwrap();
    }
    client.connector.close();
    let blocks: u64 = (0..5).map(|number| (length(number) as u64).div_ceil(BLOCK_BYTES)).sum();
    edit(&copy.path().join("data-00000.kvring"), blocks * BLOCK_BYTES + 77, &[0xff]);

    let client = Client::open(copy.path(), CAPACITY);
    let recovery = client.connector.recovery();
    assert_eq!((recovery.clean_shutdown, recovery.kept, recovery.to_verify), (false, 10, 7));
    let hang = Instant::now() + Duration::from_secs(60);
    while client.counter("verified_after_crash") < 7 {
        assert!(Instant::now() < hang, "verification hangs");
        thread::sleep(Duration::from_millis(5));
    }
    let held = client.exists(&(0..10).map(key).collect::<Vec<_>>());
    let expected: Vec<bool> = (0..10).map(|number| number != 5).collect();
    assert_eq!((held, client.counter("checksum_mismatch")), (expected, 1));
    client.connector.close();
    let client = Client::open(copy.path(), CAPACITY);
    assert_eq!(
        (client.connector.recovery().clean_shutdown, client.connector.recovery().to_verify),
        (true, 0)
    );
}

// --- damage between two lives ---

fn edit(path: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn rotten_payloads_are_misses() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 3);
    edit(&directory.path().join("data-00000.kvring"), 100, &[0xff]);
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(intact(&client, 3), 2);
    assert_eq!(client.counter("checksum_mismatch"), 1);
    assert_eq!(client.exists(&[key(0)]), [false], "the entry is dropped");
    assert_eq!(client.connector.stats().keys, 2);
}

#[test]
fn a_torn_record_is_free_space() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 10);
    edit(&directory.path().join(INDEX), HEADER_BYTES + 3 * RECORD_BYTES + 100, &[0xff]);
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!((client.connector.recovery().kept, client.connector.recovery().torn), (9, 1));
    assert_eq!(intact(&client, 10), 9);
    assert!(client.set_one("fits", &Memory::patterned(4096, 0, 1)));
}

#[test]
fn records_behind_the_end_of_their_file_are_dropped() {
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
    let index = directory.path().join(INDEX);
    let file = File::open(&index).unwrap();
    let mut record = [0; RECORD_BYTES as usize];
    // A copy of record 1 with an older generation in a free slot: the same key and the same place.
    file.read_exact_at(&mut record, HEADER_BYTES + RECORD_BYTES).unwrap();
    record[32..40].copy_from_slice(&0_u64.to_le_bytes());
    // Were it believed, the chunk would be a miss.
    record[64] ^= 0xff;
    let checksum = crc32c::crc32c(&record[12..]);
    record[8..12].copy_from_slice(&checksum.to_le_bytes());
    edit(&index, HEADER_BYTES + 7 * RECORD_BYTES, &record);
    // And one at another place: the same key only.
    record[60..64].copy_from_slice(&1000_u32.to_le_bytes());
    let checksum = crc32c::crc32c(&record[12..]);
    record[8..12].copy_from_slice(&checksum.to_le_bytes());
    edit(&index, HEADER_BYTES + 8 * RECORD_BYTES, &record);

    let client = Client::open(directory.path(), CAPACITY);
    let recovery = client.connector.recovery();
    assert_eq!((recovery.kept, recovery.overlapping, recovery.duplicate), (2, 1, 1));
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
        ("damaged", |index| edit(index, 20, &[0xff; 8])),
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

#[test]
fn an_index_cut_short_keeps_the_records_that_are_left() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 10);
    let index = File::options().write(true).open(directory.path().join(INDEX)).unwrap();
    index.set_len(HEADER_BYTES + 4 * RECORD_BYTES + 100).unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert!(client.connector.recovery().truncated);
    assert_eq!(intact(&client, 10), 4);
    for number in 100..200 {
        assert!(client.set_one(&key(number), &Memory::patterned(4096, 0, number)));
    }
    assert_eq!(intact(&client, 10), 4);
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 1);
    let index = directory.path().join(INDEX);
    edit(&index, 8, &7_u32.to_le_bytes());
    let before = fs::read(&index).unwrap();
    let error = Connector::open(config(directory.path(), CAPACITY)).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found: 7, supported: 1, .. }), "{error}");
    assert!(error.to_string().contains('7') && error.to_string().contains('1'));
    assert!(fs::read(&index).unwrap() == before);
}

/// Else its file system could not be unmounted before the connector is dropped, which nobody expects.
#[test]
fn a_closed_connector_holds_no_file_open() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert!(client.set_one("k", &Memory::patterned(10_000, 0, 1)));
    let held = |list: &str| {
        let path = directory.path().to_str().unwrap();
        match list {
            "maps" => fs::read_to_string("/proc/self/maps").unwrap().contains(path),
            _ => fs::read_dir("/proc/self/fd").unwrap().any(|link| {
                fs::read_link(link.unwrap().path()).is_ok_and(|file| file.starts_with(path))
            }),
        }
    };
    assert!(held("fd") && held("maps"));
    client.connector.close();
    assert!(!held("fd") && !held("maps"));
    let stats = client.connector.stats();
    assert_eq!((stats.keys, stats.held_bytes, stats.shutdown_clean), (1, 10_000, true));
}
