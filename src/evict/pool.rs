//! A group of chunks with an order of eviction of their own, and those of them that must stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::policy::Policy;
use super::quotas::Quota;
use super::{NodeId, Nodes};
use crate::config::Eviction;

/// Most chunks of a pool that come back into its order at a time.
const REINSERTED: usize = 64;

/// Number of a group of chunks with an order of eviction of their own: 0 for all whose namespace has no quota.
pub(crate) type PoolId = u16;

/// Chunks of the namespaces of one quota, or of all that have none.
pub(super) struct Pool {
    pub(super) policy: Box<dyn Policy>,
    /// Blocks of its chunks, and of those on their way in.
    pub(super) blocks: u64,
    pub(super) chunks: usize,
    /// Blocks of its chunks that are in the order of eviction.
    pub(super) ordered_blocks: u64,
    pub(super) quota: Option<Arc<Quota>>,
    /// Those of its chunks that were found to have to stay, by the second until which. The policy has only the others, so that a
    /// search meets each of them once.
    pub(super) excluded: BTreeSet<(u32, NodeId)>,
}

impl Pool {
    pub(super) fn new(eviction: Eviction, quota: Option<Arc<Quota>>) -> Self {
        let excluded = BTreeSet::new();
        let policy = eviction.policy();
        Self { policy, blocks: 0, chunks: 0, ordered_blocks: 0, quota, excluded }
    }

    pub(super) fn add_blocks(&mut self, blocks: u32) {
        self.blocks += u64::from(blocks);
        self.quota.iter().for_each(|quota| quota.add(u64::from(blocks)));
    }

    pub(super) fn remove_blocks(&mut self, blocks: u32) {
        self.blocks -= u64::from(blocks);
        self.quota.iter().for_each(|quota| quota.give_back(u64::from(blocks)));
    }

    /// Chunks in the order of eviction.
    pub(super) fn ordered(&self) -> usize {
        self.chunks - self.excluded.len()
    }

    pub(super) fn touch(&mut self, nodes: &mut Nodes, id: NodeId) {
        match nodes[id].excluded_until_s() {
            Some(_) => nodes[id].count_use(),
            None => self.policy.touch(nodes, id),
        }
    }

    /// Takes a chunk out of the order, or of those that must stay.
    pub(super) fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        match nodes[id].excluded_until_s() {
            Some(until_s) => {
                self.excluded.remove(&(until_s, id));
                nodes[id].include();
                self.ordered_blocks += u64::from(nodes[id].extent.blocks);
            }
            None => self.policy.remove(nodes, id),
        }
    }

    pub(super) fn exclude(&mut self, nodes: &mut Nodes, id: NodeId, until_s: u32) {
        self.remove(nodes, id);
        nodes[id].exclude(until_s);
        self.ordered_blocks -= u64::from(nodes[id].extent.blocks);
        self.excluded.insert((until_s, id));
    }

    /// Puts chunks that need not stay any more back into the order, where new ones are. Says whether there were any.
    pub(super) fn reinsert(&mut self, nodes: &mut Nodes, now_s: u32) -> bool {
        let mut count = 0;
        while count < REINSERTED
            && let Some(&(until_s, id)) = self.excluded.first()
            && until_s <= now_s
        {
            self.remove(nodes, id);
            self.policy.insert(nodes, id, true);
            count += 1;
        }
        count > 0
    }
}
