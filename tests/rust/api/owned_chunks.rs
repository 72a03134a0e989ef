//! Batches that own the memory of their chunks, and the example that uses them.

use std::time::Duration;

use kvring::{Completion, Connector, SubmitError};

use crate::common::{MIB, config, pattern};

#[path = "../../../examples/from_rust.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a program, and its main is not called here")]
mod from_rust;

#[test]
fn the_example_stores_and_loads() {
    let directory = tempfile::tempdir().unwrap();
    from_rust::store_and_load(directory.path().join("store").to_str().unwrap()).unwrap();
}

fn next(connector: &Connector) -> Completion {
    let mut completions = Vec::new();
    assert!(connector.wait(Duration::from_secs(60)).unwrap(), "no completion");
    connector.drain(&mut completions);
    completions.pop().unwrap()
}

#[test]
fn completions_give_chunks_back() {
    let directory = tempfile::tempdir().unwrap();
    let connector = Connector::open(config(directory.path(), 64 * MIB)).unwrap();
    assert!(!connector.wait(Duration::ZERO).unwrap(), "there is no completion yet");
    let chunks = vec![pattern(5000, 1), pattern(100_001, 2)];
    connector.submit_set_owned(&["a", "b"], chunks.clone()).unwrap();
    let stored = next(&connector);
    assert!(stored.ok, "{}", stored.error);
    assert_eq!(stored.into_chunks(), Some(chunks.clone()));

    // The memory of a miss comes back as it was.
    let memory = vec![vec![0; 100_001], vec![9; 7], vec![0; 5000]];
    connector.submit_get_owned(&["b", "missing", "a"], memory).unwrap();
    let loaded = next(&connector);
    assert_eq!(loaded.results, [true, false, true]);
    assert_eq!(loaded.into_chunks(), Some(vec![chunks[1].clone(), vec![9; 7], chunks[0].clone()]));

    connector.submit_exists(&["a"]).unwrap();
    assert_eq!(next(&connector).into_chunks(), None);
}

#[test]
fn batches_that_own_their_memory_are_refused_as_others_are() {
    let directory = tempfile::tempdir().unwrap();
    let connector = Connector::open(config(directory.path(), 64 * MIB)).unwrap();
    let refusal = connector.submit_set_owned(&["a"], vec![vec![1], vec![2]]).unwrap_err();
    assert!(matches!(refusal, SubmitError::CountMismatch { keys: 1, buffers: 2 }), "{refusal}");
    let refusal = connector.submit_set_owned(&["a"], vec![Vec::new()]).unwrap_err();
    assert!(matches!(refusal, SubmitError::EmptyChunk { position: 0 }), "{refusal}");
    connector.close();
    let refusal = connector.submit_get_owned(&["a"], vec![vec![1]]).unwrap_err();
    assert!(matches!(refusal, SubmitError::Closed), "{refusal}");
}
