//! Ghosts: keys without chunks that were evicted or not admitted. The bytes evicted since then tell whether a larger store would
//! still have the chunk.

use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::evict::{GhostCounts, NamespaceId};
use crate::key::Digest;

/// Most ghosts of a shard: so many for each stored key, and a few more.
const FOR_EACH_HELD: usize = 2;
const AT_LEAST: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ghost {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) namespace: NamespaceId,
    /// MiB that the whole store had evicted when the key was remembered last.
    pub(crate) since_mib: u32,
    /// SETs that were not admitted, up to 63.
    pub(crate) refused_sets: u8,
    /// Of its chunk, up to 15.
    pub(crate) uses: u8,
    /// Its chunk was evicted.
    pub(crate) was_evicted: bool,
}

/// Bits of [`CompactGhost::rest`], from the lowest.
const NAMESPACE_BITS: u32 = 20;
const USES_SHIFT: u32 = NAMESPACE_BITS;
const REFUSED_SHIFT: u32 = 24;
const EVICTED: u32 = 1 << 30;
const GAP: u32 = 1 << 31;
pub(crate) const MOST_USES: u8 = 15;
const MOST_REFUSED: u8 = 63;

/// There are up to two for each stored key.
#[derive(Clone, Copy)]
struct CompactGhost {
    fingerprint: Fingerprint,
    since_mib: u32,
    rest: u32,
}

const _: () = assert!(size_of::<CompactGhost>() == 12);

impl CompactGhost {
    /// `None` where there is no room for the number of the namespace.
    fn new(ghost: Ghost) -> Option<Self> {
        let Ghost { fingerprint, namespace, since_mib, refused_sets, uses, was_evicted } = ghost;
        let rest = namespace
            | u32::from(uses.min(MOST_USES)) << USES_SHIFT
            | u32::from(refused_sets.min(MOST_REFUSED)) << REFUSED_SHIFT
            | if was_evicted { EVICTED } else { 0 };
        (namespace >> NAMESPACE_BITS == 0).then_some(Self { fingerprint, since_mib, rest })
    }

    fn ghost(self) -> Option<Ghost> {
        let Self { fingerprint, since_mib, rest } = self;
        (rest & GAP == 0).then_some(Ghost {
            fingerprint,
            since_mib,
            namespace: rest & ((1 << NAMESPACE_BITS) - 1),
            uses: (rest >> USES_SHIFT) as u8 & MOST_USES,
            refused_sets: (rest >> REFUSED_SHIFT) as u8 & MOST_REFUSED,
            was_evicted: rest & EVICTED != 0,
        })
    }
}

impl Ghost {
    /// Of a key whose SET was not admitted.
    pub(crate) fn refused(digest: Digest, namespace: NamespaceId, since_bytes: u64) -> Self {
        let (fingerprint, since_mib) = (Fingerprint::of(digest), Self::mib(since_bytes));
        Self { fingerprint, namespace, since_mib, refused_sets: 0, uses: 0, was_evicted: false }
    }

    /// `since_mib` of a key that is remembered when so many bytes were evicted.
    pub(crate) fn mib(evicted_bytes: u64) -> u32 {
        evicted_bytes.div_ceil(1 << 20).min(u32::MAX.into()) as u32
    }
}

/// A quarter of a digest, of the half that did not choose the shard. Two keys with one pass for each other, which costs a wrong
/// count: in a shard with 10,000 ghosts that is one key of 400,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) u32);

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
    by_age: VecDeque<CompactGhost>,
    /// Number of the first of them.
    first: u32,
    /// Their numbers, by fingerprint.
    numbers: HashTable<u32>,
}

impl Ghosts {
    fn at(&self, number: u32) -> Option<Ghost> {
        self.by_age[number.wrapping_sub(self.first) as usize].ghost()
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
        // What has a number is no gap.
        let is_it = |number: &u32| by_age[place(*number)].fingerprint == fingerprint;
        let (number, _) = numbers.find_entry(fingerprint.table_hash(), is_it).ok()?.remove();
        let ghost = by_age[place(number)].ghost();
        by_age[place(number)].rest |= GAP;
        while by_age.front().is_some_and(|one| one.ghost().is_none()) {
            by_age.pop_front();
            *first = first.wrapping_add(1);
        }
        ghost
    }

    /// Remembers a key that is not remembered. Calls `forgotten` with those that it forgets: the oldest, where they are too many for a
    /// shard with so many `stored` keys.
    pub(crate) fn insert(&mut self, ghost: Ghost, stored: usize, mut forgotten: impl FnMut(Ghost)) {
        // Of another key with its fingerprint.
        self.remove_fingerprint(ghost.fingerprint).into_iter().for_each(&mut forgotten);
        if self.by_age.len() > 2 * self.numbers.len() + AT_LEAST {
            let all: Vec<Ghost> = self.iter().collect();
            *self = Self::default();
            all.into_iter().filter_map(CompactGhost::new).for_each(|one| self.push(one));
        }
        match CompactGhost::new(ghost) {
            Some(packed) => self.push(packed),
            None => forgotten(ghost),
        }
        let most = stored * FOR_EACH_HELD + AT_LEAST;
        while self.numbers.len() > most
            && let Some(oldest) = self.by_age.front().and_then(|one| one.ghost())
        {
            self.remove_fingerprint(oldest.fingerprint).into_iter().for_each(&mut forgotten);
        }
    }

    /// Adds the youngest ghost.
    fn push(&mut self, ghost: CompactGhost) {
        let number = self.first.wrapping_add(self.by_age.len() as u32);
        self.by_age.push_back(ghost);
        let Self { by_age, first, numbers } = self;
        let hash =
            |number: &u32| by_age[number.wrapping_sub(*first) as usize].fingerprint.table_hash();
        numbers.insert_unique(ghost.fingerprint.table_hash(), number, hash);
    }

    /// Forgets those of a namespace. Returns how many there were.
    pub(crate) fn forget_namespace(&mut self, namespace: NamespaceId) -> GhostCounts {
        let mut counts = GhostCounts::default();
        let of_it = |ghost: &Ghost| ghost.namespace == namespace;
        let going: Vec<Ghost> = self.iter().filter(of_it).collect();
        for ghost in &going {
            self.remove_fingerprint(ghost.fingerprint);
            counts.add(ghost.uses > 0);
        }
        counts
    }

    /// The oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Ghost> {
        self.by_age.iter().filter_map(|one| one.ghost())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ghost(key: &str, since_bytes: u64) -> Ghost {
        let ghost = Ghost::refused(Digest::of(key), 0, since_bytes << 20);
        Ghost { was_evicted: true, ..ghost }
    }

    #[test]
    fn the_oldest_are_forgotten_by_number() {
        let mut ghosts = Ghosts::default();
        let mut forgotten = Vec::new();
        for number in 0..2 * 100 + AT_LEAST + 1 {
            ghosts.insert(ghost(&number.to_string(), 0), 100, |ghost| forgotten.push(ghost));
        }
        let fingerprints: Vec<_> = forgotten.drain(..).map(|ghost| ghost.fingerprint).collect();
        assert_eq!(fingerprints, [Fingerprint::of(Digest::of("0"))]);
        for number in 0..100 {
            ghosts.insert(ghost(&number.to_string(), 102), 0, drop);
        }
        assert_eq!(ghosts.iter().count(), AT_LEAST);
        assert!(ghosts.get(Digest::of("99")).is_some() && ghosts.get(Digest::of("200")).is_none());
    }

    #[test]
    fn what_comes_back_and_goes_again_is_young_again() {
        let mut ghosts = Ghosts::default();
        let mut forgotten = Vec::new();
        ghosts.insert(ghost("a", 0), 1000, |ghost| forgotten.push(ghost));
        assert!(ghosts.remove(Digest::of("a")).is_some());
        assert!(ghosts.remove(Digest::of("a")).is_none());
        ghosts.insert(ghost("a", 90), 1000, |ghost| forgotten.push(ghost));
        ghosts.insert(ghost("b", 150), 1000, |ghost| forgotten.push(ghost));
        assert!(forgotten.is_empty() && ghosts.get(Digest::of("a")).is_some());
        for round in 0..10_000 {
            ghosts.remove(Digest::of("b"));
            ghosts.insert(ghost("b", 150 + round % 2), 0, |_| {});
        }
        assert!(ghosts.by_age.len() <= 2 * AT_LEAST, "{}", ghosts.by_age.len());
    }

    #[test]
    fn a_ghost_keeps_what_it_is_told_within_limits() {
        let ghost = Ghost { namespace: (1 << 20) - 1, refused_sets: 63, uses: 15, ..ghost("a", 7) };
        for was_evicted in [false, true] {
            let ghost = Ghost { was_evicted, ..ghost };
            assert_eq!(CompactGhost::new(ghost).and_then(CompactGhost::ghost), Some(ghost));
            let more = Ghost { refused_sets: 200, uses: 200, ..ghost };
            assert_eq!(CompactGhost::new(more).and_then(CompactGhost::ghost), Some(ghost));
        }
        let mut forgotten = Vec::new();
        let beyond = Ghost { namespace: 1 << 20, ..ghost };
        Ghosts::default().insert(beyond, 9, |ghost| forgotten.push(ghost));
        assert_eq!(forgotten, [beyond]);
        assert_eq!(
            [0, 1, 1 << 20, (1 << 20) + 1, u64::MAX].map(Ghost::mib),
            [0, 1, 1, 2, u32::MAX]
        );
    }

    proptest! {
        /// Against a list by age, with as many as are allowed.
        #[test]
        fn they_are_a_list_by_age(steps in prop::collection::vec((0_u8..40, 0_u32..3, 0_u8..3), 1..400)) {
            let mut ghosts = Ghosts::default();
            let mut model: Vec<Ghost> = Vec::new();
            let same = |one: &Ghost, other: &Ghost| one.fingerprint == other.fingerprint;
            for (number, (key, namespace, action)) in (0_u64..).zip(steps) {
                let digest = Digest::of(&key.to_string());
                let new = Ghost { namespace, refused_sets: key, uses: key % 3, was_evicted: key % 2 == 0, ..ghost(&key.to_string(), number) };
                let known = model.iter().position(|one| same(one, &new));
                prop_assert_eq!(ghosts.get(digest), known.map(|at| model[at]));
                match action {
                    0 => prop_assert_eq!(ghosts.remove(digest).is_some(), known.map(|at| model.remove(at)).is_some()),
                    1 if key == 0 => {
                        let mut counts = GhostCounts::default();
                        let going = model.iter().filter(|one| one.namespace == namespace);
                        going.for_each(|one| counts.add(one.uses > 0));
                        model.retain(|one| one.namespace != namespace);
                        prop_assert_eq!(ghosts.forget_namespace(namespace), counts);
                    }
                    _ => {
                        known.map(|at| model.remove(at));
                        ghosts.insert(new, 2, drop);
                        model.push(new);
                        model.drain(..model.len().saturating_sub(2 * FOR_EACH_HELD + AT_LEAST));
                    }
                }
                prop_assert_eq!(&ghosts.iter().collect::<Vec<_>>(), &model);
                prop_assert_eq!(ghosts.numbers.len(), model.len());
            }
        }
    }
}
