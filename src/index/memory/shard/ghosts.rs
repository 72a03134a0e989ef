//! Ghosts: keys without chunks that were evicted or not admitted. The bytes evicted since then tell whether a larger store would
//! still have the chunk.

use hashbrown::HashTable;

use crate::base::block::BLOCK_BYTES;
use crate::base::segmented_vec::SegmentedVec;
use crate::evict::NamespaceId;
use crate::key::Digest;

/// Most ghosts of a shard: so many for each stored key, and a few more.
const FOR_EACH_HELD: usize = 2;
const AT_LEAST: usize = 16;
/// Short segments, since half of one is unused on average.
const SEGMENT: usize = 32;
/// Number of no ghost.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
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

/// A ghost, packed, in a list by age.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Slot {
    fingerprint: Fingerprint,
    /// Blocks evicted in the upper 52 bits, then refused SETs (8 bits) and whether it was evicted.
    history: u64,
    namespace: NamespaceId,
    older: u32,
    /// The next free one, of one that is free.
    younger: u32,
}

const _: () = assert!(size_of::<Slot>() == 24);

const SINCE_SHIFT: u32 = 9;
const REFUSED_SHIFT: u32 = 1;

impl Slot {
    fn new(ghost: Ghost, older: u32) -> Self {
        let since_blocks = ghost.since_bytes / BLOCK_BYTES;
        let history = since_blocks << SINCE_SHIFT
            | u64::from(ghost.refused_sets) << REFUSED_SHIFT
            | u64::from(ghost.was_evicted);
        let (fingerprint, namespace) = (ghost.fingerprint, ghost.namespace);
        Self { fingerprint, history, namespace, older, younger: NONE }
    }

    fn ghost(&self) -> Ghost {
        Ghost {
            fingerprint: self.fingerprint,
            namespace: self.namespace,
            since_bytes: (self.history >> SINCE_SHIFT) * BLOCK_BYTES,
            refused_sets: (self.history >> REFUSED_SHIFT) as u8,
            was_evicted: self.history & 1 == 1,
        }
    }
}

pub(crate) struct Ghosts {
    /// Numbers in `slots`, by fingerprint.
    table: HashTable<u32>,
    slots: SegmentedVec<Slot, SEGMENT>,
    /// First of the free slots.
    free: u32,
    oldest: u32,
    youngest: u32,
}

impl Default for Ghosts {
    fn default() -> Self {
        let table = HashTable::new();
        Self { table, slots: SegmentedVec::default(), free: NONE, oldest: NONE, youngest: NONE }
    }
}

impl Ghosts {
    pub(crate) fn get(&self, digest: Digest) -> Option<Ghost> {
        let fingerprint = Fingerprint::of(digest);
        if self.table.is_empty() {
            return None;
        }
        let is_it = |slot: &u32| self.slots[*slot as usize].fingerprint == fingerprint;
        self.table
            .find(fingerprint.table_hash(), is_it)
            .map(|slot| self.slots[*slot as usize].ghost())
    }

    pub(crate) fn remove(&mut self, digest: Digest) -> Option<Ghost> {
        if self.table.is_empty() {
            return None;
        }
        self.remove_fingerprint(Fingerprint::of(digest))
    }

    fn remove_fingerprint(&mut self, fingerprint: Fingerprint) -> Option<Ghost> {
        let slots = &self.slots;
        let is_it = |slot: &u32| slots[*slot as usize].fingerprint == fingerprint;
        let (number, _) = self.table.find_entry(fingerprint.table_hash(), is_it).ok()?.remove();
        let slot = self.slots[number as usize];
        match slot.older {
            NONE => self.oldest = slot.younger,
            older => self.slots[older as usize].younger = slot.younger,
        }
        match slot.younger {
            NONE => self.youngest = slot.older,
            younger => self.slots[younger as usize].older = slot.older,
        }
        self.slots[number as usize].younger = self.free;
        self.free = number;
        Some(slot.ghost())
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
        self.push(ghost);
        let most = stored * FOR_EACH_HELD + AT_LEAST;
        while self.oldest != NONE {
            let oldest = self.slots[self.oldest as usize].ghost();
            let evicted_bytes = ghost.since_bytes.saturating_sub(oldest.since_bytes);
            if evicted_bytes <= horizon_bytes && self.table.len() <= most {
                break;
            }
            self.remove_fingerprint(oldest.fingerprint).into_iter().for_each(&mut forgotten);
        }
    }

    /// Adds the youngest ghost.
    fn push(&mut self, ghost: Ghost) {
        let slot = Slot::new(ghost, self.youngest);
        let number = match self.free {
            NONE => self.slots.push(slot) as u32,
            free => {
                self.free = std::mem::replace(&mut self.slots[free as usize], slot).younger;
                free
            }
        };
        match self.youngest {
            NONE => self.oldest = number,
            youngest => self.slots[youngest as usize].younger = number,
        }
        self.youngest = number;
        let slots = &self.slots;
        let hash = |slot: &u32| slots[*slot as usize].fingerprint.table_hash();
        self.table.insert_unique(slot.fingerprint.table_hash(), number, hash);
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
        let slot = |number: u32| (number != NONE).then(|| &self.slots[number as usize]);
        std::iter::successors(slot(self.oldest), move |one| slot(one.younger)).map(Slot::ghost)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert!(ghosts.slots.len() <= AT_LEAST, "{}", ghosts.slots.len());
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
                prop_assert_eq!(ghosts.table.len(), model.len());
            }
        }
    }
}
