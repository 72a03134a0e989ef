//! One fault at the Nth transfer, for every N of a small workload: typed errors, one completion per batch, no wrong byte,
//! no leak of space, and a store that goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::faults::{Fault, scripted};
use crate::common::{Client, MIB, Memory, config, keys, pattern};
use kvring::Durability;

const CAPACITY: u64 = 64 * MIB;
/// Whole blocks, an odd tail, several pieces.
const LENGTHS: [usize; 4] = [8192, 5001, 4096, 2 * MIB as usize + 17];

/// Runs the workload with `fault` at the `position`-th transfer. Returns how many transfers there were.
fn run(durability: Durability, fault: Fault, position: u64) -> u64 {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let mut config = config(directory.path(), CAPACITY);
    config.durability = durability;
    config.tuning.persistent_max_retries = 0;
    let counted = Arc::clone(&count);
    let engine = scripted(move |number, _, _| {
        counted.store(number, Ordering::SeqCst);
        if number == position { fault } else { Fault::None }
    });
    let client = Client::over(config, engine);
    let keys = keys(0..4);
    let first: Vec<Memory> =
        (0..4).map(|number| Memory::patterned(LENGTHS[number], number, number as u64)).collect();
    // Key 1 gets other bytes, key 2 another length.
    let again = [Memory::patterned(5001, 0, 11), Memory::patterned(9999, 0, 12)];

    // A transfer is continued, or tried again; a sync is not.
    let goes_on = durability == Durability::BestEffort
        && matches!(fault, Fault::Short(_) | Fault::Errno(libc::EINTR | libc::EAGAIN));
    let stored = client.set(&keys, &first);
    let replaced = client.set(&keys[1..3], &[&again[0], &again[1]]);
    for completion in [&stored, &replaced] {
        let all = completion.results.iter().all(|stored| *stored);
        assert_eq!(completion.ok, all, "{:?}", completion.results);
        assert_eq!(completion.error.is_empty(), completion.ok, "{}", completion.error);
        assert!(all || !goes_on, "{fault:?} at {position}: {}", completion.error);
    }
    let mut versions: Vec<Vec<Vec<u8>>> =
        (0..4).map(|number| vec![pattern(LENGTHS[number], number as u64)]).collect();
    versions[1].push(again[0].bytes().to_vec());
    versions[2].push(again[1].bytes().to_vec());
    let lengths =
        |number: usize| if number == 2 { vec![4096, 9999] } else { vec![LENGTHS[number]] };
    for number in 0..4 {
        for length in lengths(number) {
            match client.get_one(&keys[number], length) {
                Some(found) => assert!(versions[number].contains(&found), "{number}: wrong bytes"),
                None => assert!(!goes_on || (number, length) == (2, 4096), "{fault:?}: {number}"),
            }
        }
    }
    client.delete(&keys[3..]);
    assert_eq!(client.exists(&keys[3..]), [false]);

    // Accounting equals a fresh scan.
    let usable = Memory::patterned(30_000, 0, 5);
    let went_on = client.set_one("after", &usable);
    assert!(went_on || position >= count.load(Ordering::SeqCst) - 2, "it does not go on");
    assert!(client.set_one("after", &usable), "it does not go on");
    let before = client.connector.stats();
    assert_eq!(before.in_flight, 0);
    client.connector.close();
    let transfers = count.load(Ordering::SeqCst);
    let client = Client::open(directory.path(), CAPACITY);
    let after = client.connector.stats();
    let account = |stats: &kvring::Stats| {
        (stats.keys, stats.records, stats.stored_bytes, stats.allocated_bytes)
    };
    assert_eq!(account(&before), account(&after));
    assert_eq!(client.get_one("after", 30_000).unwrap(), usable.bytes());
    transfers
}

fn at_every_position(durability: Durability) {
    let transfers = run(durability, Fault::None, 0);
    assert!(transfers > 10, "{transfers}");
    for fault in [
        Fault::Short(512),
        Fault::Errno(libc::EINTR),
        Fault::Errno(libc::EAGAIN),
        // May be one bad sector's: a second attempt goes through.
        Fault::Errno(libc::EIO),
        // Is not, and fails at once.
        Fault::Errno(libc::ETIMEDOUT),
        Fault::Errno(libc::ENOSPC),
    ] {
        for position in 1..=transfers {
            run(durability, fault, position);
        }
    }
}

#[test]
fn best_effort() {
    at_every_position(Durability::BestEffort);
}

#[test]
fn persistent() {
    at_every_position(Durability::Persistent);
}
