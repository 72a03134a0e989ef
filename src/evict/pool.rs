//! A pool: chunks with an order of eviction of their own, and those of them that are excluded from it for a while.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::bonus::{Bonus, GhostCounts};
use super::order::Order;
use super::quotas::Quota;
use super::{NodeId, Nodes};
use crate::config::Eviction;

/// Most chunks of a pool that come back into its order at a time.
const REINSERTED: usize = 64;

/// Chunks that a search for blocks looks at first, and at most: others wait for the lock.
const FIRST_COLDEST: usize = 8;
const MOST_COLDEST: usize = 1024;

/// Number of a pool: 0 has the chunks of all namespaces without a quota.
pub(crate) type PoolId = u16;

/// The chunks of one namespace with a quota, or of all namespaces without.
pub(super) struct ChunkPool {
    pub(super) order: Order,
    /// Keys of its namespaces that are remembered.
    pub(super) ghosts: GhostCounts,
    /// Blocks of its chunks, and of those being written.
    pub(super) blocks: u64,
    pub(super) chunks: usize,
    /// Blocks of those being written, if it has a quota.
    pub(super) writing_blocks: u64,
    /// Blocks of its chunks that are in the order of eviction.
    pub(super) ordered_blocks: u64,
    pub(super) quota: Option<Arc<Quota>>,
    /// Chunks that were found in use, by the second until which they are excluded. The order has only the others, so that
    /// searches do not meet these again and again.
    pub(super) excluded: BTreeSet<(u32, NodeId)>,
}

impl ChunkPool {
    pub(super) fn new(eviction: Eviction, bonus: Arc<Bonus>, quota: Option<Arc<Quota>>) -> Self {
        let (order, excluded) = (Order::new(eviction, bonus), BTreeSet::new());
        Self {
            order,
            ghosts: GhostCounts::default(),
            blocks: 0,
            writing_blocks: 0,
            chunks: 0,
            ordered_blocks: 0,
            quota,
            excluded,
        }
    }

    pub(super) fn add_chunk(&mut self, blocks: u32) {
        let blocks = u64::from(blocks);
        self.chunks += 1;
        self.blocks += blocks;
        self.ordered_blocks += blocks;
        self.quota.iter().for_each(|quota| quota.add(blocks));
    }

    pub(super) fn discount_chunk(&mut self, blocks: u32) {
        self.chunks -= 1;
        self.ordered_blocks -= u64::from(blocks);
        self.remove_blocks(blocks);
    }

    pub(super) fn remove_blocks(&mut self, blocks: u32) {
        self.blocks -= u64::from(blocks);
        self.quota.iter().for_each(|quota| quota.give_back(u64::from(blocks)));
    }

    pub(super) fn ordered(&self) -> usize {
        self.chunks - self.excluded.len()
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        match nodes[id].excluded_until_s() {
            Some(until_s) => {
                self.excluded.remove(&(until_s, id));
                nodes[id].include();
                self.ordered_blocks += u64::from(nodes[id].extent.blocks);
            }
            None => self.order.remove(nodes, id),
        }
    }

    /// Puts chunks that are not excluded any more back into the order, as new ones. Returns whether there were any.
    pub(super) fn reinsert(&mut self, nodes: &mut Nodes, now_s: u32) -> bool {
        let mut count = 0;
        while count < REINSERTED
            && let Some(&(until_s, id)) = self.excluded.first()
            && until_s <= now_s
        {
            self.remove(nodes, id);
            self.order.insert(nodes, id);
            count += 1;
        }
        count > 0
    }

    pub(super) fn all(&self, nodes: &Nodes) -> Vec<NodeId> {
        let mut found = Vec::new();
        self.order.coldest(nodes, self.chunks + 1, &mut found);
        found.extend(self.excluded.iter().map(|(_, id)| *id));
        found
    }
}

/// `count` chunks of the pools that go first, or a few more: of each pool in proportion to its chunks.
pub(super) fn coldest(pools: &[ChunkPool], nodes: &Nodes, count: usize) -> Vec<NodeId> {
    let all: usize = pools.iter().map(ChunkPool::ordered).sum();
    let mut found = Vec::with_capacity(count.min(all));
    for pool in pools.iter().filter(|pool| pool.ordered() > 0) {
        let share = (count * pool.ordered()).div_ceil(all);
        pool.order.coldest(nodes, share, &mut found);
    }
    found
}

/// The coldest chunks of the pools that have `blocks` together. They have fewer if there are no more chunks, or if it takes more
/// than one search may return.
pub(super) fn coldest_with(pools: &[ChunkPool], nodes: &Nodes, blocks: u64) -> Vec<NodeId> {
    let mut count = FIRST_COLDEST;
    loop {
        let mut chunks = coldest(pools, nodes, count);
        let mut freed = 0;
        let last = chunks.iter().position(|id| {
            freed += u64::from(nodes[*id].extent.blocks);
            freed >= blocks
        });
        if last.is_some() || chunks.len() < count || count >= MOST_COLDEST {
            chunks.truncate(last.map_or(chunks.len(), |last| last + 1));
            return chunks;
        }
        count *= 2;
    }
}
