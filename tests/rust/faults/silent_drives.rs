//! A drive that takes transfers and gives none back: what has not begun is refused at once, until it answers again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::faults::{Fault, scripted_and_stuck};
use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config, eventually, key, keys, logged};
use kvring::testing::Action;
use kvring::{Config, FailureCode, Layout};

const LENGTH: usize = 64 << 10;

/// A store whose device takes one piece of a class at a time.
fn narrow(path: &Path, layout: Layout) -> Config {
    let mut config = config(path, 64 * MIB);
    config.layout = layout;
    (config.tuning.queue_depth, config.tuning.max_io_bytes) = (Some(1), LENGTH as u64);
    config
}

fn open_held(path: &Path) -> (Client, HeldBack) {
    HeldBack::open(narrow(path, Layout::Extents))
}

fn trouble(client: &Client) -> String {
    client.connector.stats().paths[0].trouble.clone()
}

fn is_silent_then_well(
    directory: &Path,
    client: &Client,
    answers_again: impl FnOnce(),
    begun: &[u64],
) {
    eventually("the silence", || trouble(client).contains("the drive answers nothing: the oldest"));
    assert!(client.connector.stats().paths[0].stuck);
    // All but the first one, which the device has.
    for queued in &begun[1..] {
        assert_eq!(client.wait(*queued).results, [false]);
    }
    assert!(client.take(begun[0]).is_none());
    assert_eq!(client.get_one(&key(0), LENGTH), None, "at once");
    assert_eq!(client.exists(&keys(0..3)), [false; 3]);
    let refused = client.set(&keys(7..8), &[&Memory::patterned(LENGTH, 0, 7)]);
    assert_eq!(refused.code, Some(FailureCode::Unavailable));
    assert!(refused.error.contains("the drive answers nothing"), "{}", refused.error);
    answers_again();
    assert_eq!(client.wait(begun[0]).results, [true]);
    assert_eq!((trouble(client), client.connector.stats().paths[0].stuck), (String::new(), false));
    assert_eq!(client.exists(&keys(0..3)), [true; 3]);
    client.assert_held(0..3, LENGTH);
    client.fill([7], LENGTH);
    assert_eq!(logged::lines(directory, "the drive answers nothing").len(), 1);
    assert_eq!(logged::lines(directory, "the drive answers again").len(), 1);
    assert!(client.counter("transfers_slow") > 0);
    assert!(client.connector.stats().paths[0].note.contains("the drive is slow"));
    client.assert_consistent();
}

fn begin_loads(client: &Client, memory: &[Memory]) -> Vec<u64> {
    let begin =
        |(number, memory): (usize, &Memory)| client.submit_get(&[key(number as u64)], &[memory]);
    memory.iter().enumerate().map(begin).collect()
}

/// The reactor sleeps meanwhile.
#[test]
fn a_drive_that_answers_nothing_is_asked_nothing_until_it_answers() {
    logged::keep();
    let directory = tempfile::tempdir().unwrap();
    let (client, held) = open_held(directory.path());
    client.fill(0..3, LENGTH);
    held.hold(Action::Read);
    let memory: Vec<Memory> = (0..3).map(|_| Memory::new(LENGTH, 0)).collect();
    let begun = begin_loads(&client, &memory);
    is_silent_then_well(directory.path(), &client, || held.release(), &begun);
    assert_eq!(memory[0].bytes(), crate::common::pattern(LENGTH, 0));
}

/// The file of a chunk cannot even be opened.
#[test]
fn a_file_system_that_answers_nothing_is_asked_nothing_until_it_answers() {
    logged::keep();
    let directory = tempfile::tempdir().unwrap();
    let stuck = Arc::new(AtomicBool::new(false));
    let engine = scripted_and_stuck(Arc::clone(&stuck), |_, _, _| Fault::None);
    let client = Client::over(narrow(directory.path(), Layout::Files), engine);
    client.fill(0..3, LENGTH);
    stuck.store(true, Ordering::SeqCst);
    let memory: Vec<Memory> = (0..3).map(|_| Memory::new(LENGTH, 0)).collect();
    let begun = begin_loads(&client, &memory);
    let go_on = || stuck.store(false, Ordering::SeqCst);
    is_silent_then_well(directory.path(), &client, go_on, &begun);
}

/// As where a file system is frozen.
#[test]
fn where_only_writes_are_silent_loads_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let (client, held) = open_held(directory.path());
    client.fill(0..3, LENGTH);
    held.hold(Action::Write);
    let content = Memory::patterned(LENGTH, 0, 9);
    let set = client.submit_set(&keys(9..10), &[&content]);
    held.until_given(1);
    eventually("the silence", || trouble(&client).contains("the oldest of its writes"));
    assert_eq!(client.get_one(&key(1), LENGTH).unwrap(), crate::common::pattern(LENGTH, 1));
    assert_eq!(client.exists(&keys(0..1)), [true]);
    assert!(!client.set_one(&key(8), &Memory::patterned(LENGTH, 0, 8)));
    held.release();
    assert!(client.wait(set).ok);
    assert_eq!((trouble(&client), client.counter("set_failed")), (String::new(), 1));
    assert_eq!(client.get_one(&key(9), LENGTH).unwrap(), content.bytes());
    client.assert_consistent();
}
