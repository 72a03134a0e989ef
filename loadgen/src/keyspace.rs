//! The keys of one job: their names, lengths, what they must hold, and the order in which they are taken.

use std::collections::HashSet;

use kvring::{part_key, rank_prefix};

use crate::random::{Permutation, mix};
use crate::sizes::ChunkSizes;

/// What a key may hold: the generation that was stored last, and those whose SET failed since, which may have come
/// through all the same. Generation 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generations {
    pub(crate) stored: u32,
    pub(crate) tried: u32,
}

pub(crate) struct KeySpace {
    job: u64,
    seed: u64,
    sizes: ChunkSizes,
    generations: Vec<Generations>,
    writing: HashSet<u64>,
}

impl KeySpace {
    pub(crate) fn new(job: u64, count: u64, sizes: ChunkSizes, seed: u64) -> Self {
        let generations = vec![Generations::default(); count as usize];
        Self { job, seed, sizes, generations, writing: HashSet::new() }
    }

    pub(crate) fn count(&self) -> u64 {
        self.generations.len() as u64
    }

    /// The key's name, of the form that LMCache's keys have.
    pub(crate) fn name(&self, key: u64) -> String {
        part_key(&rank_prefix("kvring-bench", self.job), 0, &format!("{key:064x}"))
    }

    /// A number that no key of another job has.
    pub(crate) fn identity(&self, key: u64) -> u64 {
        (self.job << 32) | key
    }

    pub(crate) fn length(&self, key: u64) -> usize {
        self.sizes.of(mix(self.seed ^ mix(self.identity(key)))) as usize
    }

    pub(crate) fn generations(&self, key: u64) -> Generations {
        self.generations[key as usize]
    }

    /// A SET is about to be submitted; returns its generation. Until it has ended, nothing else is done to the key, so
    /// that it is known what it holds.
    pub(crate) fn begin_set(&mut self, key: u64) -> u32 {
        self.writing.insert(key);
        let generations = &mut self.generations[key as usize];
        generations.tried += 1;
        generations.tried
    }

    pub(crate) fn end_set(&mut self, key: u64, stored: bool) {
        self.writing.remove(&key);
        let generations = &mut self.generations[key as usize];
        if stored {
            generations.stored = generations.tried;
        }
    }

    fn is_being_written(&self, key: u64) -> bool {
        self.writing.contains(&key)
    }
}

/// Where a job is in its keys.
pub(crate) struct Cursor {
    taken: u64,
    count: u64,
    /// One pass only.
    once: bool,
    /// Of each pass; the order of the keys if there is none.
    order: Option<Permutation>,
    seed: u64,
}

/// What a cursor has to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextKey {
    Key(u64),
    /// Every key is being written: there will be one when something has completed.
    Busy,
    End,
}

impl Cursor {
    pub(crate) fn new(count: u64, once: bool, random: bool, seed: u64) -> Self {
        let order = random.then(|| Permutation::new(count, seed));
        Self { taken: 0, count, once, order, seed }
    }

    /// Whether the key that was taken last is the last of its pass: further on, a key may come a second time.
    pub(crate) fn is_at_end_of_pass(&self) -> bool {
        self.taken.is_multiple_of(self.count)
    }

    /// The next key. Those that are being written are passed over, which happens from the second pass on at the
    /// earliest.
    pub(crate) fn next(&mut self, keys: &KeySpace) -> NextKey {
        for _ in 0..self.count {
            if self.once && self.taken == self.count {
                return NextKey::End;
            }
            let position = self.taken % self.count;
            if position == 0 && self.taken > 0 && self.order.is_some() {
                self.order = Some(Permutation::new(self.count, mix(self.seed) ^ self.taken));
            }
            self.taken += 1;
            let key = self.order.as_ref().map_or(position, |order| order.at(position));
            if !keys.is_being_written(key) {
                return NextKey::Key(key);
            }
        }
        NextKey::Busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: u64) -> KeySpace {
        KeySpace::new(3, count, ChunkSizes::Choice(vec![100, 200]), 1)
    }

    fn take(cursor: &mut Cursor, keys: &KeySpace, count: usize) -> Vec<u64> {
        let key = |_| match cursor.next(keys) {
            NextKey::Key(key) => key,
            other => panic!("{other:?}"),
        };
        (0..count).map(key).collect()
    }

    #[test]
    fn each_pass_has_every_key_once() {
        let keys = keys(50);
        let mut ordered = Cursor::new(50, true, false, 9);
        assert!(take(&mut ordered, &keys, 50).into_iter().eq(0..50));
        assert_eq!(ordered.next(&keys), NextKey::End);
        let mut random = Cursor::new(50, false, true, 9);
        let passes = [take(&mut random, &keys, 50), take(&mut random, &keys, 50)];
        assert_ne!(passes[0], passes[1]);
        for mut pass in passes {
            assert!(!pass.is_sorted());
            pass.sort_unstable();
            assert!(pass.into_iter().eq(0..50));
        }
    }

    #[test]
    fn keys_that_are_being_written_are_passed_over() {
        let mut keys = keys(3);
        let mut cursor = Cursor::new(3, false, false, 9);
        assert_eq!(keys.begin_set(0), 1);
        assert_eq!(take(&mut cursor, &keys, 3), [1, 2, 1]);
        keys.begin_set(1);
        keys.begin_set(2);
        assert_eq!(cursor.next(&keys), NextKey::Busy);
        keys.end_set(1, true);
        keys.end_set(2, false);
        assert_eq!(keys.generations(1), Generations { stored: 1, tried: 1 });
        assert_eq!(keys.generations(2), Generations { stored: 0, tried: 1 });
        assert!(matches!(cursor.next(&keys), NextKey::Key(1 | 2)));
    }
}
