//! Ghosts: keys without chunks that were evicted or not admitted. The bytes evicted since then tell whether a larger store would
//! still have the chunk.

use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::evict::NamespaceId;
use crate::key::Digest;

/// Most ghosts of a shard: so many for each stored key, and a few more.
const FOR_EACH_HELD: usize = 2;
const AT_LEAST: usize = 16;

/// Packed: there are up to two for each stored key.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub(crate) struct Ghost {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) namespace: NamespaceId,
    /// Bytes that the whole store had evicted when the key was remembered last.
    pub(crate) since_bytes: u64,
    /// SETs that were not admitted.
    pub(crate) refused_sets: u8,
    /// Its chunk was evicted.
    pub(crate) was_evicted: bool,
}

/// A quarter of a digest, of the half that did not choose the shard. Two keys with one pass for each other, which costs a wrong
/// count: in a shard with 10,000 ghosts that is one key of 400,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u32);

impl Fingerprint {
    pub(crate) fn of(digest: Digest) -> Self {
        Self(digest.table_hash() as u32)
    }

    /// The table takes a place from the lowest bits, and compares the highest first.
    fn table_hash(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

#[derive(Default)]
pub(crate) struct Ghosts {
    /// The oldest first. One that was removed leaves a gap, until all before it are gone, or there are many.
    by_age: VecDeque<Option<Ghost>>,
    /// Number of the first of them.
    first: u32,
    /// Their numbers, by fingerprint.
    numbers: HashTable<u32>,
}

impl Ghosts {
    fn at(&self, number: u32) -> Option<Ghost> {
        self.by_age[number.wrapping_sub(self.first) as usize]
    }

    pub(crate) fn get(&self, digest: Digest) -> Option<Ghost> {
        let fingerprint = Fingerprint::of(digest);
        if self.numbers.is_empty() {
            return None;
        }
        let is_it =
            |number: &u32| self.at(*number).is_some_and(|one| one.fingerprint == fingerprint);
        let number = self.numbers.find(fingerprint.table_hash(), is_it)?;
        self.at(*number)
    }

    pub(crate) fn remove(&mut self, digest: Digest) -> Option<Ghost> {
        self.remove_fingerprint(Fingerprint::of(digest))
    }

    fn remove_fingerprint(&mut self, fingerprint: Fingerprint) -> Option<Ghost> {
        let Self { by_age, first, numbers } = self;
        if numbers.is_empty() {
            return None;
        }
        let place = |number: u32| number.wrapping_sub(*first) as usize;
        let is_it =
            |number: &u32| by_age[place(*number)].is_some_and(|one| one.fingerprint == fingerprint);
        let (number, _) = numbers.find_entry(fingerprint.table_hash(), is_it).ok()?.remove();
        let ghost = by_age[place(number)].take();
        while let Some(None) = by_age.front() {
            by_age.pop_front();
            *first = first.wrapping_add(1);
        }
        ghost
    }

    /// Remembers a key that is not remembered. Calls `forgotten` with those that it forgets: more than `horizon_bytes` were evicted
    /// since, or they are too many for a shard with so many `stored` keys.
    pub(crate) fn insert(
        &mut self,
        ghost: Ghost,
        horizon_bytes: u64,
        stored: usize,
        mut forgotten: impl FnMut(Ghost),
    ) {
        // Of another key with its fingerprint.
        self.remove_fingerprint(ghost.fingerprint).into_iter().for_each(&mut forgotten);
        if self.by_age.len() > 2 * self.numbers.len() + AT_LEAST {
            let all: Vec<Ghost> = self.iter().collect();
            *self = Self::default();
            all.into_iter().for_each(|one| self.push(one));
        }
        self.push(ghost);
        let most = stored * FOR_EACH_HELD + AT_LEAST;
        while let Some(oldest) = self.by_age.front().copied().flatten() {
            let evicted_bytes = ghost.since_bytes.saturating_sub(oldest.since_bytes);
            if evicted_bytes <= horizon_bytes && self.numbers.len() <= most {
                break;
            }
            self.remove_fingerprint(oldest.fingerprint).into_iter().for_each(&mut forgotten);
        }
    }

    /// Adds the youngest ghost.
    fn push(&mut self, ghost: Ghost) {
        let number = self.first.wrapping_add(self.by_age.len() as u32);
        self.by_age.push_back(Some(ghost));
        let Self { by_age, first, numbers } = self;
        let hash = |number: &u32| {
            let ghost = by_age[number.wrapping_sub(*first) as usize];
            ghost.map_or(0, |one| one.fingerprint.table_hash())
        };
        numbers.insert_unique(ghost.fingerprint.table_hash(), number, hash);
    }

    /// Forgets those of a namespace. Returns how many there were.
    pub(crate) fn forget_namespace(&mut self, namespace: NamespaceId) -> usize {
        let of_it = |ghost: &Ghost| ghost.namespace == namespace;
        let going: Vec<Ghost> = self.iter().filter(of_it).collect();
        for ghost in &going {
            self.remove_fingerprint(ghost.fingerprint);
        }
        going.len()
    }

    /// The oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Ghost> {
        self.by_age.iter().copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::block::BLOCK_BYTES;

    const HORIZON_BYTES: u64 = 100 * BLOCK_BYTES;

    fn ghost(key: &str, since_bytes: u64) -> Ghost {
        Ghost {
            fingerprint: Fingerprint::of(Digest::of(key)),
            namespace: 0,
            since_bytes: since_bytes * BLOCK_BYTES,
            refused_sets: 0,
            was_evicted: true,
        }
    }

    #[test]
    fn the_oldest_are_forgotten_by_bytes_and_by_number() {
        let mut ghosts = Ghosts::default();
        let mut forgotten = Vec::new();
        ghosts.insert(ghost("a", 0), HORIZON_BYTES, 1000, |ghost| forgotten.push(ghost));
        ghosts.insert(ghost("b", 60), HORIZON_BYTES, 1000, |ghost| forgotten.push(ghost));
        ghosts.insert(ghost("c", 100), HORIZON_BYTES, 1000, |ghost| forgotten.push(ghost));
        assert!(forgotten.is_empty());
        ghosts.insert(ghost("d", 101), HORIZON_BYTES, 1000, |ghost| forgotten.push(ghost));
        let fingerprints: Vec<_> = forgotten.drain(..).map(|ghost| ghost.fingerprint).collect();
        assert_eq!(fingerprints, [Fingerprint::of(Digest::of("a"))]);
        assert!(ghosts.get(Digest::of("a")).is_none() && ghosts.get(Digest::of("b")).is_some());
        for number in 0..100 {
            ghosts.insert(ghost(&number.to_string(), 102), HORIZON_BYTES, 0, drop);
        }
        assert_eq!(ghosts.iter().count(), AT_LEAST);
        assert!(ghosts.get(Digest::of("99")).is_some() && ghosts.get(Digest::of("d")).is_none());
    }

    #[test]
    fn what_comes_back_and_goes_again_is_young_again() {
        let mut ghosts = Ghosts::default();
        let mut forgotten = Vec::new();
        ghosts.insert(ghost("a", 0), HORIZON_BYTES, 1000, |ghost| forgotten.push(ghost));
        assert!(ghosts.remove(Digest::of("a")).is_some());
        assert!(ghosts.remove(Digest::of("a")).is_none());
        ghosts.insert(ghost("a", 90), HORIZON_BYTES, 1000, |ghost| forgotten.push(ghost));
        ghosts.insert(ghost("b", 150), HORIZON_BYTES, 1000, |ghost| forgotten.push(ghost));
        assert!(forgotten.is_empty() && ghosts.get(Digest::of("a")).is_some());
        for round in 0..10_000 {
            ghosts.remove(Digest::of("b"));
            ghosts.insert(ghost("b", 150 + round % 2), HORIZON_BYTES, 0, |_| {});
        }
        assert!(ghosts.by_age.len() <= 2 * AT_LEAST, "{}", ghosts.by_age.len());
    }

    proptest! {
        /// Against a list by age, with as many as are allowed.
        #[test]
        fn they_are_a_list_by_age(steps in prop::collection::vec((0_u8..40, 0_u32..3, 0_u8..3), 1..400)) {
            let mut ghosts = Ghosts::default();
            let mut model: Vec<Ghost> = Vec::new();
            let same = |one: &Ghost, other: &Ghost| one.fingerprint == other.fingerprint;
            for (number, (key, namespace, action)) in (0..).zip(steps) {
                let digest = Digest::of(&key.to_string());
                let new = Ghost { namespace, refused_sets: key, was_evicted: key % 2 == 0, ..ghost(&key.to_string(), number) };
                let known = model.iter().position(|one| same(one, &new));
                prop_assert_eq!(ghosts.get(digest).map(|one| one.since_bytes), known.map(|at| model[at].since_bytes));
                match action {
                    0 => prop_assert_eq!(ghosts.remove(digest).is_some(), known.map(|at| model.remove(at)).is_some()),
                    1 if key == 0 => {
                        let before = model.len();
                        model.retain(|one| one.namespace != namespace);
                        prop_assert_eq!(ghosts.forget_namespace(namespace), before - model.len());
                    }
                    _ => {
                        known.map(|at| model.remove(at));
                        ghosts.insert(new, u64::MAX, 2, drop);
                        model.push(new);
                        model.drain(..model.len().saturating_sub(2 * FOR_EACH_HELD + AT_LEAST));
                    }
                }
                let told = |one: &Ghost| (one.fingerprint.0, one.namespace, one.since_bytes, one.refused_sets, one.was_evicted);
                prop_assert_eq!(ghosts.iter().map(|one| told(&one)).collect::<Vec<_>>(), model.iter().map(told).collect::<Vec<_>>());
                prop_assert_eq!(ghosts.numbers.len(), model.len());
            }
        }
    }
}
