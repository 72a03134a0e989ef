//! Which answers and contents are allowed, by what the ledger says of a key.

use std::collections::BTreeSet;
use std::ops::Range;
use std::thread;
use std::time::Instant;

use kvring::Stats;

use super::common::{Client, HANG_TIMEOUT, Memory};
use super::ledger::{Held, Ledger, Possible};
use super::plan::{Chunk, name};

/// The lengths in which a key may be there.
pub(crate) fn lengths(possible: &Possible) -> BTreeSet<usize> {
    possible.iter().flatten().map(|chunk| chunk.length).collect()
}

/// Which of the chunks that may be there these bytes are.
pub(crate) fn identify(name: &str, possible: &Possible, bytes: &[u8]) -> Result<Chunk, String> {
    identify_by(name, possible, |chunk| chunk.length == bytes.len() && chunk.bytes() == bytes)
}

/// The same for who looks at the bytes in a way of its own.
pub(crate) fn identify_by(
    name: &str,
    possible: &Possible,
    is: impl Fn(Chunk) -> bool,
) -> Result<Chunk, String> {
    let mut chunks = possible.iter().flatten().copied();
    chunks.find(|chunk| is(*chunk)).ok_or(format!("'{name}': wrong bytes, not of {possible:?}"))
}

/// Loads each key in each length that it may have: what is found must be one of the chunks that may be there, and nothing only if
/// nothing may be. What a key has is settled.
pub(crate) fn look(
    client: &Client,
    ledger: &mut Ledger,
    keys: Range<u64>,
    may_be_damaged: impl Fn(u64) -> bool,
) -> Result<Vec<(u64, Held)>, String> {
    let keys: Vec<(u64, Possible)> = keys.map(|key| (key, ledger.possible(key))).collect();
    let places: Vec<(String, Memory)> = keys
        .iter()
        .flat_map(|(key, possible)| {
            let name = name(*key);
            lengths(possible)
                .into_iter()
                .map(move |length| (name.clone(), Memory::unwatched(length)))
        })
        .collect();
    let (names, memory): (Vec<String>, Vec<&Memory>) =
        places.iter().map(|(name, memory)| (name.clone(), memory)).unzip();
    let completion = client.get(&names, &memory);
    assert!(completion.ok, "{}", completion.error);
    let mut loaded = memory.into_iter().zip(completion.results);
    // What is missed in each length that it may have is not there in another one either.
    let exists = client.exists(&keys.iter().map(|(key, _)| name(*key)).collect::<Vec<_>>());
    let mut all = Vec::new();
    for ((key, possible), exists) in keys.into_iter().zip(exists) {
        let own = loaded.by_ref().take(lengths(&possible).len());
        let found: Vec<&Memory> = own.filter(|(_, hit)| *hit).map(|(memory, _)| memory).collect();
        let held = match &found[..] {
            [] => None,
            [memory] => Some(identify(&name(key), &possible, memory.bytes())?),
            _ => return Err(format!("key {key}: there in two lengths; possible: {possible:?}")),
        };
        let is_damaged = exists && held.is_none() && may_be_damaged(key);
        if !possible.contains(&held) || exists != held.is_some() && !is_damaged {
            return Err(format!(
                "key {key}: {held:?} is there, by EXISTS {exists}; possible: {possible:?}; {}",
                client.connector.recovery()
            ));
        }
        ledger.settle(key, [held]);
        all.push((key, held));
    }
    Ok(all)
}

/// Everything fits together, no space is lost once nothing moves any more, and capacity and quotas are kept.
pub(crate) fn check(
    client: &Client,
    quota_bytes: impl Fn(&str) -> Option<u64>,
) -> Result<Stats, String> {
    let hang = Instant::now() + HANG_TIMEOUT;
    loop {
        let check = client.connector.check().map_err(|error| error.to_string())?;
        if !check.problems.is_empty() {
            return Err(format!("check() says {:?}", check.problems));
        }
        if check.moving_bytes + check.reserved_bytes == 0 {
            break;
        }
        if Instant::now() > hang {
            return Err(format!("space leaks, nothing moves: {check:?}"));
        }
        thread::yield_now();
    }
    for (namespace, usage) in client.connector.usage().map_err(|error| error.to_string())? {
        if quota_bytes(&namespace).is_some_and(|quota| usage.allocated_bytes > quota) {
            return Err(format!("namespace '{namespace}' is over its quota: {usage:?}"));
        }
    }
    let stats = client.connector.stats();
    match stats.used_bytes > stats.capacity_bytes {
        true => Err(format!("too much used: {stats:?}")),
        false => Ok(stats),
    }
}
