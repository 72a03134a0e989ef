//! Power loss on a simulated disk that keeps nothing but what was synced: each case is one that the crash simulator
//! (tests/harness/crashes.rs) meets by chance.

use std::sync::Arc;

use crate::common::random::Random;
use crate::common::{Client, MIB, Memory, config, key, pattern};
use crate::simulated_disk::{Crash, SimulatedDisk};
use kvring::testing::flush;
use kvring::{BLOCK_BYTES, Durability};
use tempfile::TempDir;

/// A store, and the disk it is on.
struct Machine {
    directory: TempDir,
    disk: Arc<SimulatedDisk>,
}

impl Machine {
    /// With small data files, so that chunks of 3 blocks come into several of them.
    fn new() -> Self {
        Self::with_seed(1)
    }

    fn with_seed(seed: u64) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        for number in 0..4 {
            let file = directory.path().join(format!("data-{number:05}.kvring"));
            std::fs::File::create(file).unwrap().set_len(16 * BLOCK_BYTES).unwrap();
        }
        let disk = SimulatedDisk::new(directory.path(), Random::new(seed));
        Self { directory, disk }
    }

    fn open(&self, durability: Durability) -> Client {
        self.open_with_reactors(durability, 1)
    }

    fn open_with_reactors(&self, durability: Durability, reactors: usize) -> Client {
        let mut config = config(self.directory.path(), 16 * MIB);
        config.io_threads = Some(reactors);
        config.durability = durability;
        let client = Client::from(self.disk.open(config).unwrap());
        self.disk.let_transfers_go();
        self.disk.wait_idle();
        client
    }

    /// What is left of it after `crash`, whatever its owner does from now on.
    fn crash(self, crash: Crash, owner: Client) -> Self {
        self.disk.crash(crash);
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let disk = self.disk.move_on(directory.path());
        drop(owner);
        Self { directory, disk }
    }
}

const CHUNKS: u64 = 15;
const LENGTH: usize = 3 * BLOCK_BYTES as usize;

fn chunks() -> (Vec<String>, Vec<Memory>) {
    (0..CHUNKS).map(|number| (key(number), Memory::patterned(LENGTH, 0, number))).unzip()
}

fn store(client: &Client) {
    let (keys, memory) = chunks();
    assert!(client.set(&keys, &memory).ok);
}

fn intact(client: &Client) -> u64 {
    (0..CHUNKS)
        .filter(|number| client.get_one(&key(*number), LENGTH) == Some(pattern(LENGTH, *number)))
        .count() as u64
}

/// The simulation is as hard as it should be: without a sync nothing is left, and a kill loses nothing.
#[test]
fn without_a_sync_power_loss_takes_all() {
    for (crash, left) in [(Crash::Kill, CHUNKS), (Crash::PowerLossKeepingNothing, 0)] {
        let machine = Machine::new();
        let client = machine.open(Durability::BestEffort);
        store(&client);
        let machine = machine.crash(crash, client);
        let client = machine.open(Durability::BestEffort);
        assert!(client.connector.recovery().reset.is_none(), "the header is durable");
        assert_eq!(intact(&client), left, "{crash:?}");
    }
}

/// What an owner in `best_effort` left in the page cache is durable as soon as an open in `persistent` returns: in every
/// data file, and in the index.
#[test]
fn an_open_in_persistent_syncs_what_a_killed_owner_left() {
    let machine = Machine::new();
    let client = machine.open(Durability::BestEffort);
    store(&client);
    assert!(client.connector.stats().data_files >= 4);
    let machine = machine.crash(Crash::Kill, client);
    let client = machine.open(Durability::Persistent);
    let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
    let client = machine.open(Durability::BestEffort);
    assert_eq!(client.connector.recovery().kept, CHUNKS);
    assert_eq!(intact(&client), CHUNKS);
}

/// In `best_effort` so is, after a flush, what completed before it: in each data file that was written since the one before, and
/// what was deleted. The first flush covers what a killed owner left.
#[test]
fn a_flush_makes_durable_what_completed_before_it() {
    let machine = Machine::new();
    let client = machine.open(Durability::BestEffort);
    let (keys, memory) = chunks();
    for (number, (key, memory)) in keys.iter().zip(&memory).enumerate() {
        assert!(client.set_one(key, memory));
        if number % 4 == 0 {
            flush(&client.connector, false).unwrap();
        }
    }
    assert!(client.connector.stats().data_files >= 4);
    flush(&client.connector, false).unwrap();
    assert_eq!(client.delete(&[key(3)]), [true]);
    flush(&client.connector, false).unwrap();
    let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
    let client = machine.open(Durability::BestEffort);
    assert_eq!((intact(&client), client.exists(&[key(3)])), (CHUNKS - 1, vec![false]));

    store(&client);
    let machine = machine.crash(Crash::Kill, client);
    let client = machine.open(Durability::BestEffort);
    flush(&client.connector, true).unwrap();
    let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
    assert_eq!(intact(&machine.open(Durability::BestEffort)), CHUNKS);
}

/// A flush that failed vouches for nothing, also when a later one succeeds: the store is not closed as in order, and what its
/// records say does not make a SET of the same bytes superfluous.
#[test]
fn a_failed_flush_vouches_for_nothing() {
    // Of the three data files, and of the index.
    for (failing, closes) in (1..=4).flat_map(|failing| [(failing, true), (failing, false)]) {
        let machine = Machine::new();
        let client = machine.open(Durability::BestEffort);
        store(&client);
        machine.disk.fail_call(failing);
        assert!(flush(&client.connector, false).is_err(), "sync {failing}");
        flush(&client.connector, false).unwrap();
        let machine = if closes {
            assert!(!client.connector.close().clean);
            drop(client);
            machine
        } else {
            machine.crash(Crash::Kill, client)
        };
        let client = machine.open(Durability::Persistent);
        assert!(!client.connector.recovery().clean_shutdown);
        store(&client);
        let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
        let client = machine.open(Durability::BestEffort);
        assert_eq!(intact(&client), CHUNKS, "sync {failing}, closed: {closes}");
    }
}

/// So is what an owner left who closed in order, in either durability.
#[test]
fn close_makes_everything_durable() {
    let machine = Machine::new();
    let client = machine.open(Durability::BestEffort);
    store(&client);
    assert!(client.connector.close().clean);
    let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
    let client = machine.open(Durability::BestEffort);
    assert!(client.connector.recovery().clean_shutdown);
    assert_eq!(intact(&client), CHUNKS);
}

/// A SET in `persistent` whose bytes are held already is answered without a write, and promises as much as any other.
#[test]
fn unchanged_sets_complete_and_survive_power_loss() {
    for first in [Durability::Persistent, Durability::BestEffort] {
        let machine = Machine::new();
        let client = machine.open(first);
        store(&client);
        let machine = machine.crash(Crash::Kill, client);
        let client = machine.open(Durability::Persistent);
        for round in 1..=2 {
            store(&client);
            assert_eq!(client.counter("set_unchanged"), CHUNKS * round);
        }
        assert_eq!((client.counter("set_stored"), client.counter("syncs")), (0, 0));
        let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
        assert_eq!(intact(&machine.open(Durability::BestEffort)), CHUNKS, "first {first:?}");
    }
}

/// The same bytes twice while the first SET waits for its barriers: neither is answered before them.
#[test]
fn unchanged_sets_wait_for_the_barriers_of_the_first() {
    let machine = Machine::new();
    let client = machine.open(Durability::Persistent);
    let (keys, memory) = chunks();
    let memory: Vec<&Memory> = memory.iter().collect();
    let first = client.submit_set(&keys, &memory);
    let second = client.submit_set(&keys, &memory);
    assert!(client.wait(second).ok);
    let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
    assert_eq!(intact(&machine.open(Durability::BestEffort)), CHUNKS, "batch {first}");
}

/// A sync that fails has dropped what others wrote as well: SETs that wait for the next group, SETs of another reactor, and
/// what was cleared in the index. What is answered is durable all the same.
#[test]
fn what_is_answered_is_durable_although_syncs_fail() {
    let (mut answered, mut failed, mut written_anew) = (0, 0, 0);
    for (seed, reactors) in (1..=120).zip([1, 2, 3].into_iter().cycle()) {
        let machine = Machine::with_seed(seed);
        let client = machine.open_with_reactors(Durability::Persistent, reactors);
        let (disk, turns) = (Arc::clone(&machine.disk), &machine.disk.turns);
        disk.fail_syncs(5);
        turns.join();
        let (keys, memory) = chunks();
        let submit = |(key, memory)| {
            let future_id = client.submit_set(&[String::clone(key)], &[memory]);
            turns.pass_of_test(false);
            future_id
        };
        let batches: Vec<u64> = keys.iter().zip(&memory).map(submit).collect();
        turns.pass_of_test(true);
        turns.part();
        let is_stored: Vec<bool> = batches.iter().map(|id| client.wait(*id).ok).collect();
        written_anew += client.counter("write_retries");
        disk.fail_syncs(0);
        let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
        let client = machine.open(Durability::BestEffort);
        for (number, stored) in is_stored.iter().enumerate() {
            let found = client.get_one(&key(number as u64), LENGTH);
            let is_right = found == Some(pattern(LENGTH, number as u64));
            assert!(is_right || !stored, "seed {seed}, {reactors} reactors: key {number} is lost");
            *(if *stored { &mut answered } else { &mut failed }) += 1;
        }
    }
    assert!(answered > 0 && failed > 0 && written_anew > 0, "{answered} {failed} {written_anew}");
}

/// A sync that fails at close or at open vouches for nothing, also when a later one succeeds: what is answered from then on
/// is durable, and one failed sync does not fail the open.
#[test]
fn a_failed_sync_of_close_or_open_vouches_for_nothing() {
    for at_close in [true, false] {
        let mut failed = 0;
        // Each of them in turn: those of the data files and those of the index.
        for failing in 1.. {
            let machine = Machine::new();
            let client = machine.open(Durability::BestEffort);
            store(&client);
            let machine = if at_close {
                machine.disk.fail_call(failing);
                let clean = client.connector.close().clean;
                if !machine.disk.has_failed_call() {
                    assert!(clean);
                    break;
                }
                if clean {
                    // That of a data file which was being made ahead of need.
                    continue;
                }
                drop(client);
                machine
            } else {
                let machine = machine.crash(Crash::Kill, client);
                machine.disk.fail_call(failing);
                machine
            };
            let client = machine.open(Durability::Persistent);
            if !machine.disk.has_failed_call() {
                break;
            }
            failed += 1;
            assert!(!client.connector.recovery().clean_shutdown);
            store(&client);
            let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
            let client = machine.open(Durability::BestEffort);
            assert_eq!(intact(&client), CHUNKS, "sync {failing}, at close: {at_close}");
        }
        assert!(failed >= if at_close { 3 } else { 2 }, "{failed}, at close: {at_close}");
    }
}

/// A kill between the record of a chunk and its barrier leaves the older record as well. Of the two, power loss in the middle
/// of the next open must leave one: whatever is cleaned up there, the younger has to be durable first.
#[test]
fn power_loss_while_a_kill_is_cleaned_up_leaves_one_of_two_records() {
    const REPLACED: u64 = 4;
    let again = |number: u64| pattern(LENGTH, 1000 + number);
    for (kill_at, power_loss_at, seed) in triples(8, 4, 8) {
        let machine = Machine::with_seed(seed);
        let client = machine.open(Durability::Persistent);
        store(&client);
        machine.disk.arm(kill_at, Crash::Kill);
        let keys: Vec<String> = (0..REPLACED).map(key).collect();
        let memory: Vec<Memory> =
            (0..REPLACED).map(|number| Memory::patterned(LENGTH, 0, 1000 + number)).collect();
        assert!(client.set(&keys, &memory).ok);
        let machine = machine.crash(Crash::Kill, client);
        machine.disk.arm(power_loss_at, Crash::PowerLoss);
        let client = machine.open(Durability::Persistent);
        let machine = machine.crash(Crash::PowerLoss, client);
        let client = machine.open(Durability::Persistent);
        for number in 0..REPLACED {
            let found = client.get_one(&key(number), LENGTH);
            let is_one = found == Some(pattern(LENGTH, number)) || found == Some(again(number));
            assert!(is_one, "key {number}: {kill_at}, {power_loss_at}, seed {seed}");
        }
    }
}

/// All triples of numbers from 1 to these.
fn triples(first: u64, second: u64, third: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let pairs = (1..=first).flat_map(move |one| (1..=second).map(move |two| (one, two)));
    pairs.flat_map(move |(one, two)| (1..=third).map(move |three| (one, two, three)))
}

/// A record that was cleared may be back after power loss while its place is another's. What it says does not make a SET of
/// the same bytes superfluous: that is acknowledged, and must be there after the next power loss.
#[test]
fn a_record_that_came_back_does_not_vouch_for_its_bytes() {
    let machine = Machine::new();
    let client = machine.open(Durability::Persistent);
    store(&client);
    assert!(client.connector.close().clean);
    drop(client);
    let client = machine.open(Durability::Persistent);
    client.delete(&[key(3)]);
    while client.connector.stats().allocated_bytes != (CHUNKS - 1) * LENGTH as u64 {
        std::thread::yield_now();
    }
    // The write into its place and the sync of that are done; the sync of the index, with the cleared record, is not.
    machine.disk.arm(3, Crash::PowerLossKeepingNothing);
    client.submit_set(&[key(99)], &[&Memory::patterned(LENGTH, 0, 99)]);
    while !machine.disk.has_crashed() {
        std::thread::yield_now();
    }
    let machine = machine.crash(Crash::PowerLossKeepingNothing, client);

    let client = machine.open(Durability::Persistent);
    assert_eq!(client.connector.recovery().kept, CHUNKS, "the record is back");
    // Closed and opened in order, it is still not to be believed.
    assert!(client.connector.close().clean);
    drop(client);
    let client = machine.open(Durability::Persistent);
    let (keys, memory) = chunks();
    assert!(client.set(&keys, &memory).ok);
    let machine = machine.crash(Crash::PowerLossKeepingNothing, client);
    let client = machine.open(Durability::Persistent);
    assert_eq!(intact(&client), CHUNKS);
    // What was read and matched is believed.
    assert!(client.set(&keys, &memory).ok);
    assert_eq!(client.counter("set_unchanged"), CHUNKS);
}
