//! Capacity, `ttl` and quotas that change while the store is open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{
    Client, MIB, Memory, config, config_of, eventually, key, layout, new_paths, on_disk_bytes,
};
use kvring::{Admission, Config, Layout, OptionValue};

fn text(value: &str) -> OptionValue {
    OptionValue::Text(value.into())
}

fn change(client: &Client, name: &str, value: OptionValue) -> Result<(), String> {
    let changed = client.connector.change_limits([(name.to_owned(), value)]);
    changed.map_err(|error| error.to_string())
}

fn set_capacity(client: &Client, bytes: u64) -> Result<(), String> {
    change(client, "capacity", OptionValue::Integer(bytes.into()))
}

fn is_within(client: &Client) -> bool {
    let stats = client.connector.stats();
    stats.used_bytes <= stats.capacity_bytes
}

fn opened(directory: &std::path::Path, layout: Layout, capacity_bytes: u64) -> Client {
    let mut config = Config { layout, ..config(directory, capacity_bytes) };
    (config.lease_s, config.ttl, config.admission) = (0, None, Admission::Always);
    Client::with(config)
}

#[test]
fn an_open_store_becomes_smaller_and_larger_and_the_next_open_agrees() {
    for layout in [Layout::Extents, Layout::Files] {
        let directory = tempfile::tempdir().unwrap();
        let client = opened(directory.path(), layout, 256 * MIB);
        client.fill(0..200, MIB as usize);
        set_capacity(&client, 100 * MIB).unwrap();
        eventually("it is within its capacity", || is_within(&client));
        assert!(on_disk_bytes(directory.path()) <= 100 * MIB);
        let kept = client.connector.stats().keys;
        assert!((70..100).contains(&kept), "{kept} MiB of 100");
        client.assert_consistent();
        // What comes evicts others.
        client.fill(300..320, MIB as usize);
        client.assert_held(310..320, MIB as usize);
        assert!(on_disk_bytes(directory.path()) <= 100 * MIB);
        set_capacity(&client, 400 * MIB).unwrap();
        let before = client.counter("evicted");
        client.fill(400..600, MIB as usize);
        assert_eq!(client.counter("evicted"), before, "there is room for all");
        client.assert_held(400..600, MIB as usize);
        client.assert_consistent();
        set_capacity(&client, 150 * MIB).unwrap();
        eventually("it is within its capacity again", || is_within(&client));
        let kept = client.connector.stats().keys;
        client.connector.close();
        let client = opened(directory.path(), layout, 150 * MIB);
        let recovery = client.connector.recovery().clone();
        assert!(recovery.clean_shutdown && recovery.reset.is_none(), "{recovery}");
        assert_eq!((recovery.kept, recovery.out_of_range, recovery.orphans), (kept, 0, 0));
        client.assert_consistent();
    }
}

/// SETs and loads go on while it becomes smaller and larger.
#[test]
fn sets_find_room_while_the_capacity_changes() {
    for layout in [Layout::Extents, Layout::Files] {
        let directory = tempfile::tempdir().unwrap();
        let client = opened(directory.path(), layout, 256 * MIB);
        client.fill(0..200, MIB as usize);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for bytes in [128, 192, 96, 256, 128, 256].map(|mib| mib * MIB) {
                    set_capacity(&client, bytes).unwrap();
                    eventually("it is within its capacity", || is_within(&client));
                }
                is_over.store(true, Ordering::SeqCst);
            });
            let mut number = 1000;
            while !is_over.load(Ordering::SeqCst) {
                let stored = client.store(number..number + 8, MIB as usize);
                assert_eq!(stored, [true; 8]);
                number += 8;
            }
            changes.join().unwrap();
        });
        assert_eq!(client.counter("set_no_space"), 0);
        client.assert_consistent();
    }
}

#[test]
fn what_is_pinned_keeps_its_place_until_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let client = opened(directory.path(), Layout::Extents, 256 * MIB);
    client.fill(0..200, MIB as usize);
    let all: Vec<String> = (0..200).map(key).collect();
    // In each data file something is.
    let pinned: Vec<String> = (0..200).step_by(8).map(key).collect();
    assert!(client.connector.pin(&pinned).unwrap().iter().all(|is_pinned| *is_pinned));
    let refusal = set_capacity(&client, 32 * MIB).unwrap_err();
    assert!(
        refusal.contains("half of that is pinned") && refusal.contains("50.0 MiB"),
        "{refusal}"
    );
    set_capacity(&client, 64 * MIB).unwrap();
    eventually("others are gone", || client.connector.stats().keys < 100);
    assert!(!is_within(&client), "files with pinned chunks stay");
    assert_eq!(client.connector.holds(&pinned).unwrap(), [true; 25]);
    client.assert_consistent();
    // It still stores.
    client.fill(300..310, MIB as usize);
    client.assert_held(300..310, MIB as usize);
    assert!(client.connector.unpin(&pinned).unwrap().iter().all(|was_pinned| *was_pinned));
    eventually("it is within its capacity", || is_within(&client));
    assert!(client.connector.holds(&all).unwrap().contains(&false));
    assert!(on_disk_bytes(directory.path()) <= 64 * MIB);
    client.assert_consistent();
}

#[test]
fn a_capacity_that_cannot_be_is_refused_and_nothing_changes() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 64 * MIB);
    // More than any file system here has: it cannot grow.
    config.min_free_bytes = Some(1 << 49);
    let client = Client::with(config);
    let refusal = set_capacity(&client, 65 * MIB).unwrap_err();
    assert!(refusal.contains("min_free") && refusal.contains("65.0 MiB"), "{refusal}");
    let refusal = set_capacity(&client, MIB).unwrap_err();
    assert!(refusal.contains("16 MiB"), "{refusal}");
    let refusal = change(&client, "layout", text("files")).unwrap_err();
    assert!(refusal.contains("'layout'") && refusal.contains("capacity, ttl, quotas"), "{refusal}");
    assert_eq!(client.connector.stats().capacity_bytes, 64 * MIB);
}

#[test]
fn several_paths_keep_their_proportion() {
    let (_directory, paths) = new_paths(2);
    let client = Client::with(config_of(&paths, 64 * MIB));
    client.fill(0..80, MIB as usize);
    let each = |sizes: [u64; 2]| {
        let sizes = sizes.map(|mib| OptionValue::Integer((mib * MIB).into()));
        change(&client, "capacity", OptionValue::List(sizes.to_vec()))
    };
    let refusal = each([64, 32]).unwrap_err();
    assert!(refusal.contains("proportion") && refusal.contains("64.0 MiB, 32.0 MiB"), "{refusal}");
    each([32, 32]).unwrap();
    eventually("both are within their capacities", || {
        client.connector.stats().paths.iter().all(|path| path.used_bytes <= 32 * MIB)
    });
    client.assert_consistent();
    let held = client.connector.stats().keys;
    client.connector.close();
    let client = Client::with(config_of(&paths, 32 * MIB));
    assert_eq!((client.connector.recovery().kept, client.connector.recovery().moved), (held, 0));
}

#[test]
fn another_ttl_is_that_of_stored_chunks_too() {
    let directory = tempfile::tempdir().unwrap();
    let client = opened(directory.path(), layout(), 64 * MIB);
    client.fill(0..8, 4096);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(client.connector.expire().unwrap(), 0);
    change(&client, "ttl", text("1s")).unwrap();
    assert_eq!(client.load(0..8, 4096), [false; 8]);
    eventually("they are removed in the background", || client.counter("expired") == 8);
    change(&client, "ttl", text("off")).unwrap();
    client.fill(0..8, 4096);
    std::thread::sleep(Duration::from_millis(1100));
    client.assert_held(0..8, 4096);
    assert_eq!(client.connector.limits().unwrap().ttl, None);
}

/// A namespace gets a quota, another one and none: the chunks that it has go by their last use, others stay.
#[test]
fn quotas_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let client = opened(directory.path(), layout(), 64 * MIB);
    let name = |model: &str, number: u64| format!("{model}@00000000@0@{number:032x}");
    let (of_a, of_b): (Vec<_>, Vec<_>) =
        (0..10).map(|number| (name("a", number), name("b", number))).unzip();
    let memory = Memory::patterned(MIB as usize, 0, 1);
    for key in of_a.iter().chain(&of_b) {
        assert!(client.set_one(key, &memory));
    }
    // Used last, and pinned.
    std::thread::sleep(Duration::from_millis(5));
    assert!(client.get_one(&of_a[0], MIB as usize).is_some());
    assert_eq!(client.connector.pin(&of_a[1..2]).unwrap(), [true]);
    let quota =
        |value: OptionValue| change(&client, "quotas", OptionValue::Map(vec![("a".into(), value)]));
    quota(text("4MiB")).unwrap();
    eventually("the quota is kept", || client.connector.stats().keys == 14);
    let held = client.connector.holds(&of_a).unwrap();
    assert!(held[0] && held[1] && held[8] && held[9], "{held:?}");
    assert_eq!(client.connector.holds(&of_b).unwrap(), [true; 10]);
    client.assert_consistent();
    // Its own chunks go for others of it.
    assert!(client.set_one(&name("a", 20), &memory));
    assert_eq!(client.connector.stats().keys, 14);
    assert_eq!(client.connector.unpin(&of_a[1..2]).unwrap(), [true]);
    quota(text("none")).unwrap();
    assert_eq!(client.connector.limits().unwrap().quotas, []);
    assert!((30..40).all(|number| client.set_one(&name("a", number), &memory)));
    assert_eq!(client.connector.stats().keys, 24);
    quota(text("2MiB")).unwrap();
    eventually("another quota is kept", || client.connector.stats().keys == 12);
    assert_eq!(client.connector.limits().unwrap().quotas, [("a".to_owned(), 2 * MIB)]);
    client.assert_consistent();
}
