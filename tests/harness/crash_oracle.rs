//! What a store may hold of each key, after what was done to it and how its sessions ended.

use std::collections::{BTreeMap, BTreeSet};

use super::common::{Client, pattern};

pub(crate) const KEYS: u64 = 12;

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

/// What is known of all keys.
pub(crate) struct Oracle(BTreeMap<u64, Known>);

pub(crate) fn name(number: u64) -> String {
    // Every third key is a chain of records.
    if number.is_multiple_of(3) { format!("{number:0>400}") } else { format!("key-{number}") }
}

pub(crate) fn length(number: u64, version: u64) -> usize {
    (1 + number * 700 + (version % 3) * 4096) as usize
}

pub(crate) fn content(number: u64, version: u64) -> Vec<u8> {
    pattern(length(number, version), version * 100 + number)
}

impl Oracle {
    pub(crate) fn new() -> Self {
        let nothing = || BTreeSet::from([None]);
        let known = || Known { ever: BTreeSet::new(), now: nothing(), durable: nothing() };
        Self((0..KEYS).map(|number| (number, known())).collect())
    }

    /// The version that is held, where that is certain.
    pub(crate) fn held(&self, number: u64) -> Held {
        let now = &self.0[&number].now;
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

    /// The power was gone: whatever was durable may be there.
    pub(crate) fn lose_power(&mut self) {
        self.0.values_mut().for_each(|known| known.now.clone_from(&known.durable));
    }

    /// The store was closed in order: all of it is durable.
    pub(crate) fn close(&mut self) {
        self.0.values_mut().for_each(|known| known.durable.clone_from(&known.now));
    }

    /// Compares every key with what may be there, and notes what is; `durable` says that no power loss changes that.
    pub(crate) fn look(&mut self, client: &Client, durable: bool) -> Result<(), String> {
        for (number, known) in &mut self.0 {
            let found: Vec<Vec<u8>> = (0..3)
                .filter_map(|kind| client.get_one(&name(*number), length(*number, kind)))
                .collect();
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
        self.0.get_mut(&number).expect("a key below KEYS")
    }
}
