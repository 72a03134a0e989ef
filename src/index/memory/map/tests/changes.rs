//! Records that are changed in memory before they are in the file.

use std::collections::HashMap;
use std::path::Path;

use super::*;
use crate::format::header::HEADER_BYTES;
use crate::format::names::INDEX_NAME;
use crate::format::record::{RECORD_BYTES, Record};

/// Makes all changes that are queued, `some` at a time, and calls `look` after each time.
fn write_behind(index: &TestIndex, some: usize, mut look: impl FnMut()) {
    let mut changes = Vec::new();
    while !index.table.changes.is_done(index.table.changes.ticket()) {
        index.table.changes.take(&mut changes);
        for part in changes.chunks(some) {
            index.table.make_in_order(part, &|_| ());
            index.table.changes.note_done(part.len() as u64);
            look();
        }
        changes.clear();
    }
}

/// Generations of the chunks that a start would find in the file, by digest.
fn found_by_a_start(directory: &Path) -> HashMap<Digest, Vec<u64>> {
    let bytes = std::fs::read(directory.join(INDEX_NAME)).unwrap();
    let records = bytes[HEADER_BYTES as usize..].chunks_exact(RECORD_BYTES);
    let mut found: HashMap<Digest, Vec<u64>> = HashMap::new();
    for record in records.map(bytemuck::pod_read_unaligned::<Record>).filter(Record::is_sensible) {
        found.entry(record.digest()).or_default().push(record.generation);
    }
    found
}

fn fits_its_records(index: &TestIndex) -> bool {
    let problems = index.check(|| u64::MAX).problems;
    !problems.iter().any(|problem| problem.contains("does not fit its record"))
}

/// What a SET does, also of a key that is held.
fn replace(index: &TestIndex, key: &Arc<str>, length_bytes: u64) {
    let digest = Digest::of(key);
    assert!(matches!(index.enter_set(digest, key, 0, 0), ClaimOutcome::Ready(_)));
    finish(index, digest, Some(publication(index, key, length_bytes)));
}

fn is_held(index: &TestIndex, key: &str, length_bytes: u64) -> bool {
    let pin = index.pin_stored(Hashed::of(key), length_bytes, 0).ok();
    let held = pin.is_some_and(|pin| index.unpin(&pin, false).is_none());
    assert_eq!(exists(index, &[key]), [held]);
    held
}

#[test]
fn what_is_not_written_yet_is_known_and_what_was_written_is_gone() {
    let (directory, index) = index();
    index.table.changes.defer(true);
    let keys: [Arc<str>; 2] = ["short".into(), "long".repeat(100).into()];
    for key in &keys {
        store(&index, Digest::of(key), key, 100);
        assert!(is_held(&index, key, 100));
        assert!(!exists(&index, &["other"])[0]);
    }
    assert!(found_by_a_start(directory.path()).is_empty());
    assert!(fits_its_records(&index));
    write_behind(&index, usize::MAX, || ());
    assert_eq!(found_by_a_start(directory.path()).len(), 2);
    for key in &keys {
        assert!(index.delete(Digest::of(key), key).0);
        assert!(!is_held(&index, key, 100));
    }
    assert_eq!(found_by_a_start(directory.path()).len(), 2);
    // In the slots of the others.
    for key in &keys {
        store(&index, Digest::of(key), key, 200);
        assert!(is_held(&index, key, 200));
    }
    assert!(fits_its_records(&index));
    write_behind(&index, usize::MAX, || ());
    assert!(found_by_a_start(directory.path()).values().all(|found| found.len() == 1));
    assert!(keys.iter().all(|key| is_held(&index, key, 200)));
}

/// A kill between any two writes leaves a record of a key that was replaced, and never an older one than before.
#[test]
fn there_is_always_a_record_of_a_key_that_is_replaced() {
    let (directory, index) = index();
    let key: Arc<str> = "key".repeat(100).into();
    let digest = Digest::of(&key);
    store(&index, digest, &key, 100);
    index.table.changes.defer(true);
    for length_bytes in 101..110 {
        replace(&index, &key, length_bytes);
    }
    let mut newest = 0;
    write_behind(&index, 1, || {
        let found = found_by_a_start(directory.path());
        let newest_now = found[&digest].iter().max().copied().unwrap();
        assert!(newest_now >= newest);
        newest = newest_now;
    });
    assert_eq!(found_by_a_start(directory.path())[&digest].len(), 1);
    assert!(is_held(&index, &key, 109));
}

/// Whether changes are written at once, one by one or together makes no difference to the file.
#[test]
fn the_file_is_the_same_however_late_it_is_written() {
    let runs = [(false, 1), (true, 1), (true, 7), (true, usize::MAX)].map(|(is_deferred, some)| {
        let (directory, index) = index();
        if is_deferred {
            index.table.changes.defer(true);
        }
        for step in 0_u64..1000 {
            // Some keys take several slots.
            let number = step * 7919 % 61;
            let key: Arc<str> = format!("{number}").repeat(1 + (number % 5 * 60) as usize).into();
            let digest = Digest::of(&key);
            match step * 104_729 % 3 {
                0 => drop(index.delete(digest, &key)),
                _ => replace(&index, &key, 100 + step),
            }
            if step % 5 == 0 {
                let held = exists(&index, &[&*key])[0];
                assert_eq!(index.pin_keys(&[Hashed::of(&key)], 0), [held]);
                index.unpin_keys(&[Hashed::of(&key)]);
            }
            if step % 97 == 0 {
                index.write_all_uses();
                write_behind(&index, some, || ());
            }
        }
        write_behind(&index, some, || ());
        let bytes = std::fs::read(directory.path().join(INDEX_NAME)).unwrap();
        (index.keys(), bytes[HEADER_BYTES as usize..].to_vec())
    });
    assert!(runs[0].0 > 20);
    assert!(runs.iter().all(|run| run.1 == runs[0].1 && run.0 == runs[0].0));
}
