//! What a store may hold of each key, after what was done to it and how its sessions ended.

use std::collections::{BTreeMap, BTreeSet};

use super::common::{Client, Memory, pattern};

pub(crate) const KEYS: u64 = 12;
/// Lengths that the versions of a key have in turn.
const KINDS: u64 = 3;

/// A version, or nothing.
type Held = Option<u64>;

/// What is known of a key.
struct Known {
    /// Every version that was ever handed in.
    ever: BTreeSet<u64>,
    /// What may be there now, and after the death of the process.
    now: BTreeSet<Held>,
    /// What may be there after power loss.
    durable: BTreeSet<Held>,
}

/// What is known of all keys, and memory to look at them: for each key in each of its lengths.
pub(crate) struct Oracle {
    known: BTreeMap<u64, Known>,
    memory: Vec<Memory>,
}

pub(crate) fn name(number: u64) -> String {
    // Every third key is a chain of records.
    if number.is_multiple_of(3) { format!("{number:0>400}") } else { format!("key-{number}") }
}

pub(crate) fn length(number: u64, version: u64) -> usize {
    (1 + number * 700 + (version % KINDS) * 4096) as usize
}

pub(crate) fn content(number: u64, version: u64) -> Vec<u8> {
    pattern(length(number, version), version * 100 + number)
}

/// Each key with each kind of its lengths.
fn places() -> impl Iterator<Item = (u64, u64)> {
    (0..KEYS).flat_map(|number| (0..KINDS).map(move |kind| (number, kind)))
}

impl Oracle {
    pub(crate) fn new() -> Self {
        let nothing = || BTreeSet::from([None]);
        let known = || Known { ever: BTreeSet::new(), now: nothing(), durable: nothing() };
        let known = (0..KEYS).map(|number| (number, known())).collect();
        let memory = places().map(|(number, kind)| Memory::unwatched(length(number, kind)));
        Self { known, memory: memory.collect() }
    }

    /// The version that is held, where that is certain.
    pub(crate) fn held(&self, number: u64) -> Held {
        let now = &self.known[&number].now;
        if now.len() == 1 { now.first().copied().flatten() } else { None }
    }

    pub(crate) fn begin_set(&mut self, number: u64, version: u64, persistent: bool) {
        let known = self.known(number);
        // Bytes that are held are not written again.
        if known.now != BTreeSet::from([Some(version)]) {
            known.ever.insert(version);
            known.now.insert(Some(version));
            known.durable.insert(Some(version));
            if !persistent {
                known.durable.insert(None);
            }
        }
    }

    pub(crate) fn end_set(&mut self, number: u64, version: u64, persistent: bool) {
        let known = self.known(number);
        known.now = BTreeSet::from([Some(version)]);
        if persistent {
            known.durable.clone_from(&known.now);
        }
    }

    /// A DELETE is not synced: power loss may bring back what was there.
    pub(crate) fn begin_delete(&mut self, number: u64) {
        let known = self.known(number);
        known.now.insert(None);
        known.durable.insert(None);
    }

    pub(crate) fn end_delete(&mut self, number: u64) {
        self.known(number).now = BTreeSet::from([None]);
    }

    /// All that was completed was flushed. Of a key that is under way either version may be there, or neither.
    pub(crate) fn flush(&mut self) {
        let certain = self.known.values_mut().filter(|known| known.now.len() == 1);
        certain.for_each(|known| known.durable.clone_from(&known.now));
    }

    /// The power was gone: whatever was durable may be there.
    pub(crate) fn lose_power(&mut self) {
        self.known.values_mut().for_each(|known| known.now.clone_from(&known.durable));
    }

    /// The store was closed in order: all of it is durable.
    pub(crate) fn close(&mut self) {
        self.known.values_mut().for_each(|known| known.durable.clone_from(&known.now));
    }

    /// Compares every key with what may be there, and notes what is; `durable` says that no power loss changes that.
    pub(crate) fn look(&mut self, client: &Client, durable: bool) -> Result<(), String> {
        let names: Vec<String> = places().map(|(number, _)| name(number)).collect();
        self.memory.iter().for_each(Memory::poison);
        let completion = client.get(&names, &self.memory.iter().collect::<Vec<_>>());
        assert!(completion.ok, "{}", completion.error);
        let loaded: Vec<_> = self.memory.iter().zip(completion.results).collect();
        let of_key = loaded.chunks(KINDS as usize);
        for ((number, known), loaded) in self.known.iter_mut().zip(of_key) {
            let found: Vec<&[u8]> =
                loaded.iter().filter(|(_, hit)| *hit).map(|(memory, _)| memory.bytes()).collect();
            let held = match &found[..] {
                [] => None,
                [bytes] => {
                    let ever = known.ever.iter().copied();
                    let same: Vec<u64> =
                        ever.filter(|version| *bytes == content(*number, *version)).collect();
                    // A chunk of one byte can be several versions.
                    let is_possible = |version: &&u64| known.now.contains(&Some(**version));
                    let version = same.iter().find(is_possible).or(same.first());
                    Some(*version.ok_or(format!("key {number}: wrong bytes"))?)
                }
                _ => return Err(format!("key {number}: there in two lengths")),
            };
            if !known.now.contains(&held) {
                return Err(format!("key {number}: {held:?} is there; possible: {:?}", known.now));
            }
            known.now = BTreeSet::from([held]);
            if durable {
                known.durable = BTreeSet::from([held]);
            }
        }
        Ok(())
    }

    fn known(&mut self, number: u64) -> &mut Known {
        self.known.get_mut(&number).expect("a key below KEYS")
    }
}
