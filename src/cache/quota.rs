//! Room within the quota of a namespace. A quota is one account over all paths, so chunks at any of them may go.

use std::sync::{Arc, Weak};

use super::room::ATTEMPTS;
use super::write::QuotaShare;
use super::{Cache, SetRequest};
use crate::block::{BLOCK_BYTES, Extent};
use crate::error::StoreError;
use crate::evict::PoolId;
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
        let namespace = Namespace::of(&request.key).without_salt();
        Err(StoreError::Quota { needed_bytes: bytes, namespace, quota_bytes })
    }

    pub(super) fn release_quota(&self, share: Option<QuotaShare>) {
        if let Some((pool, blocks)) = share {
            self.index.eviction_index.lock().release_quota(pool, blocks);
        }
    }

    /// Evicts chunks of the pool, which is over by so many blocks, until `blocks` can be taken; says whether they were. Each time
    /// some go at the path of whose capacity the pool takes most. None go if all that may would not do: that would be in vain.
    fn make_room_in_quota(&self, pool: PoolId, blocks: u32, mut over: u64) -> bool {
        let paths: Vec<Arc<Self>> =
            self.paths.get().into_iter().flatten().filter_map(Weak::upgrade).collect();
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            let (mut evictable_at_all, mut fullest) = (0, None);
            for path in &paths {
                let (taken, evictable) = path.index.ask(|all, now_s| all.blocks_of(pool, now_s));
                evictable_at_all += evictable;
                let fullness = taken as f64 / path.config.capacity_bytes() as f64;
                if evictable > 0 && fullest.is_none_or(|(most, _)| fullness > most) {
                    fullest = Some((fullness, path));
                }
            }
            let Some((_, path)) = fullest.filter(|_| evictable_at_all >= over) else {
                return false;
            };
            let wanted = over.div_ceil(paths.len() as u64);
            let victims = path.index.eviction_index.lock().coldest_of(pool, wanted);
            // Where none could go, none of them is chosen again.
            let has_evicted = path.evict_all(&victims);
            let reserved = self.index.eviction_index.lock().reserve_quota(pool, blocks);
            let Err(still_over) = reserved else { return true };
            attempts += usize::from(has_evicted && still_over >= over);
            over = still_over;
        }
        false
    }
}
