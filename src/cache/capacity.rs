//! Another capacity or quota of a store that is open. The maintenance thread evicts what no longer fits, and gives its space back; what
//! is pinned, leased, read or being written stays until it is not.

use std::time::Duration;

use super::Cache;
use super::room::VICTIMS_A_STEP;
use crate::base::sync::atomic::Ordering;
use crate::base::time::Patience;

/// Space is given back once the records of what went are cleared in the index file. If that takes so long, it is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Cache {
    /// From here on the store grows up to another capacity, or is brought down to it.
    pub(crate) fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.index.set_capacity_bytes(capacity_bytes);
        self.note_new_limits();
    }

    /// The capacity or a quota is another one.
    pub(crate) fn note_new_limits(&self) {
        self.is_fitting.store(true, Ordering::SeqCst);
        self.are_limits_new.store(true, Ordering::SeqCst);
        if !self.maintenance.order(()) {
            self.is_fitting.store(false, Ordering::SeqCst);
        }
    }

    pub(super) fn is_fitting(&self) -> bool {
        self.is_fitting.load(Ordering::SeqCst)
    }

    /// Brings the store down to its capacity and its quotas, as far as that goes now.
    pub(super) fn fit_limits(&self) {
        let are_new = self.are_limits_new.swap(false, Ordering::SeqCst);
        let is_over = || self.index.is_over_capacity();
        if are_new || is_over() && self.store.limits().is_empty() {
            if is_over() {
                self.index.fit_reserve();
            }
            if !self.store.fit_capacity(&|| self.index.file_uses()) {
                // Once the data file is made; the next look is at hand.
                self.are_limits_new.store(true, Ordering::SeqCst);
                return;
            }
        }
        match &*self.store.limits() {
            [] if is_over() => self.evict_beyond_capacity(),
            limits => limits.iter().for_each(|limit| self.evict_behind(*limit)),
        }
        if are_new {
            self.fit_quotas();
            self.end_fitting();
        }
        if is_over() {
            self.give_back();
        }
    }

    /// What the new limits leave no room for is gone, or must stay.
    fn end_fitting(&self) {
        let are_newer = self.are_limits_new.load(Ordering::SeqCst);
        self.is_fitting.store(are_newer, Ordering::SeqCst);
        self.order_growth(0);
        self.note_room();
    }

    /// Evicts what lies in a data file behind a block, but what must stay.
    fn evict_behind(&self, (file, block): (u32, u32)) {
        let mut from = Some(block);
        while let Some(block) = from
            && !self.maintenance.are_to_end()
        {
            let (victims, next) =
                self.index.eviction_index.lock().behind(file, block, VICTIMS_A_STEP);
            self.evict_all(&victims);
            from = next;
        }
    }

    fn give_back(&self) {
        self.index.changes.announce();
        let ticket = self.index.changes.ticket();
        if !self.index.changes.wait(ticket, Some(&mut Patience::new(LONGEST_WAIT))) {
            return;
        }
        if let Err(error) = self.store.give_back() {
            let path = self.config.path();
            let line = || {
                format!("{}: cannot give back space beyond the capacity: {error}", path.display())
            };
            self.log_limits.shrinks.log(path, 1, line);
        }
    }

    /// Evicts what is beyond the quotas of namespaces, at each path a share of it.
    fn fit_quotas(&self) {
        for (pool, quota) in (1..).zip(self.index.quotas.all()) {
            let over = || quota.over_blocks().div_ceil(self.path_count() as u64);
            // Those that must stay are not found again, so that it ends.
            while over() > 0 && !self.maintenance.are_to_end() {
                let mut victims = self.index.eviction_index.lock().coldest_of(pool, over());
                victims.truncate(VICTIMS_A_STEP);
                if victims.is_empty() {
                    break;
                }
                self.evict_all(&victims);
            }
        }
    }
}
