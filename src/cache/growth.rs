//! The thread by which the store grows: the next data file and the next part of the index are made ahead of need.
//!
//! Making them waits for the file system, which loads must not. A SET that finds no room meanwhile waits in its queue, as all
//! behind it do; it fails, or others go for it, only when the store can grow no more.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use super::Cache;
use crate::thread::{LONGEST_RETURN, has_ended};

pub(crate) struct GrowthThread {
    cache: Arc<Cache>,
    thread: JoinHandle<()>,
}

impl GrowthThread {
    pub(crate) fn start(cache: &Arc<Cache>) -> std::io::Result<Self> {
        let cache = Arc::clone(cache);
        let thread = Builder::new().name("kvring-growth".into()).spawn({
            let cache = Arc::clone(&cache);
            move || keep_growing(&GiveUpOnDrop(&cache))
        })?;
        Ok(Self { cache, thread })
    }

    /// Ends it after what it is doing, and says whether it did: the file system may not give it back. Not by dropping it, as
    /// the maintenance thread.
    pub(crate) fn end(self) -> bool {
        self.cache.growth.end();
        has_ended(self.thread, Instant::now() + LONGEST_RETURN, "the store did not grow any more")
    }
}

/// Ends the waiting of SETs with the thread, also if that is a panic.
struct GiveUpOnDrop<'cache>(&'cache Cache);

impl Drop for GiveUpOnDrop<'_> {
    fn drop(&mut self) {
        self.0.growth.give_up();
        self.0.wake_reactors();
    }
}

fn keep_growing(ending: &GiveUpOnDrop<'_>) {
    let cache = ending.0;
    while let Some(needed_bytes) = cache.growth.next_order() {
        cache.grow(needed_bytes);
        cache.growth.note_done();
        cache.wake_reactors();
    }
}

impl Cache {
    pub(crate) fn is_growing(&self) -> bool {
        self.growth.is_under_way()
    }

    fn wake_reactors(&self) {
        self.reactors.iter().for_each(|reactor| reactor.wake());
    }

    /// Has the store grow if it soon has to.
    pub(super) fn grow_ahead(&self) {
        let is_due = || self.store.is_growth_due(0) || self.index.table().is_growth_due();
        if !self.growth.is_under_way() && is_due() {
            self.order_growth(0);
        }
    }

    /// Has the store grow until there is room for `needed_bytes`, if it can. False if nobody does that any more.
    pub(crate) fn order_growth(&self, needed_bytes: u64) -> bool {
        if !self.config.works_inline {
            return self.growth.order(needed_bytes);
        }
        self.grow(needed_bytes);
        self.wake_reactors();
        true
    }

    /// Makes the first data file, and the first part of the index, if they are not there. What is in the way of that is told
    /// by the SETs that fail.
    pub(crate) fn prepare_growth(&self) {
        let table = self.index.table();
        if table.slot_count() == 0 {
            let _ = table.grow();
        }
        if let Err(error) = self.store.prepare(table) {
            log::warn!("{}: {error}", self.config.path().display());
        }
    }

    /// Looks which blocks of the files are shared with a copy: those of the index get blocks of their own, as a page of it that
    /// finds none is lost; the data files live with what there is.
    pub(super) fn look_at_blocks(&self) {
        self.index.table().unshare();
        self.store.look_at_blocks();
    }

    /// Grows until there is room for `needed_bytes`, or for some time. What is in the way of that is the answer to those who
    /// ask for room from here on.
    pub(super) fn grow(&self, needed_bytes: u64) {
        if self.store.is_look_due(true) {
            self.look_at_blocks();
        }
        let table = self.index.table();
        while self.store.is_growth_due(needed_bytes) && self.store.grow(needed_bytes, table).is_ok()
        {
        }
        while table.is_growth_due() && table.grow().is_ok() {}
    }
}
