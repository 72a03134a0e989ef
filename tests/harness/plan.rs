//! What a seed stands for in every search: keys and their names, chunks and their bytes, and which operation comes next.

use super::common::random::Random;
use super::common::{Memory, pattern};

/// Namespaces, by the number of a key: two of them are of keys that are not of LMCache's form.
const NAMESPACES: [&str; 6] = ["large/model", "large/model@salt", "small", "small@tenant", "", ""];
/// Of this many keys without a namespace one is long: its record is a chain.
const LONG_KEYS: u64 = 4;

/// A chunk that was handed in: its number, which its bytes follow from, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chunk {
    pub(crate) version: u64,
    pub(crate) length: usize,
}

impl Chunk {
    /// Memory with its bytes.
    pub(crate) fn memory(self, shift: usize) -> Memory {
        Memory::patterned(self.length, shift, self.version)
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        pattern(self.length, self.version)
    }
}

/// How a session of a store ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Close,
    Kill,
    PowerLoss,
    CloseThenPowerLoss,
}

/// An operation on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Set,
    Get,
    Exists,
    Prefix,
    Delete,
    Pin,
    Unpin,
    Purge,
    Expire,
    Flush,
}

impl Call {
    /// One of these, each with its weight.
    pub(crate) fn draw(random: &mut Random, weights: &[(Self, u64)]) -> Self {
        let mut left = random.below(weights.iter().map(|(_, weight)| weight).sum());
        for (call, weight) in weights {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *call,
            }
        }
        unreachable!("one of them has the last of all weights")
    }
}

/// Up to `most` keys of `all`, each once and in order; often only of the first `hot` ones.
pub(crate) fn draw_keys(random: &mut Random, most: u64, hot: u64, all: u64) -> Vec<u64> {
    let limit = if random.one_of(3) { hot } else { all };
    let mut keys: Vec<u64> = (0..1 + random.below(most)).map(|_| random.below(limit)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Lengths depend on key and version, odd ones and short ones among them: three for each key, so that older chunks have them too.
pub(crate) fn length(key: u64, version: u64, longest: usize) -> usize {
    1 + ((key * key * 61 + version % 3 * 4999) % longest as u64) as usize
}

/// The namespace of a key.
pub(crate) fn namespace(key: u64) -> &'static str {
    NAMESPACES[(key % NAMESPACES.len() as u64) as usize]
}

pub(crate) fn namespaces() -> &'static [&'static str] {
    &NAMESPACES[..NAMESPACES.len() - 1]
}

/// How a key is spelt.
pub(crate) fn name(key: u64) -> String {
    let (model, salt) = namespace(key).split_once('@').unwrap_or((namespace(key), ""));
    match (model, salt) {
        ("", _) if (key / NAMESPACES.len() as u64).is_multiple_of(LONG_KEYS) => {
            format!("{key:0>1000}")
        }
        ("", _) => format!("key-{key}"),
        (model, "") => format!("{model}@00000001@0@{key:064x}"),
        (model, salt) => format!("{model}@00000001@0@{key:064x}@{salt}"),
    }
}

pub(crate) fn names(keys: &[u64]) -> Vec<String> {
    keys.iter().map(|key| name(*key)).collect()
}

/// The key spelt so.
pub(crate) fn key_of(name: &str) -> u64 {
    let last = match name.split('@').nth(3) {
        Some(hash) => u64::from_str_radix(hash.trim_start_matches('0'), 16),
        None => name.trim_start_matches("key-").trim_start_matches('0').parse(),
    };
    // What is all zeros is key 0.
    last.unwrap_or(0)
}
