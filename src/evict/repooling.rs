//! A namespace that gets a quota while the store is open: its chunks get an order of eviction of their own.

use std::sync::Arc;

use super::namespaces::NamespaceId;
use super::pool::{ChunkPool, PoolId};
use super::{EvictionIndex, NodeId, Quota};

impl EvictionIndex {
    /// Adds the pool of a namespace, with what is remembered of it. Its chunks are to [join](EvictionIndex::join_pool) it next.
    pub(crate) fn add_quota(&mut self, name: &str, quota: &Arc<Quota>) -> NamespaceId {
        let pool = self.pools.len() as PoolId;
        let namespace = self.namespaces.add_with_pool(name, pool);
        let bonus = Arc::clone(&quota.bonus);
        let mut added = ChunkPool::new(self.policy, bonus, Some(Arc::clone(quota)));
        added.ghosts = *self.namespaces.ghosts_mut(namespace);
        self.pools[0].ghosts.remove(added.ghosts);
        self.pools.push(added);
        namespace
    }

    /// Moves a chunk into the pool of its namespace, behind those that came before it.
    pub(crate) fn join_pool(&mut self, id: NodeId, namespace: NamespaceId) {
        let excluded_until_s = self.nodes[id].excluded_until_s();
        let blocks = self.nodes[id].extent.blocks;
        let (pool, nodes) = self.pool_with(id);
        pool.remove(nodes, id);
        pool.discount_chunk(blocks);
        self.nodes[id].pool = self.namespaces.pool(namespace);
        let (pool, nodes) = self.pool_with(id);
        pool.add_chunk(blocks);
        pool.order.insert(nodes, id);
        if let Some(until_s) = excluded_until_s {
            self.exclude(id, until_s);
        }
    }
}
