//! Room within the quota of a namespace. A quota is one account over all paths, so chunks at any of them may go.

use std::sync::{Arc, Weak};

use super::room::ATTEMPTS;
use super::write::QuotaShare;
use super::{Cache, SetRequest};
use crate::block::BLOCK_BYTES;
use crate::block::Extent;
use crate::error::StoreError;
use crate::evict::{PoolId, Victim};
use crate::key::Namespace;

impl Cache {
    /// Room for `bytes` in the quota of the namespace, if it has one. `begin` is called before chunks go.
    pub(super) fn reserve_quota(
        &self,
        request: &SetRequest,
        bytes: u64,
        begin: impl FnOnce(),
    ) -> Result<Option<QuotaShare>, StoreError> {
        if self.config.quotas.is_empty() {
            return Ok(None);
        }
        let mut eviction_index = self.index.eviction_index.lock();
        let (pool, Some(quota_bytes)) = eviction_index.pool_of(request.namespace) else {
            return Ok(None);
        };
        let blocks = Extent::blocks_for(bytes);
        let Err(over) = eviction_index.reserve_quota(pool, blocks) else {
            return Ok(Some((pool, blocks)));
        };
        drop(eviction_index);
        begin();
        if u64::from(blocks) * BLOCK_BYTES <= quota_bytes
            && self.make_room_in_quota(pool, blocks, over)
        {
            return Ok(Some((pool, blocks)));
        }
        let namespace = Namespace::of(&request.key).name();
        Err(StoreError::Quota { needed_bytes: bytes, namespace, quota_bytes })
    }

    pub(super) fn release_quota(&self, share: Option<QuotaShare>) {
        if let Some((pool, blocks)) = share {
            self.index.eviction_index.lock().release_quota(pool, blocks);
        }
    }

    /// Evicts chunks of the pool, which is over by so many blocks, until `blocks` can be taken; says whether they were.
    fn make_room_in_quota(&self, pool: PoolId, blocks: u32, mut over: u64) -> bool {
        let sources: Vec<Arc<Self>> =
            self.paths.get().into_iter().flatten().filter_map(Weak::upgrade).collect();
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            let Some((victims, has_more)) = chosen(&sources, pool, over) else { return false };
            let evict = |(path, victims): (&Arc<Self>, Vec<Victim>)| path.evict_all(&victims);
            // Where none could go, none of them is chosen again.
            let has_evicted =
                sources.iter().zip(victims).map(evict).fold(false, |some, one| some | one);
            attempts += usize::from(has_evicted && !has_more);
            let reserved = self.index.eviction_index.lock().reserve_quota(pool, blocks);
            match reserved {
                Ok(()) => return true,
                Err(still_over) => over = still_over,
            }
        }
        false
    }
}

/// Chunks of the pool with `over` blocks, at each path: more where it takes more for the capacity. None if all that may go
/// would not do: what goes in vain is lost. The second value says that they are only some, and others are to follow.
fn chosen(sources: &[Arc<Cache>], pool: PoolId, over: u64) -> Option<(Vec<Vec<Victim>>, bool)> {
    let may_go = |path: &Arc<Cache>| path.index.evictable_blocks_of(pool);
    if sources.iter().map(may_go).sum::<u64>() < over {
        return None;
    }
    let taken = |path: &Arc<Cache>| path.index.eviction_index.lock().blocks_of(pool);
    let all: u64 = sources.iter().map(taken).sum();
    let fullness = |path: &Arc<Cache>| taken(path) as f64 / path.config.capacity_bytes() as f64;
    let mut order: Vec<(usize, f64)> = sources.iter().map(fullness).enumerate().collect();
    order.sort_by(|left, right| right.1.total_cmp(&left.1));
    // In proportion first. Where that would not do, as much of each as there is.
    for in_proportion in [true, false] {
        let (mut freed, mut victims) = (0, vec![Vec::new(); sources.len()]);
        let mut has_more = false;
        for (number, _) in &order {
            let path = &sources[*number];
            let missing = over.saturating_sub(freed);
            let wanted = match in_proportion {
                true => (over * taken(path)).div_ceil(all.max(1)).min(missing),
                false => missing,
            };
            if missing == 0 {
                break;
            }
            let (some, blocks, are_more) =
                path.index.eviction_index.lock().coldest_of(pool, wanted);
            freed += blocks;
            has_more |= are_more;
            victims[*number] = some;
        }
        if freed >= over || has_more {
            return Some((victims, freed < over));
        }
    }
    None
}
