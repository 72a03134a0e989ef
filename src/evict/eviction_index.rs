//! The eviction index: the stored chunks in their order of eviction, by extent, and by namespace.
//!
//! One lock guards all three. It is taken after that of a shard; only the allocator's comes later. So a victim is chosen under
//! this lock and evicted after its release: by then the chunk may be in use, or gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::namespaces::{NamespaceId, NamespaceUsage, Namespaces};
use super::neighbours::{ExtentMap, Victim, victim};
use super::pool::{ChunkPool, PoolId, coldest, coldest_with};
use super::quotas::Quotas;
use super::{Bonus, ChunkNode, ChunkRef, GhostCounts, NodeId, Nodes};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::config::Eviction;

/// Until which second a chunk is excluded that is pinned or being read: until its release.
pub(crate) const UNTIL_RELEASED_S: u32 = u32::MAX;

/// Chunks ahead of which a node is brought into the processor's cache.
const PREFETCHED: usize = 16;

/// Blocks of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolBlocks {
    /// Of its chunks, and of those that are being written.
    pub(crate) taken: u64,
    /// Of chunks that can be evicted.
    pub(crate) evictable: u64,
    /// Of chunks that are being written.
    pub(crate) writing: u64,
}

pub(crate) struct EvictionIndex {
    pub(super) policy: Eviction,
    pub(super) nodes: Nodes,
    pub(super) pools: Vec<ChunkPool>,
    pub(super) extents: ExtentMap,
    pub(super) namespaces: Namespaces,
}

impl EvictionIndex {
    pub(crate) fn new(policy: Eviction, quotas: &Quotas) -> Self {
        let namespaces = Namespaces::default();
        let pools = vec![ChunkPool::new(policy, Arc::clone(&quotas.common_bonus), None)];
        let mut index = Self {
            policy,
            nodes: Nodes::default(),
            pools,
            extents: ExtentMap::default(),
            namespaces,
        };
        quotas.each(|name, quota| _ = index.add_quota(name, quota));
        index
    }

    /// A chunk is stored, in the namespace with this fingerprint, whose `name` is asked for if it is new. It has the `uses`
    /// that it had as a ghost, and one more if it was one.
    pub(crate) fn enter(
        &mut self,
        chunk: ChunkRef,
        extent: Extent,
        namespace: (u64, impl FnOnce() -> String),
        uses: u16,
    ) -> (NodeId, NamespaceId) {
        let namespace = self.namespaces.id_of(namespace);
        let id = self.add(chunk, extent, namespace, uses);
        self.extents.insert(extent.start(), id);
        let (pool, nodes) = self.pool_with(id);
        pool.order.insert(nodes, id);
        (id, namespace)
    }

    /// The number of a namespace, named as in [`EvictionIndex::enter`], of which a chunk may be restored.
    pub(crate) fn namespace(&mut self, namespace: (u64, impl FnOnce() -> String)) -> NamespaceId {
        self.namespaces.id_of(namespace)
    }

    /// Puts the chunks that were restored in order: those that were used first come first.
    pub(crate) fn order_restored(
        &mut self,
        by_use: impl Iterator<Item = NodeId> + Clone,
        extents: impl Iterator<Item = (NodeId, Extent)>,
    ) {
        self.namespaces.drop_all_unused();
        self.extents = extents.map(|(id, extent)| (extent.start(), id)).collect();
        let mut soon = by_use.clone().skip(PREFETCHED);
        for id in by_use {
            soon.next().into_iter().for_each(|soon| self.nodes.prefetch(soon));
            let (pool, nodes) = self.pool_with(id);
            pool.order.insert(nodes, id);
        }
    }

    pub(crate) fn touch(&mut self, id: NodeId) {
        let (pool, nodes) = self.pool_with(id);
        match nodes[id].excluded_until_s() {
            Some(_) => nodes[id].count_use(),
            None => pool.order.touch(nodes, id),
        }
    }

    pub(crate) fn exclude(&mut self, id: NodeId, until_s: u32) {
        let (pool, nodes) = self.pool_with(id);
        pool.remove(nodes, id);
        nodes[id].exclude(until_s);
        pool.ordered_blocks -= u64::from(nodes[id].extent.blocks);
        pool.excluded.insert((until_s, id));
    }

    /// A chunk that is excluded is so until `until_s` only, which may have passed.
    pub(crate) fn release(&mut self, id: NodeId, until_s: u32) {
        if self.nodes[id].excluded_until_s().is_some() {
            self.exclude(id, until_s);
        }
    }

    pub(crate) fn leave(&mut self, id: NodeId, namespace: NamespaceId) {
        let (pool, nodes) = self.pool_with(id);
        pool.remove(nodes, id);
        let node = self.nodes.remove(id);
        self.extents.remove(&node.extent.start());
        self.pools[usize::from(node.pool)].discount_chunk(node.extent.blocks);
        let usage = self.namespaces.usage_mut(namespace);
        usage.keys -= 1;
        usage.allocated_bytes -= node.extent.size_bytes();
        self.namespaces.drop_unused(namespace);
    }

    /// At most `count` chunks that go first.
    pub(crate) fn coldest(&mut self, count: usize, now_s: u32) -> Vec<Victim> {
        self.reinsert(now_s);
        let mut coldest = coldest(&self.pools, &self.nodes, count);
        coldest.truncate(count);
        self.victims(&coldest)
    }

    /// At most `count` of the chunks that lie in a data file behind a block, also in part, and the block to go on with, if there are more.
    pub(crate) fn behind(&self, file: u32, block: u32, count: usize) -> (Vec<Victim>, Option<u32>) {
        let before = self.extents.range(..(file, block)).next_back();
        let reaching = before.filter(|(start, id)| {
            start.0 == file && self.nodes[**id].extent.end_block() > u64::from(block)
        });
        let behind = self.extents.range((file, block)..=(file, u32::MAX));
        let mut behind = reaching.into_iter().chain(behind);
        let chosen: Vec<NodeId> = behind.by_ref().take(count).map(|(_, id)| *id).collect();
        (self.victims(&chosen), behind.next().map(|((_, block), _)| *block))
    }

    /// Takes `blocks` from the quota of a pool, if it has one, for a chunk that is being written.
    ///
    /// # Errors
    /// How many blocks of its chunks have to be evicted first, at this path or others.
    pub(crate) fn reserve_quota(&mut self, pool: PoolId, blocks: u32) -> Result<(), u64> {
        let pool = &mut self.pools[usize::from(pool)];
        pool.quota.as_ref().map_or(Ok(()), |quota| quota.take(u64::from(blocks)))?;
        pool.blocks += u64::from(blocks);
        pool.writing_blocks += u64::from(blocks);
        Ok(())
    }

    pub(crate) fn release_quota(&mut self, pool: PoolId, blocks: u32) {
        let pool = &mut self.pools[usize::from(pool)];
        pool.writing_blocks -= u64::from(blocks);
        pool.remove_blocks(blocks);
    }

    /// The blocks of a pool with a quota, as far as is known. `None`: it is to be asked again.
    pub(crate) fn blocks_of(&mut self, pool: PoolId, now_s: u32) -> Option<PoolBlocks> {
        let pool = &mut self.pools[usize::from(pool)];
        if pool.reinsert(&mut self.nodes, now_s) {
            return None;
        }
        let blocks = PoolBlocks {
            taken: pool.blocks,
            evictable: pool.ordered_blocks,
            writing: pool.writing_blocks,
        };
        Some(if pool.quota.is_some() { blocks } else { PoolBlocks::default() })
    }

    /// The coldest chunks of a pool that have `blocks` together. They have fewer if no more can be evicted, or if the search
    /// would take too long.
    pub(crate) fn coldest_of(&mut self, pool: PoolId, blocks: u64) -> Vec<Victim> {
        let pool = std::slice::from_ref(&self.pools[usize::from(pool)]);
        let coldest = coldest_with(pool, &self.nodes, blocks);
        self.victims(&coldest)
    }

    /// Gives up this path's share of all quotas: the path is out of use.
    pub(crate) fn leave_quotas(&mut self) {
        for pool in &mut self.pools {
            if let Some(quota) = pool.quota.take() {
                quota.give_back(pool.blocks);
            }
        }
    }

    /// Bytes of all quotas that are taken for chunks being written.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let stored = self.extents.values().map(|id| u64::from(self.nodes[*id].extent.blocks));
        let taken = self.pools.iter().map(|pool| pool.blocks);
        (taken.sum::<u64>() - stored.sum::<u64>()) * BLOCK_BYTES
    }

    /// The pool of the namespace with this fingerprint, and its quota in bytes.
    pub(crate) fn pool_of(&self, fingerprint: u64) -> (PoolId, Option<u64>) {
        let pool = self.namespaces.pool_of(fingerprint);
        (pool, self.quota_bytes(pool))
    }

    /// A key of a namespace is remembered, which is named as in [`EvictionIndex::enter`].
    pub(crate) fn remember(
        &mut self,
        namespace: (u64, impl FnOnce() -> String),
        was_used: bool,
    ) -> NamespaceId {
        let id = self.namespaces.id_of(namespace);
        self.remember_leaving(id, was_used);
        id
    }

    /// The key of a chunk is remembered for which `leave` follows.
    pub(crate) fn remember_leaving(&mut self, namespace: NamespaceId, was_used: bool) {
        self.namespaces.ghosts_mut(namespace).add(was_used);
        self.pool_of_namespace(namespace).ghosts.add(was_used);
    }

    pub(crate) fn forget(&mut self, namespace: NamespaceId, keys: GhostCounts) {
        self.namespaces.ghosts_mut(namespace).remove(keys);
        self.pool_of_namespace(namespace).ghosts.remove(keys);
        self.namespaces.drop_unused(namespace);
    }

    /// A remembered key is stored again: the bonus of its pool learns from it.
    pub(crate) fn learn(&mut self, namespace: NamespaceId, was_used: bool) {
        let pool = self.pool_of_namespace(namespace);
        pool.order.bonus.teach(was_used, pool.ghosts, pool.chunks);
    }

    /// What chunks of the namespace with this fingerprint are worth that were never used.
    pub(crate) fn bonus(&self, fingerprint: u64) -> &Bonus {
        &self.pools[usize::from(self.namespaces.pool_of(fingerprint))].order.bonus
    }

    fn pool_of_namespace(&mut self, namespace: NamespaceId) -> &mut ChunkPool {
        &mut self.pools[usize::from(self.namespaces.pool(namespace))]
    }

    pub(crate) fn namespace_called(&self, name: &str) -> Option<NamespaceId> {
        self.namespaces.called(name)
    }

    /// Number and fingerprint of each namespace that has chunks.
    pub(crate) fn namespaces_with_chunks(&self) -> impl Iterator<Item = (NamespaceId, u64)> {
        self.namespaces.with_keys()
    }

    /// A namespace of each pool that has one with chunks, and the bonus of the pool.
    pub(crate) fn bonuses(&self) -> Vec<(u64, f32)> {
        let mut by_pool: Vec<Option<u64>> = vec![None; self.pools.len()];
        for (id, fingerprint) in self.namespaces_with_chunks() {
            // The least one, as their numbers depend on which thread of the open came first.
            let namespace = &mut by_pool[usize::from(self.namespaces.pool(id))];
            *namespace = Some(namespace.map_or(fingerprint, |other| other.min(fingerprint)));
        }
        let bonus = |(pool, namespace): (&ChunkPool, Option<u64>)| {
            // Without a limit it is in the common pool after the next open.
            let is_limited = pool.quota.as_ref().is_none_or(|quota| quota.limit_bytes().is_some());
            is_limited.then_some((namespace?, pool.order.bonus.levels()))
        };
        self.pools.iter().zip(by_pool).filter_map(bonus).collect()
    }

    /// Fingerprints of the `count` largest namespaces, by what `weight` makes of fingerprint and bytes.
    pub(crate) fn largest_namespaces(
        &self,
        count: usize,
        weight: impl Fn(u64, u64) -> u64,
    ) -> Vec<u64> {
        self.namespaces.largest(count, weight)
    }

    pub(crate) fn namespace_of(&self, fingerprint: u64) -> Option<NamespaceId> {
        self.namespaces.of(fingerprint)
    }

    pub(crate) fn usage(&self) -> Vec<(String, NamespaceUsage)> {
        self.namespaces.all(|pool| self.quota_bytes(pool))
    }

    /// What differs from `chunks`, all that are stored, and from the numbers of remembered keys.
    pub(crate) fn check(
        &self,
        chunks: &HashMap<NodeId, (ChunkRef, Extent, NamespaceId)>,
        remembered: &HashMap<NamespaceId, GhostCounts>,
    ) -> Vec<String> {
        let Self { nodes, pools, extents, namespaces, .. } = self;
        let mut problems = Vec::new();
        if nodes.len() != chunks.len() || extents.len() != chunks.len() {
            problems.push(format!(
                "{} chunks are stored, {} are in the order of eviction, {} have an extent",
                chunks.len(),
                nodes.len(),
                extents.len()
            ));
        }
        let mut listed = HashSet::new();
        for (number, pool) in pools.iter().enumerate() {
            let (count, all) = (pool.chunks, pool.all(nodes));
            if all.len() != count {
                problems.push(format!("pool {number} has {count} chunks and lists {}", all.len()));
            }
            listed.extend(all);
            let mut ghosts = GhostCounts::default();
            for (_, one) in
                remembered.iter().filter(|(id, _)| usize::from(namespaces.pool(**id)) == number)
            {
                ghosts.used += one.used;
                ghosts.unused += one.unused;
            }
            if pool.ghosts != ghosts {
                problems
                    .push(format!("pool {number} counts {:?}, and has {ghosts:?}", pool.ghosts));
            }
        }
        let mut usage: HashMap<NamespaceId, (u64, u64, u64)> =
            remembered.iter().map(|(namespace, keys)| (*namespace, (0, 0, keys.all()))).collect();
        for (id, (chunk, extent, namespace)) in chunks {
            let (keys, bytes, _) = usage.entry(*namespace).or_default();
            (*keys, *bytes) = (*keys + 1, *bytes + extent.size_bytes());
            if !listed.contains(id) {
                problems.push(format!("{chunk:?} is in no order of eviction"));
                continue;
            }
            let node = &nodes[*id];
            if (node.chunk(), node.extent) != (*chunk, *extent)
                || extents.get(&extent.start()) != Some(id)
            {
                problems.push(format!("{chunk:?} at {extent:?} is known as something else"));
            }
        }
        problems.extend(namespaces.check(usage));
        problems
    }

    pub(super) fn pool_with(&mut self, id: NodeId) -> (&mut ChunkPool, &mut Nodes) {
        let pool = usize::from(self.nodes[id].pool);
        (&mut self.pools[pool], &mut self.nodes)
    }

    pub(super) fn victims(&self, chosen: &[NodeId]) -> Vec<Victim> {
        chosen.iter().map(|id| victim(&self.nodes, *id)).collect()
    }

    pub(super) fn reinsert(&mut self, now_s: u32) -> bool {
        let Self { nodes, pools, .. } = self;
        pools.iter_mut().fold(false, |any, pool| pool.reinsert(nodes, now_s) | any)
    }

    fn quota_bytes(&self, pool: PoolId) -> Option<u64> {
        self.pools[usize::from(pool)].quota.as_ref().and_then(|quota| quota.limit_bytes())
    }

    /// Counts a chunk, which is in no order yet. Of those of an earlier owner, [`EvictionIndex::order_restored`] follows.
    pub(crate) fn add(
        &mut self,
        chunk: ChunkRef,
        extent: Extent,
        namespace: NamespaceId,
        uses: u16,
    ) -> NodeId {
        let usage = self.namespaces.usage_mut(namespace);
        usage.keys += 1;
        usage.allocated_bytes += extent.size_bytes();
        let pool = self.namespaces.pool(namespace);
        self.pools[usize::from(pool)].add_chunk(extent.blocks);
        self.nodes.insert(ChunkNode::new(chunk, extent, uses, pool))
    }
}

#[cfg(test)]
mod tests;
