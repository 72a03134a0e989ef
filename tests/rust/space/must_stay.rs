//! Chunks that must stay (pinned, leased) in a full store, as many of them as there may be: what else can go makes room.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Client, MIB, Memory, config, has_data_files, key, keys};
use kvring::testing::{FileOperations, SystemFiles};
use kvring::{Config, Eviction};

const CAPACITY: u64 = 16 * MIB;
const BLOCK: usize = 4096;
const LONG_LEASE_S: u32 = 3600;

fn open(directory: &Path, eviction: Eviction, set_up: impl FnOnce(&mut Config)) -> Client {
    let mut config = config(directory, CAPACITY);
    (config.eviction, config.lease_s) = (eviction, 0);
    // Nothing goes but for those who need room.
    (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
    set_up(&mut config);
    Client::with(config)
}

/// Stores chunks of `length` under these keys, and says how many were.
fn store(client: &Client, keys: &[String], length: usize, seed: u64) -> usize {
    let memory = Memory::patterned(length, 0, seed);
    let stored = |keys: &[String]| client.set(keys, &vec![&memory; keys.len()]).results;
    keys.chunks(500).flat_map(stored).filter(|stored| *stored).count()
}

/// Stores chunks of one block until the store is full, and tells their keys.
fn fill(client: &Client, key: impl Fn(u64) -> String) -> Vec<String> {
    let mut held = Vec::new();
    for number in 0.. {
        if client.counter("evicted") > 0 {
            break;
        }
        let next: Vec<String> = (number * 100..(number + 1) * 100).map(&key).collect();
        store(client, &next, BLOCK, 1);
        held.extend(next);
    }
    held
}

/// A flood twice as long as what fits, of chunks of `length`: every one is stored, and none of `staying` has gone.
fn assert_takes_a_flood(client: &Client, staying: &[String], length: usize, what: &str) {
    let count = 2 * CAPACITY / length as u64;
    let flood: Vec<String> = (0..count).map(|number| format!("flood {number}")).collect();
    assert_eq!(store(client, &flood, length, 2), flood.len(), "{what}");
    let memory = Memory::new(BLOCK, 0);
    let loaded = client.get(staying, &vec![&memory; staying.len()]).results;
    assert_eq!(loaded.iter().filter(|hit| !**hit).count(), 0, "{what}: gone");
    client.assert_consistent();
}

#[test]
fn pins_up_to_their_limit_do_not_stop_a_full_store() {
    for eviction in Eviction::ALL {
        let directory = tempfile::tempdir().unwrap();
        let client = open(directory.path(), eviction, |_| ());
        let held = fill(&client, key);
        let pins = client.connector.pin(&held).unwrap();
        let pinned: Vec<String> =
            held.into_iter().zip(pins).filter_map(|(key, pinned)| pinned.then_some(key)).collect();
        assert!(pinned.len() > 1000, "{} are pinned", pinned.len());
        assert_takes_a_flood(&client, &pinned, BLOCK, eviction.name());
        // What is not pinned any more goes as everything else does.
        assert!(client.connector.unpin(&pinned).unwrap().iter().all(|was| *was));
        let flood = keys(1_000_000..1_000_000 + 2 * CAPACITY / BLOCK as u64);
        assert_eq!(store(&client, &flood, BLOCK, 3), flood.len());
        let left = client.exists(&pinned).iter().filter(|held| **held).count();
        // MRU lets go first what came last.
        let goes = eviction != Eviction::Mru;
        assert!(!goes || left == 0, "{}: {left} are left", eviction.name());
        client.assert_consistent();
    }
}

#[test]
fn leases_up_to_their_limit_do_not_stop_a_full_store() {
    for eviction in Eviction::ALL {
        let directory = tempfile::tempdir().unwrap();
        let client = open(directory.path(), eviction, |config| config.lease_s = LONG_LEASE_S);
        // All are asked for, those that go first too: as many are leased as may be.
        let held = fill(&client, key);
        client.exists(&held);
        let leased = client.connector.stats().leased_bytes as usize / BLOCK;
        assert!(leased > 500 && client.counter("leases_refused") > 0, "{leased} are leased");
        let held_in_the_end = {
            let flood = keys(1_000_000..1_000_000 + 2 * CAPACITY / BLOCK as u64);
            assert_eq!(store(&client, &flood, BLOCK, 3), flood.len(), "{}", eviction.name());
            client.exists(&held).iter().filter(|held| **held).count()
        };
        assert!(held_in_the_end >= leased, "{}: {held_in_the_end} of {leased}", eviction.name());
        client.assert_consistent();
    }
}

/// Keys of many slots take the sidecar before the data files are full.
#[test]
fn pins_of_long_keys_do_not_stop_a_full_store() {
    let directory = tempfile::tempdir().unwrap();
    let client = open(directory.path(), Eviction::Lru, |_| ());
    let held = fill(&client, |number| format!("{number:04096}"));
    let pins = client.connector.pin(&held).unwrap();
    assert!(pins.iter().filter(|pinned| **pinned).count() > 50);
    let flood = keys(0..5000);
    assert_eq!(store(&client, &flood, BLOCK, 3), flood.len());
    client.assert_consistent();
}

/// Room for a longer chunk is a run of neighbours: what must stay lies in between.
#[test]
fn pins_do_not_stop_longer_chunks() {
    for eviction in Eviction::ALL {
        let directory = tempfile::tempdir().unwrap();
        let client = open(directory.path(), eviction, |_| ());
        let held = fill(&client, key);
        // Not each other one, which would leave no run at all.
        let wanted: Vec<String> =
            held.chunks_exact(64).flat_map(|keys| &keys[..16]).cloned().collect();
        let pins = client.connector.pin(&wanted).unwrap();
        let pinned: Vec<String> =
            wanted.into_iter().zip(pins).filter_map(|(key, pin)| pin.then_some(key)).collect();
        assert!(pinned.len() > 500, "{} are pinned", pinned.len());
        assert_takes_a_flood(&client, &pinned, 4 * BLOCK, eviction.name());
    }
}

/// However often its keys are looked up, and also where most of it is pinned.
#[test]
fn leases_and_pins_do_not_stop_a_namespace_with_a_quota() {
    let of = |number: u64| format!("small@00000000@0@{number:064x}");
    for (eviction, pinned) in Eviction::ALL.into_iter().flat_map(|one| [(one, 0), (one, 1200)]) {
        let directory = tempfile::tempdir().unwrap();
        let quota_bytes = 6 * MIB;
        let client = open(directory.path(), eviction, |config| {
            (config.lease_s, config.quotas) = (LONG_LEASE_S, vec![("small".into(), quota_bytes)]);
        });
        let blocks = quota_bytes / BLOCK as u64;
        let held: Vec<String> = (0..blocks).map(of).collect();
        assert_eq!(store(&client, &held, BLOCK, 1), held.len());
        assert!(client.connector.pin(&held[..pinned]).unwrap().iter().all(|is_pinned| *is_pinned));
        client.exists(&held);
        let leased_bytes = client.connector.stats().leased_bytes;
        let most_bytes = (quota_bytes - (pinned * BLOCK) as u64) / 4;
        assert_eq!(leased_bytes, most_bytes / BLOCK as u64 * BLOCK as u64, "{pinned} pinned");
        for round in 1..3 {
            let flood: Vec<String> = (round * blocks..(round + 1) * blocks).map(of).collect();
            assert_eq!(store(&client, &flood, BLOCK, 2), flood.len(), "{pinned} pinned");
            client.exists(&flood);
        }
        assert!(client.exists(&held[..pinned]).iter().all(|held| *held), "{}", eviction.name());
        // What goes gives its lease and its pin back.
        client.delete(&held);
        client.exists(&[of(3 * blocks - 1)]);
        client.assert_consistent();
    }
}

/// A file system that has space for the first data file only.
#[derive(Debug, Default)]
struct Small(AtomicU64);

impl FileOperations for Small {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: libc::c_int) -> io::Result<()> {
        let length = bytes.end - bytes.start;
        let before = self.0.fetch_add(length, Ordering::SeqCst);
        if length >= 16 * MIB && before >= 16 * MIB {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        SystemFiles.preallocate(file, bytes, flags)
    }
}

/// Their bounds follow what the file system gives, not the capacity.
#[test]
fn leases_and_pins_do_not_stop_a_store_that_cannot_grow() {
    if !has_data_files("a file of its own takes what is free") {
        return;
    }
    for pins in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), 256 * MIB);
        (config.files, config.lease_s) = (Arc::new(Small::default()), LONG_LEASE_S);
        let client = Client::with(config);
        let length = MIB as usize;
        let held = keys(0..80);
        store(&client, &held, length, 1);
        assert!(client.counter("evicted") > 0, "it is full");
        match pins {
            true => drop(client.connector.pin(&held).unwrap()),
            false => drop(client.exists(&held)),
        }
        let stats = client.connector.stats();
        let (staying, part) = if pins { (stats.pinned_bytes, 2) } else { (stats.leased_bytes, 4) };
        assert!((1..=64 / part).contains(&(staying / MIB)), "{} MiB", staying / MIB);
        let flood = keys(100..300);
        assert_eq!(store(&client, &flood, length, 2), flood.len());
    }
}
