//! The thread by which the store grows: the next data file and the next part of the index are made ahead of need.
//!
//! Making them waits for the file system, which loads must not. A SET that finds no room meanwhile waits in its queue, as all
//! behind it do; it fails, or others go for it, only when the store can grow no more.

use std::sync::Arc;

use super::Cache;
use super::threads::CacheThread;

/// Ends the waiting of SETs with the thread, also if that is a panic.
struct NoMoreGrowth<'cache>(&'cache Cache);

impl Drop for NoMoreGrowth<'_> {
    fn drop(&mut self) {
        self.0.growth.end();
        self.0.wake_reactors();
    }
}

fn keep_growing(cache: &Cache) {
    let _ending = NoMoreGrowth(cache);
    while cache.growth.wait(None) {
        if let Some(needed_bytes) = cache.growth.take() {
            let slots_before = cache.index.record_slots();
            cache.grow(needed_bytes);
            cache.growth.note_done();
            cache.wake_reactors();
            cache.index.populate_from(slots_before);
        }
    }
}

impl Cache {
    pub(crate) fn start_growth(self: &Arc<Self>) -> std::io::Result<CacheThread> {
        let lost = "the store did not grow any more";
        CacheThread::start(self, "kvring-growth", keep_growing, |cache| cache.growth.end(), lost)
    }

    /// Whether SETs that found no room are to wait. The reactors are woken when it ends.
    pub(crate) fn is_growing(&self) -> bool {
        self.growth.is_under_way()
    }

    pub(super) fn wake_reactors(&self) {
        self.reactors.iter().for_each(|reactor| reactor.wake());
    }

    /// Has the store grow if it soon has to.
    pub(super) fn grow_ahead(&self) {
        let is_due = || self.store.is_growth_due(0) || self.index.is_growth_due();
        if !self.is_growing() && is_due() {
            self.order_growth(0);
        }
    }

    /// Has the store grow until there is room for `needed_bytes`, if it can. False if nobody does that any more.
    pub(crate) fn order_growth(&self, needed_bytes: u64) -> bool {
        if self.config.works_inline {
            self.grow(needed_bytes);
            self.wake_reactors();
            return true;
        }
        self.growth.order(needed_bytes)
    }

    /// Makes the first data file, and the first part of the index, if they are not there. SETs that fail name
    /// what is in the way.
    pub(crate) fn prepare_growth(&self) {
        if self.index.record_slots() == 0 {
            let _ = self.index.grow();
        }
        if let Err(error) = self.store.prepare(self.index.space()) {
            log::warn!("{}: {error}", self.config.path().display());
        }
    }

    /// Grows until there is room for `needed_bytes`, or for some time. Requests for room are refused with
    /// what was in the way.
    fn grow(&self, needed_bytes: u64) {
        let index = &self.index;
        while self.store.is_growth_due(needed_bytes)
            && self.store.grow(needed_bytes, index.space()).is_ok()
        {}
        while index.is_growth_due() && index.grow().is_ok() {}
    }
}
