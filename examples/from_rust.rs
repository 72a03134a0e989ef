//! Store chunks, open the store again, and load them.
//!
//!     cargo run --release --example from_rust -- DIRECTORY

use std::error::Error;
use std::time::Duration;

use kvring::{Completion, Config, Connector};

const CAPACITY_BYTES: u64 = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: from_rust DIRECTORY")?;
    store_and_load(&path)
}

/// Stores three chunks, opens the store again, and loads them.
pub fn store_and_load(path: &str) -> Result<(), Box<dyn Error>> {
    // LMCache's form of a key: model@kv_rank@object_group@chunk_hash.
    let keys: Vec<String> =
        (0..3).map(|number| format!("demo/model@00000000@0@{number:064x}")).collect();
    let chunks: Vec<Vec<u8>> = (1..=3).map(|byte| vec![byte; 64 << 10]).collect();

    let store = open(path)?;
    let batch = store.submit_set_owned(&keys, chunks.clone())?;
    let completion = completion_of(&store, batch)?;
    if !completion.ok {
        return Err(completion.error.into());
    }
    store.close();

    let store = open(path)?;
    println!("found after a restart: {:?}", store.exists(&keys)?);
    // A load takes memory of exactly the length of the chunk.
    let lengths = store.lengths(&keys)?.into_iter().map(|length| length.unwrap_or(0));
    let memory = lengths.map(|length| vec![0; length as usize]).collect();
    let batch = store.submit_get_owned(&keys, memory)?;
    let loaded = completion_of(&store, batch)?;
    println!("loaded: {:?}", loaded.results);
    assert_eq!(loaded.into_chunks(), Some(chunks));
    Ok(())
}

fn open(path: &str) -> Result<Connector, Box<dyn Error>> {
    let mut config = Config::new(path, CAPACITY_BYTES)?;
    // The default expires chunks 7 days after their last use.
    config.ttl = None;
    Ok(Connector::open(config)?)
}

/// Waits for one batch. A program with several batches in flight also keeps the other completions.
fn completion_of(store: &Connector, batch: u64) -> Result<Completion, Box<dyn Error>> {
    let mut completions = Vec::new();
    while store.wait(TIMEOUT)? {
        store.drain(&mut completions);
        if let Some(found) = completions.iter().position(|one| one.future_id == batch) {
            return Ok(completions.swap_remove(found));
        }
    }
    Err(format!("the drive did not answer within {TIMEOUT:?}").into())
}
