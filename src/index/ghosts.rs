//! Ghosts: keys without chunks that were evicted or not admitted. The bytes evicted since then tell whether a larger store would
//! still have the chunk.

use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::evict::NamespaceId;
use crate::key::Digest;

/// Most ghosts of a shard: so many for each stored key, and a few more.
const FOR_EACH_HELD: usize = 2;
const AT_LEAST: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost {
    pub(super) digest: Digest,
    pub(super) namespace: NamespaceId,
    /// Bytes that the whole store had evicted when the key was remembered last.
    pub(super) since_bytes: u64,
    /// SETs that were not admitted.
    pub(super) refused_sets: u8,
    /// Its chunk was evicted.
    pub(super) was_evicted: bool,
}

#[derive(Default)]
pub(super) struct Ghosts {
    table: HashTable<Ghost>,
    /// The oldest first. Some are forgotten by now, or remembered again.
    order: VecDeque<(Digest, u64)>,
}

impl Ghosts {
    pub(super) fn get(&self, digest: Digest) -> Option<&Ghost> {
        if self.table.is_empty() {
            return None;
        }
        self.table.find(digest.table_hash(), |ghost| ghost.digest == digest)
    }

    pub(super) fn remove(&mut self, digest: Digest) -> Option<Ghost> {
        if self.table.is_empty() {
            return None;
        }
        let found = self.table.find_entry(digest.table_hash(), |ghost| ghost.digest == digest);
        found.ok().map(|found| found.remove().0)
    }

    /// Remembers a key that is not remembered. Calls `forgotten` with those that it forgets: more than `horizon_bytes` were evicted
    /// since, or they are too many for a shard with so many `stored` keys.
    pub(super) fn insert(
        &mut self,
        ghost: Ghost,
        horizon_bytes: u64,
        stored: usize,
        mut forgotten: impl FnMut(Ghost),
    ) {
        debug_assert!(self.get(ghost.digest).is_none(), "remembered twice");
        let hash = |ghost: &Ghost| ghost.digest.table_hash();
        self.table.insert_unique(ghost.digest.table_hash(), ghost, hash);
        self.order.push_back((ghost.digest, ghost.since_bytes));
        let most = stored * FOR_EACH_HELD + AT_LEAST;
        while let Some(&(digest, since_bytes)) = self.order.front() {
            let current = self.get(digest).is_some_and(|ghost| ghost.since_bytes == since_bytes);
            let stays = ghost.since_bytes.saturating_sub(since_bytes) <= horizon_bytes
                && self.table.len() <= most
                && self.order.len() <= 2 * most;
            if current && stays {
                break;
            }
            self.order.pop_front();
            if current {
                self.remove(digest).into_iter().for_each(&mut forgotten);
            }
        }
    }

    /// Forgets those of a namespace. Returns how many there were.
    pub(super) fn forget_namespace(&mut self, namespace: NamespaceId) -> usize {
        let before = self.table.len();
        self.table.retain(|ghost| ghost.namespace != namespace);
        before - self.table.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Ghost> {
        self.table.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ghost(key: &str, since_bytes: u64) -> Ghost {
        Ghost {
            digest: Digest::of(key),
            namespace: 0,
            since_bytes,
            refused_sets: 0,
            was_evicted: true,
        }
    }

    #[test]
    fn the_oldest_are_forgotten_by_bytes_and_by_number() {
        let mut ghosts = Ghosts::default();
        let mut forgotten = Vec::new();
        ghosts.insert(ghost("a", 0), 100, 1000, |ghost| forgotten.push(ghost));
        ghosts.insert(ghost("b", 60), 100, 1000, |ghost| forgotten.push(ghost));
        ghosts.insert(ghost("c", 100), 100, 1000, |ghost| forgotten.push(ghost));
        assert!(forgotten.is_empty());
        ghosts.insert(ghost("d", 101), 100, 1000, |ghost| forgotten.push(ghost));
        let digests: Vec<Digest> = forgotten.drain(..).map(|ghost| ghost.digest).collect();
        assert_eq!(digests, [Digest::of("a")]);
        assert!(ghosts.get(Digest::of("a")).is_none() && ghosts.get(Digest::of("b")).is_some());
        for number in 0..100 {
            ghosts.insert(ghost(&number.to_string(), 102), 100, 0, drop);
        }
        assert_eq!(ghosts.iter().count(), AT_LEAST);
        assert!(ghosts.get(Digest::of("99")).is_some() && ghosts.get(Digest::of("d")).is_none());
    }

    #[test]
    fn what_comes_back_and_goes_again_is_young_again() {
        let mut ghosts = Ghosts::default();
        let mut forgotten = Vec::new();
        ghosts.insert(ghost("a", 0), 100, 1000, |ghost| forgotten.push(ghost));
        assert!(ghosts.remove(Digest::of("a")).is_some());
        assert!(ghosts.remove(Digest::of("a")).is_none());
        ghosts.insert(ghost("a", 90), 100, 1000, |ghost| forgotten.push(ghost));
        ghosts.insert(ghost("b", 150), 100, 1000, |ghost| forgotten.push(ghost));
        assert!(forgotten.is_empty() && ghosts.get(Digest::of("a")).is_some());
        for round in 0..10_000 {
            ghosts.remove(Digest::of("b"));
            ghosts.insert(ghost("b", 150 + round % 2), 100, 0, drop);
        }
        assert!(ghosts.order.len() <= 2 * AT_LEAST + 1, "{}", ghosts.order.len());
    }
}
