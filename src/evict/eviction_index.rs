//! The eviction index: the stored chunks in their order of eviction, by extent, and by namespace.
//!
//! One lock guards all three. It is taken after that of a shard; only the allocator's comes later. So a victim is chosen under
//! this lock and evicted after its release: by then the chunk may be in use, or gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::extent_map::{ChunkRef, ExtentMap, Victim};
use super::namespaces::{NamespaceId, NamespaceOf, NamespaceUsage, Namespaces};
use super::pool::{ChunkPool, PoolId, coldest_with};
use super::quotas::Quotas;
use super::room_search::{Room, RoomSearch};
use super::{ChunkNode, NodeId, Nodes};
use crate::block::{BLOCK_BYTES, Extent};
use crate::config::Eviction;
use crate::store::FreeSpace;
use crate::sync::Mutex;

/// Until which second a chunk is excluded that is pinned or being read: until its release.
pub(crate) const UNTIL_RELEASED_S: u32 = u32::MAX;

pub(crate) struct EvictionIndex {
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) nodes: Nodes,
    pub(super) pools: Vec<ChunkPool>,
    pub(super) extents: ExtentMap,
    namespaces: Namespaces,
    /// Of chunks that an earlier owner stored, by number: when the chunk was used, or stored where the order is that of
    /// arrival.
    restored: Vec<Option<u64>>,
}

impl EvictionIndex {
    pub(crate) fn new(policy: Eviction, quotas: &Quotas) -> Self {
        let mut namespaces = Namespaces::default();
        let mut pools = vec![ChunkPool::new(policy, None)];
        for (name, quota) in &quotas.0 {
            namespaces.add_with_pool(name, pools.len() as PoolId);
            pools.push(ChunkPool::new(policy, Some(Arc::clone(quota))));
        }
        let (nodes, extents, restored) = (Nodes::default(), ExtentMap::default(), Vec::new());
        Self { inner: Mutex::new(Inner { nodes, pools, extents, namespaces, restored }) }
    }

    /// A chunk is stored. `returns`: it was evicted not long ago.
    pub(crate) fn enter(
        &self,
        chunk: ChunkRef,
        extent: Extent,
        namespace: &NamespaceOf<'_>,
        returns: bool,
    ) -> (NodeId, NamespaceId) {
        let mut inner = self.inner.lock();
        let (id, namespace) = inner.add(chunk, extent, namespace);
        let (pool, nodes) = inner.pool_of(id);
        pool.policy.insert(nodes, id, returns);
        (id, namespace)
    }

    /// A chunk that an earlier owner stored, with the moment that orders it and its uses. [`EvictionIndex::all_restored`]
    /// follows the last one.
    pub(crate) fn restore(
        &self,
        chunk: ChunkRef,
        extent: Extent,
        namespace: &NamespaceOf<'_>,
        (moment, uses): (u64, u16),
    ) -> (NodeId, NamespaceId) {
        let mut inner = self.inner.lock();
        let (id, namespace) = inner.add(chunk, extent, namespace);
        inner.nodes[id].uses = uses;
        if id.index() >= inner.restored.len() {
            inner.restored.resize(id.index() + 1, None);
        }
        inner.restored[id.index()] = Some(moment);
        (id, namespace)
    }

    pub(crate) fn forget_restored(&self, id: NodeId, namespace: NamespaceId) {
        let mut inner = self.inner.lock();
        inner.restored[id.index()] = None;
        inner.drop_node(id, namespace);
    }

    pub(crate) fn all_restored(&self) {
        let mut inner = self.inner.lock();
        let moments = std::mem::take(&mut inner.restored).into_iter().enumerate();
        let mut restored: Vec<(u64, NodeId)> =
            moments.filter_map(|(index, moment)| Some((moment?, NodeId::at(index)))).collect();
        restored.sort_unstable();
        for (_, id) in restored {
            let (pool, nodes) = inner.pool_of(id);
            pool.policy.restore(nodes, id);
        }
    }

    pub(crate) fn touch(&self, id: NodeId) {
        let mut inner = self.inner.lock();
        let (pool, nodes) = inner.pool_of(id);
        pool.touch(nodes, id);
    }

    pub(crate) fn exclude(&self, id: NodeId, until_s: u32) {
        let mut inner = self.inner.lock();
        let (pool, nodes) = inner.pool_of(id);
        pool.exclude(nodes, id, until_s);
    }

    /// A chunk that is excluded is so until `until_s` only, which may have passed.
    pub(crate) fn release(&self, id: NodeId, until_s: u32) {
        let mut inner = self.inner.lock();
        let (pool, nodes) = inner.pool_of(id);
        if nodes[id].excluded_until_s().is_some() {
            pool.exclude(nodes, id, until_s);
        }
    }

    pub(crate) fn leave(&self, id: NodeId, namespace: NamespaceId) {
        let mut inner = self.inner.lock();
        let (pool, nodes) = inner.pool_of(id);
        pool.remove(nodes, id);
        inner.drop_node(id, namespace);
    }

    /// Goes on with a search for chunks whose eviction makes room at the lowest cost: a run of neighbours, or the coldest
    /// where space need not be contiguous. One call looks at a bounded number of chunks.
    pub(crate) fn for_room(
        &self,
        search: &mut RoomSearch,
        free: &(impl FreeSpace + ?Sized),
        now_s: u32,
    ) -> Room {
        let mut inner = self.inner.lock();
        let came_back = inner.reinsert(now_s);
        match inner.for_room(search, free, now_s) {
            // The search has not seen those.
            Room::Nowhere if came_back => {
                *search = RoomSearch::new(search.blocks);
                Room::Unfinished
            }
            room => room,
        }
    }

    pub(crate) fn coldest(&self, count: usize, now_s: u32) -> Vec<Victim> {
        loop {
            let mut inner = self.inner.lock();
            inner.reinsert(now_s);
            let mut coldest = inner.coldest(count);
            coldest.truncate(count);
            if !coldest.is_empty() || inner.ordered() == 0 || count == 0 {
                return inner.victims(&coldest);
            }
        }
    }

    /// Takes `blocks` from the quota of a pool, if it has one.
    ///
    /// # Errors
    /// How many blocks of its chunks have to be evicted first, at this path or others.
    pub(crate) fn reserve_quota(&self, pool: PoolId, blocks: u32) -> Result<(), u64> {
        let mut inner = self.inner.lock();
        let pool = &mut inner.pools[usize::from(pool)];
        pool.quota.as_ref().map_or(Ok(()), |quota| quota.take(u64::from(blocks)))?;
        pool.blocks += u64::from(blocks);
        Ok(())
    }

    pub(crate) fn release_quota(&self, pool: PoolId, blocks: u32) {
        self.inner.lock().pools[usize::from(pool)].remove_blocks(blocks);
    }

    pub(crate) fn blocks_of(&self, pool: PoolId) -> u64 {
        let pool = &self.inner.lock().pools[usize::from(pool)];
        if pool.quota.is_some() { pool.blocks } else { 0 }
    }

    /// Blocks of a pool with a quota that can be evicted, as far as is known.
    pub(crate) fn evictable_blocks_of(&self, pool: PoolId, now_s: u32) -> u64 {
        loop {
            let Inner { nodes, pools, .. } = &mut *self.inner.lock();
            let pool = &mut pools[usize::from(pool)];
            if !pool.reinsert(nodes, now_s) {
                return if pool.quota.is_some() { pool.ordered_blocks } else { 0 };
            }
        }
    }

    /// The coldest chunks of a pool with a quota that have `blocks` together, and how many they have. They have fewer if no more
    /// can be evicted, or if the search would take too long; the last value says that there may be more.
    pub(crate) fn coldest_of(&self, pool: PoolId, blocks: u64) -> (Vec<Victim>, u64, bool) {
        let mut inner = self.inner.lock();
        let Inner { nodes, pools, .. } = &mut *inner;
        let pool = &mut pools[usize::from(pool)];
        if pool.quota.is_none() {
            return (Vec::new(), 0, false);
        }
        let (coldest, freed) = coldest_with(std::slice::from_mut(pool), nodes, blocks);
        let has_more = freed < blocks && coldest.len() < pool.ordered();
        (inner.victims(&coldest), freed, has_more)
    }

    /// Gives up this path's share of all quotas: the path is out of use.
    pub(crate) fn leave_quotas(&self) {
        for pool in &mut self.inner.lock().pools {
            if let Some(quota) = pool.quota.take() {
                quota.give_back(pool.blocks);
            }
        }
    }

    /// Bytes of all quotas that are taken for chunks being written.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        let stored = inner.extents.nodes().map(|id| u64::from(inner.nodes[id].extent.blocks));
        let taken = inner.pools.iter().map(|pool| pool.blocks);
        (taken.sum::<u64>() - stored.sum::<u64>()) * BLOCK_BYTES
    }

    /// The pool of the namespace with this fingerprint, and its quota in bytes.
    pub(crate) fn pool_of(&self, fingerprint: u64) -> (PoolId, Option<u64>) {
        let inner = self.inner.lock();
        let pool = inner.namespaces.pool_of(fingerprint);
        (pool, inner.quota_bytes(pool))
    }

    pub(crate) fn remember(&self, namespace: &NamespaceOf<'_>) -> NamespaceId {
        let mut inner = self.inner.lock();
        let id = inner.namespaces.acquire(namespace);
        inner.namespaces.usage_mut(id).remembered_keys += 1;
        id
    }

    /// The key of a chunk is remembered for which `leave` follows.
    pub(crate) fn remember_leaving(&self, namespace: NamespaceId) {
        let mut inner = self.inner.lock();
        inner.namespaces.acquire_again(namespace);
        inner.namespaces.usage_mut(namespace).remembered_keys += 1;
    }

    pub(crate) fn forget(&self, namespace: NamespaceId, keys: u64) {
        if keys > 0 {
            let mut inner = self.inner.lock();
            inner.namespaces.usage_mut(namespace).remembered_keys -= keys;
            inner.namespaces.release(namespace, keys);
        }
    }

    pub(crate) fn namespace_called(&self, name: &str) -> Option<NamespaceId> {
        self.inner.lock().namespaces.called(name)
    }

    pub(crate) fn usage(&self) -> Vec<(String, NamespaceUsage)> {
        let inner = self.inner.lock();
        inner.namespaces.all(|pool| inner.quota_bytes(pool))
    }

    /// What differs from `chunks`, all that are stored, and from the numbers of remembered keys.
    pub(crate) fn check(
        &self,
        chunks: &HashMap<NodeId, (ChunkRef, Extent, NamespaceId)>,
        remembered: &HashMap<NamespaceId, u64>,
    ) -> Vec<String> {
        let Inner { nodes, pools, extents, namespaces, .. } = &mut *self.inner.lock();
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
        for (number, pool) in pools.iter_mut().enumerate() {
            let (count, all) = (pool.chunks, pool.all(nodes));
            if all.len() != count {
                problems.push(format!("pool {number} has {count} chunks and lists {}", all.len()));
            }
            listed.extend(all);
        }
        let mut usage: HashMap<NamespaceId, (u64, u64)> = HashMap::new();
        for (id, (chunk, extent, namespace)) in chunks {
            let (keys, bytes) = usage.entry(*namespace).or_default();
            (*keys, *bytes) = (*keys + 1, *bytes + extent.size_bytes());
            if !listed.contains(id) {
                problems.push(format!("{chunk:?} is in no order of eviction"));
                continue;
            }
            let ChunkNode { shard, entry, extent: known, .. } = nodes[*id];
            if (ChunkRef { shard, entry }, known) != (*chunk, *extent)
                || extents.at(*extent) != Some(*id)
            {
                problems.push(format!("{chunk:?} at {extent:?} is known as something else"));
            }
        }
        problems.extend(namespaces.check(&usage, remembered));
        problems
    }
}

impl Inner {
    pub(super) fn pool_of(&mut self, id: NodeId) -> (&mut ChunkPool, &mut Nodes) {
        let pool = usize::from(self.nodes[id].pool);
        (&mut self.pools[pool], &mut self.nodes)
    }

    fn quota_bytes(&self, pool: PoolId) -> Option<u64> {
        self.pools[usize::from(pool)].quota.as_ref().map(|quota| quota.limit_bytes())
    }

    fn add(
        &mut self,
        chunk: ChunkRef,
        extent: Extent,
        namespace: &NamespaceOf<'_>,
    ) -> (NodeId, NamespaceId) {
        let namespace = self.namespaces.acquire(namespace);
        let usage = self.namespaces.usage_mut(namespace);
        usage.keys += 1;
        usage.allocated_bytes += extent.size_bytes();
        let pool = self.namespaces.pool(namespace);
        let id = self.nodes.insert(ChunkNode::new(chunk.shard, chunk.entry, extent, 0, pool));
        self.pools[usize::from(pool)].count_chunk(extent.blocks);
        self.extents.insert(extent, id);
        (id, namespace)
    }

    fn drop_node(&mut self, id: NodeId, namespace: NamespaceId) {
        let node = self.nodes.remove(id);
        self.extents.remove(node.extent);
        self.pools[usize::from(node.pool)].discount_chunk(node.extent.blocks);
        let usage = self.namespaces.usage_mut(namespace);
        usage.keys -= 1;
        usage.allocated_bytes -= node.extent.size_bytes();
        self.namespaces.release(namespace, 1);
    }

    fn reinsert(&mut self, now_s: u32) -> bool {
        let Self { nodes, pools, .. } = self;
        pools.iter_mut().fold(false, |any, pool| pool.reinsert(nodes, now_s) | any)
    }
}

#[cfg(test)]
mod tests;
