//! Registered memory: the same bytes, whatever of them is registered, and while registrations come and go.

use crate::common::{Client, MIB, Memory, config, engine_choice, key, pattern};
use kvring::{CallerBuffer, Connector, EngineChoice, MemoryError, MemoryHandle, SubmitError};

const LENGTH: usize = MIB as usize;

fn register(connector: &Connector, memory: &Memory, part: std::ops::Range<usize>) -> MemoryHandle {
    // SAFETY: inside the memory, which outlives the handle in each test.
    let part = unsafe { CallerBuffer::new(memory.buffer_pointer().add(part.start), part.len()) };
    connector.register_memory(part).unwrap()
}

/// Stores and loads `length` bytes and says how many transfers were fixed.
fn round_trip(client: &Client, memory: &Memory, length: usize, seed: u64) -> u64 {
    let before = client.connector.stats().transfers_fixed;
    let bytes = pattern(length, seed);
    memory.fill(&bytes);
    assert!(client.set_one(&key(seed), memory));
    memory.fill(&vec![0; length]);
    assert_eq!(client.get(&[key(seed)], &[memory]).results, [true]);
    assert_eq!(memory.bytes(), bytes);
    client.connector.stats().transfers_fixed - before
}

#[test]
fn bytes_are_the_same_whatever_is_registered() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 64 * MIB);
    // Whether transfers of 512 KiB are fixed: loads and stores, of two halves each.
    let cases = [
        (LENGTH, 0, vec![(0, LENGTH)], 4),
        (LENGTH, 0, vec![(0, LENGTH / 2)], 2),
        (LENGTH, 0, vec![(0, LENGTH / 2), (LENGTH / 2, LENGTH)], 4),
        // The first half is in no single one.
        (LENGTH, 0, vec![(0, LENGTH / 4), (LENGTH / 4, LENGTH)], 2),
        // The tail goes through bounce memory.
        (LENGTH - 100, 0, vec![(0, LENGTH - 100)], 2),
        (LENGTH, 0, vec![], 0),
    ];
    let has_rings = client.connector.stats().engine.contains("io_uring");
    assert!(has_rings || engine_choice() != EngineChoice::IoUring);
    for (seed, (length, shift, parts, fixed)) in cases.into_iter().enumerate() {
        let memory = Memory::new(length, shift);
        let wanted: usize = parts.iter().map(|(start, end)| end - start).sum();
        let handles: Vec<_> = parts
            .into_iter()
            .map(|(start, end)| register(&client.connector, &memory, start..end))
            .collect();
        let registered: u64 = handles.iter().map(MemoryHandle::registered_bytes).sum();
        assert_eq!(registered, if has_rings { wanted as u64 } else { 0 });
        assert_eq!(client.connector.stats().registered_bytes, registered);
        let moved_fixed = round_trip(&client, &memory, length, seed as u64);
        let is_direct = client.connector.stats().geometry.direct;
        if has_rings && is_direct {
            assert_eq!(moved_fixed, fixed, "case {seed}");
        } else {
            assert_eq!(moved_fixed == 0, !has_rings || fixed == 0);
        }
        drop(handles);
        assert_eq!(client.connector.stats().registered_bytes, 0);
        assert_eq!(round_trip(&client, &memory, length, 100 + seed as u64), 0);
    }
}

#[test]
fn every_reactor_of_every_path_knows_it() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let paths = directories.each_ref().map(|directory| directory.path().to_owned());
    let mut config = crate::common::config_of(&paths, 64 * MIB);
    config.io_threads = Some(2);
    let client = Client::with(config);
    let has_rings = client.connector.stats().engine.contains("io_uring");
    let memory = Memory::new(LENGTH, 0);
    let handle = register(&client.connector, &memory, 0..LENGTH);
    for seed in 0..16 {
        let fixed = round_trip(&client, &memory, LENGTH, seed);
        assert_eq!(fixed, if has_rings { 4 } else { 0 });
    }
    drop(client);
    // Without effect: the connector has unregistered it.
    drop(handle);
}

#[test]
fn memory_is_unregistered_while_loads_are_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 64 * MIB);
    let chunks: Vec<_> = (0..8).map(|seed| Memory::patterned(LENGTH, 0, seed)).collect();
    let keys: Vec<_> = (0..8).map(key).collect();
    assert!(client.set(&keys, &chunks).ok);
    for _ in 0..50 {
        let memory: Vec<_> = keys.iter().map(|_| Memory::new(LENGTH, 0)).collect();
        let handles: Vec<_> =
            memory.iter().map(|memory| register(&client.connector, memory, 0..LENGTH)).collect();
        let loads = client.submit_get(&keys, &memory);
        drop(handles);
        assert_eq!(client.wait(loads).results, [true; 8]);
        for (loaded, stored) in memory.iter().zip(&chunks) {
            assert!(loaded.bytes() == stored.bytes());
        }
    }
    let stats = client.connector.stats();
    assert_eq!((stats.registered_bytes, client.counter("read_errors")), (0, 0));
    assert!(stats.transfers_fixed > 0 || !stats.engine.contains("io_uring"));
}

#[test]
fn what_cannot_be_registered_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let connector = Connector::open(config(directory.path(), 64 * MIB)).unwrap();
    let memory = Memory::new(LENGTH, 0);
    let start = memory.buffer_pointer();
    let refused = |address: *mut u8, length| {
        // SAFETY: inside the memory, or refused, or of an address that nothing is done with.
        let memory = unsafe { CallerBuffer::new(address, length) };
        connector.register_memory(memory).err().expect("a refusal")
    };
    assert!(matches!(refused(start, 0), SubmitError::Memory(MemoryError::Empty)));
    let beyond = refused(start, usize::MAX);
    assert!(matches!(beyond, SubmitError::Memory(MemoryError::TooLong { .. })), "{beyond}");
    let handle = register(&connector, &memory, 0..LENGTH);
    if handle.registered_bytes() > 0 {
        let again = refused(start.wrapping_add(LENGTH - 1), 1);
        assert!(matches!(again, SubmitError::Memory(MemoryError::Overlap { .. })), "{again}");
    }
    handle.close();
    handle.close();
    drop(register(&connector, &memory, LENGTH - 1..LENGTH));
    connector.close();
    assert!(matches!(refused(start, LENGTH), SubmitError::Closed));
}
