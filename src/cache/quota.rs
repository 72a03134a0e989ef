//! Room within the quota of a namespace. A quota is one account over all paths, so chunks at any of them may go.

use super::room::{ATTEMPTS, RoomMaking, STEPS_A_TURN, VICTIMS_A_STEP};
use super::write::QuotaShare;
use super::{Cache, SetRequest};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::error::StoreError;
use crate::evict::PoolId;
use crate::key::Namespace;

/// What becomes of a SET that found no room in a quota.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QuotaOutlook {
    /// What must stay leaves no room for it.
    Nothing,
    /// What is being written takes the room.
    Later,
    /// There is room by now.
    Now,
}

impl Cache {
    /// Room for `bytes` in the quota of the namespace, if it has one. `begin` is called before chunks go. `None`: there may be once
    /// this was called again.
    pub(super) fn reserve_quota(
        &self,
        request: &SetRequest,
        bytes: u64,
        begin: impl FnOnce(),
        making: &mut Option<Box<RoomMaking>>,
    ) -> Result<Option<QuotaShare>, StoreError> {
        if !self.index.quotas.are_there() {
            return Ok(Some(QuotaShare(None)));
        }
        let mut eviction_index = self.index.eviction_index.lock();
        let (pool, Some(quota_bytes)) = eviction_index.pool_of(request.namespace) else {
            return Ok(Some(QuotaShare(None)));
        };
        let blocks = Extent::blocks_for(bytes);
        let share = QuotaShare(Some((pool, blocks)));
        let Err(over) = eviction_index.reserve_quota(pool, blocks) else {
            return Ok(Some(share));
        };
        drop(eviction_index);
        begin();
        if u64::from(blocks) * BLOCK_BYTES <= quota_bytes {
            let room = making.get_or_insert_with(|| Box::new(RoomMaking::new(blocks)));
            match self.go_on_in_quota(pool, blocks, over, &mut room.quota_attempts) {
                None => return Ok(None),
                Some(true) => return Ok(Some(share)),
                Some(false) => *making = None,
            }
        }
        let namespace = Namespace::of(&request.key).without_salt();
        Err(StoreError::Quota { needed_bytes: bytes, namespace, quota_bytes })
    }

    pub(super) fn release_quota(&self, QuotaShare(share): QuotaShare) {
        if let Some((pool, blocks)) = share {
            self.index.eviction_index.lock().release_quota(pool, blocks);
        }
    }

    /// Evicts chunks of the pool, which is over by so many blocks, until `blocks` are taken, and says whether they are; `None` until
    /// it is known. Each time some go at the path of whose capacity the pool takes most. None go if all that may would not do: that
    /// would be in vain.
    fn go_on_in_quota(
        &self,
        pool: PoolId,
        blocks: u32,
        mut over: u64,
        attempts: &mut usize,
    ) -> Option<bool> {
        let (paths, mut looked_at) = (self.all_paths(), 0);
        for _ in 0..STEPS_A_TURN {
            let (mut evictable_at_all, mut fullest) = (0, None);
            for path in &paths {
                let now_s = path.index.now_s();
                let of_pool = path.index.eviction_index.lock().blocks_of(pool, now_s)?;
                evictable_at_all += of_pool.evictable;
                let fullness = of_pool.taken as f64 / path.index.capacity_bytes() as f64;
                if of_pool.evictable > 0 && fullest.is_none_or(|(most, _)| fullness > most) {
                    fullest = Some((fullness, path));
                }
            }
            let fullest = fullest.filter(|_| evictable_at_all >= over && *attempts < ATTEMPTS);
            let Some((_, path)) = fullest else { return Some(false) };
            let wanted = over.div_ceil(paths.len() as u64);
            let mut victims = path.index.eviction_index.lock().coldest_of(pool, wanted);
            victims.truncate(VICTIMS_A_STEP);
            // Where none could go, none of them is chosen again.
            let has_evicted = path.evict_all(&victims);
            let reserved = self.index.eviction_index.lock().reserve_quota(pool, blocks);
            let Err(still_over) = reserved else { return Some(true) };
            *attempts += usize::from(has_evicted && still_over >= over);
            over = still_over;
            looked_at += victims.len();
            if looked_at >= VICTIMS_A_STEP {
                break;
            }
        }
        None
    }

    /// Of a SET that found no room in its quota.
    pub(super) fn quota_outlook(&self, request: &SetRequest) -> QuotaOutlook {
        let (pool, quota_bytes) = self.index.eviction_index.lock().pool_of(request.namespace);
        let (mut staying, mut writing) = (0, 0);
        for path in self.all_paths() {
            let of_pool = path.index.blocks_of(pool);
            staying += of_pool.taken - of_pool.evictable - of_pool.writing;
            writing += of_pool.writing;
        }
        let needed = u64::from(Extent::blocks_for(request.buffer.length_bytes() as u64));
        match (staying + needed) * BLOCK_BYTES <= quota_bytes.unwrap_or(u64::MAX) {
            false => QuotaOutlook::Nothing,
            true if writing > 0 => QuotaOutlook::Later,
            true => QuotaOutlook::Now,
        }
    }
}
