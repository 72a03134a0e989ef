//! Limits that hold for a store as a whole, also on several paths: quotas and the budget of writes.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::faults::{Fault, failing, scripted_on};
use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config_of, eventually, key, new_paths};
use kvring::Config;
use kvring::testing::Action;
use tempfile::TempDir;

const NAMESPACE: &str = "test/model";
const QUOTA: u64 = 32 * MIB;
/// What a chunk of 5000 bytes takes.
const SMALL: u64 = 8192;

fn config(paths: usize) -> (TempDir, Config) {
    let (root, paths) = new_paths(paths);
    let config = config_of(&paths, 320 * MIB);
    (root, config)
}

fn with_quota(paths: usize) -> (TempDir, Config) {
    let (root, mut config) = config(paths);
    config.quotas = vec![(NAMESPACE.into(), QUOTA)];
    config.lease_s = 0;
    (root, config)
}

fn store(client: &Client, number: u64, length: usize) -> Result<(), String> {
    let completion = client.set(&[key(number)], &[&Memory::patterned(length, 0, number)]);
    if completion.ok { Ok(()) } else { Err(completion.error) }
}

/// Bytes of the namespace.
fn taken(client: &Client) -> u64 {
    let usage = client.connector.usage().unwrap();
    let own = usage.iter().find(|(name, _)| name == NAMESPACE).unwrap();
    assert_eq!(own.1.quota_bytes, Some(QUOTA));
    own.1.allocated_bytes
}

/// Each path alone has an eighth of the quota's keys, and any of them takes a chunk of three quarters of it.
#[test]
fn a_chunk_within_the_quota_fits_on_any_of_several_paths() {
    let (_root, config) = with_quota(8);
    let client = Client::with(config);
    let keys: Vec<String> = (0..6000).map(key).collect();
    let chunk = Memory::patterned(5000, 0, 1);
    assert!(client.set(&keys, &vec![&chunk; keys.len()]).ok);
    assert!((QUOTA - 16 * SMALL..=QUOTA).contains(&taken(&client)), "{}", taken(&client));
    for number in 10_000..10_016 {
        assert_eq!(store(&client, number, 24 << 20), Ok(()), "a chunk of 24 MiB");
        assert!((24 * MIB..=QUOTA).contains(&taken(&client)), "{}", taken(&client));
        assert_eq!(client.exists(&[key(number)]), [true]);
    }
    let error = store(&client, 20_000, 33 << 20).unwrap_err();
    assert!(error.contains(NAMESPACE) && error.contains(&QUOTA.to_string()), "{error}");
    assert_eq!(client.exists(&[key(10_015)]), [true], "nothing went for a chunk that cannot fit");
    client.assert_consistent();
}

/// What goes is spread over the paths as what is held.
#[test]
fn room_in_a_quota_is_made_at_all_paths_alike() {
    let (_root, mut config) = with_quota(2);
    config.capacities_bytes = vec![192 * MIB, 64 * MIB];
    let client = Client::with(config);
    let keys: Vec<String> = (0..12_000).map(key).collect();
    let chunk = Memory::patterned(5000, 0, 1);
    for keys in keys.chunks(1000) {
        assert!(client.set(keys, &vec![&chunk; keys.len()]).ok);
    }
    let held: Vec<u64> = client.connector.stats().paths.iter().map(|path| path.keys).collect();
    let all = QUOTA / SMALL;
    assert!((all - 8..=all).contains(&(held[0] + held[1])), "{held:?}");
    assert!((all * 3 / 4 - 100..=all * 3 / 4 + 100).contains(&held[0]), "{held:?}");
    client.assert_consistent();
}

/// A path that is out of use takes nothing of a quota any more.
#[test]
fn a_quota_is_there_for_the_paths_in_use() {
    let (_root, config) = with_quota(2);
    let fails = Arc::new(AtomicBool::new(false));
    let engines = scripted_on(1, failing(Fault::Errno(libc::ENODEV), &fails));
    let client = Client::over(config, engines);
    for number in 0..31 {
        assert_eq!(store(&client, number, 1 << 20), Ok(()));
    }
    fails.store(true, Ordering::SeqCst);
    eventually("the second path is taken out", || {
        client.get(&[key(0)], &[&Memory::new(1 << 20, 0)]);
        let _ = store(&client, 0, 4096);
        for number in 100..110 {
            let _ = store(&client, number, 4096);
        }
        !client.connector.stats().paths[1].in_use
    });
    for number in 1000..1031 {
        assert_eq!(store(&client, number, 1 << 20), Ok(()));
    }
    assert!((30 * MIB..=QUOTA).contains(&taken(&client)), "{}", taken(&client));
    client.assert_consistent();
}

#[test]
fn the_budget_of_writes_is_one_for_all_paths() {
    let (_root, mut config) = config(4);
    // An hour's worth, as much as the longest chunk, comes at once.
    config.write_budget_bytes = Some(24 * 64 * MIB);
    let client = Client::with(config);
    for number in 0..120 {
        assert_eq!(store(&client, number, 1 << 20), Ok(()), "what is not admitted completes ok");
    }
    let over = client.counter("set_over_write_budget");
    // Beyond that 18 KiB come in a second.
    assert!((50..=56).contains(&over), "{over} of 120 were over the budget");
}

/// The second path makes room at the first one while both are closed: that one must not be released before.
#[test]
fn what_goes_for_a_quota_during_close_stays_gone() {
    let (_root, config) = with_quota(2);
    let (client, held) = HeldBack::open(config.clone());
    let keys = || [0, 1].map(|number: usize| client.connector.stats().paths[number].keys);
    let chunks = QUOTA / MIB;
    let mut of_second = None;
    for number in (0..).take_while(|_| keys() != [chunks - 1, 1]) {
        assert_eq!(store(&client, number, MIB as usize), Ok(()));
        match keys() {
            [first, second] if first >= chunks || second > 1 => drop(client.delete(&[key(number)])),
            [_, 1] if of_second.is_none() => of_second = Some(number),
            _ => {}
        }
    }
    let last = of_second.unwrap();
    held.hold(Action::Write);
    let (first, longer) =
        (Memory::patterned(MIB as usize, 0, 1), Memory::patterned(4 * MIB as usize, 0, 2));
    client.submit_set(&[key(last)], &[&first]);
    client.submit_set(&[key(last)], &[&longer]);
    held.until_given(1);
    let index = File::open(config.paths[0].join("index.kvring")).unwrap();
    thread::scope(|scope| {
        let closing = scope.spawn(|| client.close_after(Duration::from_secs(60)));
        // If it is released, it is so by then.
        let is_released = |_: &i32| index.try_lock_shared().is_err();
        (0..100).take_while(is_released).for_each(|_| thread::sleep(Duration::from_millis(10)));
        index.unlock().unwrap();
        held.release();
        assert!(closing.join().unwrap().clean);
    });
    let client = Client::with(config);
    assert_eq!(client.get_one(&key(last), 4 * MIB as usize).unwrap(), longer.bytes());
    assert!(taken(&client) <= QUOTA, "{}", taken(&client));
}
