//! Namespaces: what the keys of one model and salt take together.

use std::cmp::Reverse;
use std::collections::HashMap;

use slab::Slab;

use super::bonus::GhostCounts;
use super::pool::PoolId;
use crate::key::Namespace;

/// Number of a namespace, valid while there is something of it.
pub(crate) type NamespaceId = u32;

/// What a namespace takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// Keys stored.
    pub keys: u64,
    /// Bytes of the data files that their chunks take, rounding to blocks included.
    pub allocated_bytes: u64,
    /// Keys that are being written.
    pub writing_keys: u64,
    /// Keys that were evicted or not admitted, and are remembered.
    pub remembered_keys: u64,
    /// Most bytes it may take at all paths together, if that is bounded.
    pub quota_bytes: Option<u64>,
}

impl NamespaceUsage {
    pub(crate) fn add(&mut self, other: &Self) {
        self.keys += other.keys;
        self.allocated_bytes += other.allocated_bytes;
        self.writing_keys += other.writing_keys;
        self.remembered_keys += other.remembered_keys;
        self.quota_bytes = self.quota_bytes.or(other.quota_bytes);
    }
}

/// All namespaces that have chunks, remembered keys or a quota.
#[derive(Default)]
pub(super) struct Namespaces {
    by_fingerprint: HashMap<u64, NamespaceId>,
    all: Slab<NamespaceState>,
}

#[derive(Default)]
struct NamespaceState {
    fingerprint: u64,
    name: String,
    /// Its own if it has a quota, else 0.
    pool: PoolId,
    usage: NamespaceUsage,
    /// Its keys that are remembered.
    ghosts: GhostCounts,
}

impl Namespaces {
    /// Adds a namespace with a quota, if it is new: it stays, and has a pool of its own from here on.
    pub(super) fn add_with_pool(&mut self, name: &str, pool: PoolId) -> NamespaceId {
        let fingerprint = Namespace::called(name).fingerprint();
        let id = self.id_of((fingerprint, || name.to_owned()));
        self.all[id as usize].pool = pool;
        id
    }

    /// Number of the namespace with this fingerprint, which is added if it is new. Something of it is to be counted next.
    pub(super) fn id_of(
        &mut self,
        (fingerprint, name): (u64, impl FnOnce() -> String),
    ) -> NamespaceId {
        *self.by_fingerprint.entry(fingerprint).or_insert_with(|| {
            let name = name();
            self.all.insert(NamespaceState { fingerprint, name, ..NamespaceState::default() })
                as NamespaceId
        })
    }

    /// Removes a namespace if nothing of it is counted any more, and it has no quota.
    pub(super) fn drop_unused(&mut self, id: NamespaceId) {
        let state = &self.all[id as usize];
        if state.usage.keys + state.ghosts.all() == 0 && state.pool == 0 {
            self.by_fingerprint.remove(&state.fingerprint);
            self.all.remove(id as usize);
        }
    }

    pub(super) fn drop_all_unused(&mut self) {
        let all: Vec<NamespaceId> = self.by_fingerprint.values().copied().collect();
        all.into_iter().for_each(|id| self.drop_unused(id));
    }

    pub(super) fn pool(&self, id: NamespaceId) -> PoolId {
        self.all[id as usize].pool
    }

    pub(super) fn pool_of(&self, fingerprint: u64) -> PoolId {
        self.by_fingerprint.get(&fingerprint).map_or(0, |id| self.pool(*id))
    }

    pub(super) fn usage_mut(&mut self, id: NamespaceId) -> &mut NamespaceUsage {
        &mut self.all[id as usize].usage
    }

    pub(super) fn ghosts_mut(&mut self, id: NamespaceId) -> &mut GhostCounts {
        &mut self.all[id as usize].ghosts
    }

    pub(super) fn called(&self, name: &str) -> Option<NamespaceId> {
        self.of(Namespace::called(name).fingerprint())
    }

    pub(super) fn of(&self, fingerprint: u64) -> Option<NamespaceId> {
        self.by_fingerprint.get(&fingerprint).copied()
    }

    /// Fingerprints of the `count` largest ones with keys, by what `weight` makes of fingerprint and bytes; the largest first.
    pub(super) fn largest(&self, count: usize, weight: impl Fn(u64, u64) -> u64) -> Vec<u64> {
        let with_keys = self.all.iter().filter(|(_, state)| state.usage.keys > 0);
        let weighed = with_keys.map(|(_, state)| {
            let bytes = state.usage.allocated_bytes;
            (Reverse(weight(state.fingerprint, bytes)), state.fingerprint)
        });
        let mut weighed: Vec<_> = weighed.collect();
        weighed.sort_unstable();
        weighed.into_iter().take(count).map(|(_, fingerprint)| fingerprint).collect()
    }

    pub(super) fn with_keys(&self) -> impl Iterator<Item = (NamespaceId, u64)> {
        let with_keys = self.all.iter().filter(|(_, state)| state.usage.keys > 0);
        with_keys.map(|(id, state)| (id as NamespaceId, state.fingerprint))
    }

    /// Usage by name; `quota_bytes` gives that of a pool.
    pub(super) fn all(
        &self,
        quota_bytes: impl Fn(PoolId) -> Option<u64>,
    ) -> Vec<(String, NamespaceUsage)> {
        let usage = |(_, state): (usize, &NamespaceState)| {
            let quota_bytes = quota_bytes(state.pool);
            let remembered_keys = state.ghosts.all();
            (state.name.clone(), NamespaceUsage { quota_bytes, remembered_keys, ..state.usage })
        };
        self.all.iter().map(usage).collect()
    }

    /// What differs from what was counted: keys, bytes and remembered keys of each namespace.
    pub(super) fn check(&self, mut counted: HashMap<NamespaceId, (u64, u64, u64)>) -> Vec<String> {
        let mut problems = Vec::new();
        for (id, NamespaceState { name, usage, ghosts, .. }) in &self.all {
            let counted = counted.remove(&(id as NamespaceId)).unwrap_or_default();
            let kept = (usage.keys, usage.allocated_bytes, ghosts.all());
            if kept != counted {
                problems.push(format!(
                    "keys, bytes and remembered keys of namespace '{name}' are kept as {kept:?}, and are {counted:?}"
                ));
            }
        }
        let gone = |id| format!("there is something of namespace {id}, which is not there");
        problems.extend(counted.into_keys().map(gone));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(name: &str) -> u64 {
        Namespace::called(name).fingerprint()
    }

    #[test]
    fn usage_at_several_paths_is_the_sum_with_the_quota_that_one_has() {
        let there = NamespaceUsage {
            keys: 5,
            allocated_bytes: 7 << 12,
            writing_keys: 3,
            remembered_keys: 11,
            quota_bytes: None,
        };
        let mut sum = NamespaceUsage::default();
        sum.add(&NamespaceUsage { quota_bytes: Some(9), ..there });
        sum.add(&there);
        let twice = NamespaceUsage {
            keys: 10,
            allocated_bytes: 14 << 12,
            writing_keys: 6,
            remembered_keys: 22,
            quota_bytes: Some(9),
        };
        assert_eq!(sum, twice);
    }

    #[test]
    fn a_wrong_count_is_told_and_what_is_unused_goes() {
        let mut namespaces = Namespaces::default();
        namespaces.add_with_pool("quota", 7);
        let id = namespaces.id_of((fingerprint("a"), || "a".to_owned()));
        *namespaces.usage_mut(id) =
            NamespaceUsage { keys: 2, allocated_bytes: 8192, ..NamespaceUsage::default() };
        namespaces.ghosts_mut(id).add(true);
        let check = |counted: (u64, u64, u64)| namespaces.check(HashMap::from([(id, counted)]));
        assert!(check((2, 8192, 1)).is_empty());
        for wrong in [(1, 8192, 1), (2, 4096, 1), (2, 8192, 0)] {
            let problems = check(wrong);
            assert!(problems.len() == 1 && problems[0].contains("'a'"), "{problems:?}");
        }
        assert_eq!(namespaces.check(HashMap::from([(id, (2, 8192, 1)), (99, (1, 1, 1))])).len(), 1);
        let quotas: HashMap<String, Option<u64>> = namespaces
            .all(|pool| (pool == 7).then_some(3))
            .into_iter()
            .map(|(name, usage)| (name, usage.quota_bytes))
            .collect();
        assert_eq!(quotas, HashMap::from([("quota".to_owned(), Some(3)), ("a".to_owned(), None)]));

        namespaces.drop_all_unused();
        assert!(namespaces.called("a").is_some(), "something is stored in it");
        *namespaces.usage_mut(id) = NamespaceUsage::default();
        *namespaces.ghosts_mut(id) = GhostCounts::default();
        namespaces.drop_all_unused();
        assert!(namespaces.called("a").is_none() && namespaces.called("quota").is_some());
    }
}
