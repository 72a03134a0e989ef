//! A store that fills up, and one that is opened with another capacity than before.

use std::time::Duration;

use crate::common::{Client, MIB, Memory, config, key, on_disk_bytes};
use kvring::{BLOCK_BYTES, Config, Layout};

#[test]
fn full_stores_evict_what_was_not_used_for_the_longest_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 32 * MIB);
    // Nothing goes behind an answer: what is counted stands still.
    (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
    let client = Client::with(config);
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
    client.assert_consistent();
    assert_eq!(client.connector.stats().allocated_bytes, BLOCK_BYTES);
}

#[test]
fn a_smaller_capacity_keeps_what_fits() {
    for layout in [Layout::Extents, Layout::Files] {
        assert_that_a_smaller_capacity_keeps_what_fits(layout);
    }
}

fn assert_that_a_smaller_capacity_keeps_what_fits(layout: Layout) {
    let directory = tempfile::tempdir().unwrap();
    let open = |capacity_bytes| {
        Client::with(Config { layout, ..config(directory.path(), capacity_bytes) })
    };
    let client = open(200 * MIB);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..150).map(key).collect();
    assert!(client.set(&keys, &vec![&memory; 150]).ok);
    // The first data file, which has the last chunks of the batch, is used last.
    std::thread::sleep(Duration::from_millis(10));
    assert!(keys[86..].iter().all(|key| client.get_one(key, MIB as usize).is_some()));
    client.connector.close();
    let client = open(100 * MIB);
    assert!(on_disk_bytes(directory.path()) <= 100 * MIB, "before it is open");
    let held = client.exists(&keys);
    let count = held.iter().filter(|held| **held).count() as u64;
    assert!(held[86..].iter().all(|held| *held), "what was used last");
    assert!((80..100).contains(&count), "{count} MiB of 100");
    // Data files go with all they hold, files of chunks in the order of eviction.
    let gone = (client.connector.recovery().out_of_range, client.counter("evicted"));
    assert_eq!(gone, if layout == Layout::Extents { (150 - count, 0) } else { (0, 150 - count) });
    assert!(on_disk_bytes(directory.path()) <= 100 * MIB);
    assert_eq!(client.get_one(&keys[0], MIB as usize).unwrap(), memory.bytes());
    client.assert_consistent();
    // And it grows again with a larger one.
    client.connector.close();
    let client = open(200 * MIB);
    assert!(client.set(&keys, &vec![&memory; 150]).ok);
    assert_eq!(client.counter("evicted"), 0);
    client.assert_consistent();
}
