//! The chunks held: in the order in which they would go, by place, and by namespace.
//!
//! One lock for all three, which the holder of a shard's lock takes last; only the allocator's comes after it. So a victim
//! is chosen here, and taken out by who has let go of this lock again: by then it may be pinned, or gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::extent_map::{ChunkRef, ExtentMap, STEPS_AT_ONCE, Victim};
use super::namespaces::{NamespaceId, NamespaceOf, NamespaceUsage, Namespaces};
use super::pool::{Pool, PoolId};
use super::quotas::Quotas;
use super::room_search::{Room, RoomSearch, SEEDS};
use super::{ChunkNode, NodeId, Nodes};
use crate::block::{BLOCK_BYTES, Extent};
use crate::config::Eviction;
use crate::store::FreeSpace;
use crate::sync::Mutex;

/// Until which second a chunk must stay that is pinned, or being read: until it is released.
pub(crate) const UNTIL_RELEASED_S: u32 = u32::MAX;

/// What is known of the chunks held.
pub(crate) struct EvictionIndex {
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) nodes: Nodes,
    pub(super) pools: Vec<Pool>,
    pub(super) extents: ExtentMap,
    namespaces: Namespaces,
    /// When the chunks that an earlier owner stored were used (or stored, if that is what the order goes by).
    restored: Vec<Option<u64>>,
}

impl EvictionIndex {
    /// None held.
    pub(crate) fn new(policy: Eviction, quotas: &Quotas) -> Self {
        let mut namespaces = Namespaces::default();
        let mut pools = vec![Pool::new(policy, None)];
        for (name, quota) in &quotas.0 {
            namespaces.add_with_pool(name, pools.len() as PoolId);
            pools.push(Pool::new(policy, Some(Arc::clone(quota))));
        }
        let inner = Inner {
            nodes: Nodes::default(),
            pools,
            extents: ExtentMap::default(),
            namespaces,
            restored: Vec::new(),
        };
        Self { inner: Mutex::new(inner) }
    }

    /// A chunk is held from now on. `returns`: it was evicted not long ago.
    pub(crate) fn enter(
        &self,
        chunk: ChunkRef,
        extent: Extent,
        namespace: &NamespaceOf<'_>,
        returns: bool,
    ) -> (NodeId, NamespaceId) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let (id, namespace) = inner.add(chunk, extent, namespace);
        let pool = inner.nodes[id].pool as usize;
        inner.pools[pool].policy.insert(&mut inner.nodes, id, returns);
        (id, namespace)
    }

    /// As `enter`, for a chunk that an earlier owner stored, with the moment by which it is in order and its uses; [`EvictionIndex::all_restored`] follows the last one.
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
        let place = id.place();
        if place >= inner.restored.len() {
            inner.restored.resize(place + 1, None);
        }
        inner.restored[place] = Some(moment);
        (id, namespace)
    }

    /// Takes back the chunk that was restored as `id`.
    pub(crate) fn forget_restored(&self, id: NodeId, namespace: NamespaceId) {
        let mut inner = self.inner.lock();
        inner.restored[id.place()] = None;
        inner.drop_node(id, namespace);
    }

    /// Puts what was restored into order.
    pub(crate) fn all_restored(&self) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let moments = std::mem::take(&mut inner.restored).into_iter().enumerate();
        let mut restored: Vec<(u64, NodeId)> =
            moments.filter_map(|(place, moment)| Some((moment?, NodeId::at(place)))).collect();
        restored.sort_unstable();
        for (_, id) in restored {
            let pool = inner.nodes[id].pool as usize;
            inner.pools[pool].policy.restore(&mut inner.nodes, id);
        }
    }

    /// A chunk was used.
    pub(crate) fn touch(&self, id: NodeId) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let pool = inner.nodes[id].pool as usize;
        inner.pools[pool].touch(&mut inner.nodes, id);
    }

    /// A chunk must stay until the second `until_s`: no search meets it before.
    pub(crate) fn exclude(&self, id: NodeId, until_s: u32) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let pool = inner.nodes[id].pool as usize;
        inner.pools[pool].exclude(&mut inner.nodes, id, until_s);
    }

    /// A chunk that had to stay need not any longer than until `until_s`, which may have passed.
    pub(crate) fn release(&self, id: NodeId, until_s: u32) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if inner.nodes[id].excluded_until_s().is_some() {
            let pool = inner.nodes[id].pool as usize;
            inner.pools[pool].exclude(&mut inner.nodes, id, until_s);
        }
    }

    /// A chunk is not held any more.
    pub(crate) fn leave(&self, id: NodeId, namespace: NamespaceId) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let pool = inner.nodes[id].pool as usize;
        inner.pools[pool].remove(&mut inner.nodes, id);
        inner.drop_node(id, namespace);
    }

    /// Goes on looking for chunks whose going makes room, at the lowest price: those of a run, or, where room is room wherever it is,
    /// the coldest. Looks at some only while it holds the lock.
    pub(crate) fn for_room(
        &self,
        search: &mut RoomSearch,
        free: &(impl FreeSpace + ?Sized),
        now_s: u32,
    ) -> Room {
        let mut inner = self.inner.lock();
        let came_back = inner.reinsert(now_s);
        match inner.for_room(search, free, now_s) {
            // Those are looked at as well.
            Room::Nowhere if came_back => {
                *search = RoomSearch::new(search.blocks);
                Room::Unfinished
            }
            room => room,
        }
    }

    /// Up to `count` chunks that go first, wherever they are.
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

    /// Takes `blocks` of the quota of a pool, if it has one.
    ///
    /// # Errors
    /// How many blocks of its chunks have to go first, at this path or others.
    pub(crate) fn reserve_quota(&self, pool: PoolId, blocks: u32) -> Result<(), u64> {
        let mut inner = self.inner.lock();
        let pool = &mut inner.pools[pool as usize];
        pool.quota.as_ref().map_or(Ok(()), |quota| quota.take(u64::from(blocks)))?;
        pool.blocks += u64::from(blocks);
        Ok(())
    }

    /// Gives back what [`EvictionIndex::reserve_quota`] took.
    pub(crate) fn release_quota(&self, pool: PoolId, blocks: u32) {
        self.inner.lock().pools[pool as usize].remove_blocks(blocks);
    }

    /// Blocks that the chunks of a pool take of its quota, those on their way in included.
    pub(crate) fn blocks_of(&self, pool: PoolId) -> u64 {
        let pool = &self.inner.lock().pools[pool as usize];
        if pool.quota.is_some() { pool.blocks } else { 0 }
    }

    /// Blocks of the chunks of a pool with a quota that may go, as far as is known.
    pub(crate) fn evictable_blocks_of(&self, pool: PoolId, now_s: u32) -> u64 {
        loop {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            let pool = &mut inner.pools[pool as usize];
            if !pool.reinsert(&mut inner.nodes, now_s) {
                return if pool.quota.is_some() { pool.ordered_blocks } else { 0 };
            }
        }
    }

    /// The coldest chunks of a pool with a quota that have `blocks` together, and how many they have. Fewer if those that may go have
    /// less, or if it would take too long: then there may be more, as the last value says.
    pub(crate) fn coldest_of(&self, pool: PoolId, blocks: u64) -> (Vec<Victim>, u64, bool) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let pool = &mut inner.pools[pool as usize];
        if pool.quota.is_none() {
            return (Vec::new(), 0, false);
        }
        let mut count = *SEEDS.start();
        loop {
            let mut coldest = Vec::new();
            pool.policy.coldest(&mut inner.nodes, count, &mut coldest);
            let mut freed = 0;
            let enough = coldest.iter().position(|id| {
                freed += u64::from(inner.nodes[*id].extent.blocks);
                freed >= blocks
            });
            let is_all = coldest.len() >= pool.ordered();
            match enough {
                Some(last) => coldest.truncate(last + 1),
                None if is_all || coldest.len() < count || count >= STEPS_AT_ONCE / 2 => {}
                None => {
                    count *= 2;
                    continue;
                }
            }
            let has_more = enough.is_none() && !is_all;
            return (inner.victims(&coldest), freed, has_more);
        }
    }

    /// What is held here does not count towards quotas any more: this path is out of use.
    pub(crate) fn leave_quotas(&self) {
        for pool in &mut self.inner.lock().pools {
            if let Some(quota) = pool.quota.take() {
                quota.give_back(pool.blocks);
            }
        }
    }

    /// Bytes of quotas that are taken for chunks on their way in, of all namespaces.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        let mut held = vec![0_u64; inner.pools.len()];
        inner.extents.nodes().map(|id| &inner.nodes[id]).for_each(|node| {
            held[node.pool as usize] += u64::from(node.extent.blocks);
        });
        let reserved = inner.pools.iter().zip(held).map(|(pool, held)| pool.blocks - held);
        reserved.sum::<u64>() * BLOCK_BYTES
    }

    /// The pool of the namespace with this fingerprint, and its quota in bytes.
    pub(crate) fn pool_of(&self, fingerprint: u64) -> (PoolId, Option<u64>) {
        let inner = self.inner.lock();
        let pool = inner.namespaces.pool_of(fingerprint);
        (pool, inner.quota_bytes(pool))
    }

    /// Notes that a key of the namespace is remembered.
    pub(crate) fn remember(&self, namespace: &NamespaceOf<'_>) -> NamespaceId {
        let mut inner = self.inner.lock();
        let id = inner.namespaces.acquire(namespace);
        inner.namespaces.usage_mut(id).remembered_keys += 1;
        id
    }

    /// The key of a chunk that goes is remembered: `leave` follows.
    pub(crate) fn remember_leaving(&self, namespace: NamespaceId) {
        let mut inner = self.inner.lock();
        inner.namespaces.acquire_again(namespace);
        inner.namespaces.usage_mut(namespace).remembered_keys += 1;
    }

    /// So many keys of the namespace are not remembered any more.
    pub(crate) fn forget(&self, namespace: NamespaceId, keys: u64) {
        if keys > 0 {
            let mut inner = self.inner.lock();
            inner.namespaces.usage_mut(namespace).remembered_keys -= keys;
            inner.namespaces.release(namespace, keys);
        }
    }

    /// The namespace called `name`, if there is anything of it.
    pub(crate) fn namespace_called(&self, name: &str) -> Option<NamespaceId> {
        self.inner.lock().namespaces.called(name)
    }

    /// What there is of each namespace, by name.
    pub(crate) fn usage(&self) -> Vec<(String, NamespaceUsage)> {
        let inner = self.inner.lock();
        inner.namespaces.all(|pool| inner.quota_bytes(pool))
    }

    /// What does not fit `chunks`, which are held, and the numbers of keys that are remembered.
    pub(crate) fn check(
        &self,
        chunks: &HashMap<NodeId, (ChunkRef, Extent, NamespaceId)>,
        remembered: &HashMap<NamespaceId, u64>,
    ) -> Vec<String> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut problems = Vec::new();
        let mut say = |problem: String| problems.push(problem);
        if inner.nodes.len() != chunks.len() || inner.extents.len() != chunks.len() {
            say(format!(
                "{} chunks are held, {} are in the order of eviction, {} have a place",
                chunks.len(),
                inner.nodes.len(),
                inner.extents.len()
            ));
        }
        let mut listed = HashSet::new();
        for pool in 0..inner.pools.len() {
            let mut found = Vec::new();
            let count = inner.pools[pool].chunks;
            // Where it passes many, it goes on with the next call.
            for _ in 0..=count {
                found.clear();
                inner.pools[pool].policy.coldest(&mut inner.nodes, count + 1, &mut found);
                if found.len() >= inner.pools[pool].ordered() {
                    break;
                }
            }
            found.extend(inner.pools[pool].excluded.iter().map(|(_, id)| *id));
            if found.len() != count {
                say(format!("pool {pool} has {count} chunks and lists {}", found.len()));
            }
            listed.extend(found);
        }
        for (id, (chunk, extent, _)) in chunks {
            if !listed.contains(id) {
                say(format!("{chunk:?} is in no order of eviction"));
                continue;
            }
            let node = &inner.nodes[*id];
            if (node.shard, node.entry, node.extent) != (chunk.shard, chunk.entry, *extent)
                || inner.extents.at(*extent) != Some(*id)
            {
                say(format!("{chunk:?} at {extent:?} is known as something else"));
            }
        }
        let mut sums: HashMap<NamespaceId, (u64, u64)> = HashMap::new();
        for (_, extent, namespace) in chunks.values() {
            let sum = sums.entry(*namespace).or_default();
            *sum = (sum.0 + 1, sum.1 + extent.size_bytes());
        }
        problems.extend(inner.namespaces.check(&sums, remembered));
        problems
    }
}

impl Inner {
    fn quota_bytes(&self, pool: PoolId) -> Option<u64> {
        self.pools[pool as usize].quota.as_ref().map(|quota| quota.limit_bytes())
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
        self.pools[pool as usize].add_blocks(extent.blocks);
        self.pools[pool as usize].chunks += 1;
        self.pools[pool as usize].ordered_blocks += u64::from(extent.blocks);
        self.extents.insert(extent, id);
        (id, namespace)
    }

    fn drop_node(&mut self, id: NodeId, namespace: NamespaceId) {
        let node = self.nodes.remove(id);
        self.extents.remove(node.extent);
        let pool = &mut self.pools[node.pool as usize];
        pool.remove_blocks(node.extent.blocks);
        pool.chunks -= 1;
        pool.ordered_blocks -= u64::from(node.extent.blocks);
        let usage = self.namespaces.usage_mut(namespace);
        usage.keys -= 1;
        usage.allocated_bytes -= node.extent.size_bytes();
        self.namespaces.release(namespace, 1);
    }

    /// Chunks in an order of eviction.
    pub(super) fn ordered(&self) -> usize {
        self.pools.iter().map(Pool::ordered).sum()
    }

    fn reinsert(&mut self, now_s: u32) -> bool {
        let nodes = &mut self.nodes;
        let back =
            self.pools.iter_mut().filter_map(|pool| pool.reinsert(nodes, now_s).then_some(()));
        back.count() > 0
    }
}

#[cfg(test)]
mod tests;
