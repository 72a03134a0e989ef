//! Namespaces: what the keys of one model and salt take together.

use std::collections::{HashMap, HashSet};

use super::residents::{NamespaceOf, PoolId};
use crate::config::BLOCK_BYTES;
use crate::key::Namespace;

/// Number of a namespace, valid while there is anything of it.
pub(crate) type NamespaceId = u32;

/// What a namespace takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// Keys held.
    pub keys: u64,
    /// Bytes of the data files that their chunks take, rounding to blocks included.
    pub allocated_bytes: u64,
    /// Keys that are being written.
    pub writing_keys: u64,
    /// Keys that were evicted or not admitted, and are remembered.
    pub remembered_keys: u64,
    /// Most bytes it may take, if that is bounded.
    pub quota_bytes: Option<u64>,
}

/// All namespaces that there is anything of, or that have a quota.
#[derive(Default)]
pub(super) struct Namespaces {
    by_fingerprint: HashMap<u64, NamespaceId>,
    all: Vec<State>,
    free: Vec<NamespaceId>,
}

#[derive(Default)]
struct State {
    fingerprint: u64,
    name: String,
    pool: PoolId,
    /// Chunks held and keys remembered, and one more if it has a quota.
    references: u64,
    usage: NamespaceUsage,
}

impl Namespaces {
    /// Adds a namespace that stays, with a pool of its own.
    pub(super) fn add_with_pool(&mut self, name: &str, pool: PoolId) {
        let fingerprint = Namespace::called(name).fingerprint();
        let id = self.add(fingerprint, name.to_owned());
        self.all[id as usize].pool = pool;
        self.all[id as usize].references = 1;
    }

    fn add(&mut self, fingerprint: u64, name: String) -> NamespaceId {
        let state = State { fingerprint, name, ..State::default() };
        let id = match self.free.pop() {
            Some(id) => {
                self.all[id as usize] = state;
                id
            }
            None => {
                self.all.push(state);
                self.all.len() as NamespaceId - 1
            }
        };
        self.by_fingerprint.insert(fingerprint, id);
        id
    }

    /// The namespace, which is there until as many [`Namespaces::release`]s have followed.
    pub(super) fn acquire(&mut self, namespace: &NamespaceOf<'_>) -> NamespaceId {
        let id = match self.by_fingerprint.get(&namespace.fingerprint) {
            Some(id) => *id,
            None => self.add(namespace.fingerprint, (namespace.name)()),
        };
        self.acquire_again(id);
        id
    }

    /// As `acquire`, for one that is there.
    pub(super) fn acquire_again(&mut self, id: NamespaceId) {
        self.all[id as usize].references += 1;
    }

    /// Nothing is left of it with the last one.
    pub(super) fn release(&mut self, id: NamespaceId) {
        let state = &mut self.all[id as usize];
        state.references -= 1;
        if state.references == 0 {
            self.by_fingerprint.remove(&state.fingerprint);
            *state = State::default();
            self.free.push(id);
        }
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

    pub(super) fn called(&self, name: &str) -> Option<NamespaceId> {
        self.by_fingerprint.get(&Namespace::called(name).fingerprint()).copied()
    }

    /// Usage by name; `quota` tells that of a pool in blocks.
    pub(super) fn all(
        &self,
        quota: impl Fn(PoolId) -> Option<u64>,
    ) -> Vec<(String, NamespaceUsage)> {
        let usage = |id: &NamespaceId| {
            let state = &self.all[*id as usize];
            let quota_bytes = quota(state.pool).map(|blocks| blocks * BLOCK_BYTES);
            (state.name.clone(), NamespaceUsage { quota_bytes, ..state.usage })
        };
        let mut all: Vec<_> = self.by_fingerprint.values().map(usage).collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        all
    }

    /// What does not fit `held` (keys and bytes of each namespace, counted) and `remembered`.
    pub(super) fn check(
        &self,
        held: &HashMap<NamespaceId, (u64, u64)>,
        remembered: &HashMap<NamespaceId, u64>,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        for id in self.by_fingerprint.values() {
            let State { name, usage, .. } = &self.all[*id as usize];
            let (keys, bytes) = held.get(id).copied().unwrap_or_default();
            let counted = (keys, bytes, remembered.get(id).copied().unwrap_or_default());
            let kept = (usage.keys, usage.allocated_bytes, usage.remembered_keys);
            if kept != counted {
                problems.push(format!(
                    "keys, bytes and remembered keys of namespace '{name}' are kept as {kept:?}, and are {counted:?}"
                ));
            }
        }
        let there: HashSet<&NamespaceId> = self.by_fingerprint.values().collect();
        for id in held.keys().chain(remembered.keys()).filter(|id| !there.contains(id)) {
            problems.push(format!("there is something of namespace {id}, which is not there"));
        }
        problems
    }
}
