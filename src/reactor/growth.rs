//! The thread by which the store grows: the next data file and the next part of the index are made ahead of need.
//!
//! Making them waits for the file system, which loads must not. A SET that finds no room meanwhile waits in its queue, as all
//! behind it do; it fails, or others go for it, only when the store can grow no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use super::Shared;
use crate::sync::{Condvar, Mutex};
use crate::thread::{LONGEST_RETURN, has_ended};

/// What the thread is told.
#[derive(Default)]
pub(super) struct Growth {
    orders: Mutex<Orders>,
    told: Condvar,
    /// From an order until all is done that was ordered.
    is_under_way: AtomicBool,
}

#[derive(Default)]
struct Orders {
    ends: bool,
    /// Bytes for which there is to be room.
    needed_bytes: Option<u64>,
}

impl Growth {
    /// Has the store grow until there is room for `needed_bytes`, if it can. False if nobody does that any more.
    pub(super) fn order(&self, needed_bytes: u64) -> bool {
        let mut orders = self.orders.lock();
        if orders.ends {
            return false;
        }
        orders.needed_bytes = orders.needed_bytes.max(Some(needed_bytes));
        self.is_under_way.store(true, Ordering::SeqCst);
        self.told.notify_one();
        true
    }

    /// Whether SETs that found no room are to wait. The reactors are woken when it ends.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::SeqCst)
    }

    fn next_order(&self) -> Option<u64> {
        let mut orders = self.orders.lock();
        loop {
            if orders.ends {
                return None;
            }
            if let Some(needed_bytes) = orders.needed_bytes.take() {
                return Some(needed_bytes);
            }
            orders = self.told.wait(orders);
        }
    }

    fn note_done(&self) {
        let orders = self.orders.lock();
        if orders.needed_bytes.is_none() {
            self.is_under_way.store(false, Ordering::SeqCst);
        }
    }

    /// From here on nobody grows the store.
    fn end(&self) {
        self.orders.lock().ends = true;
        self.told.notify_one();
    }
}

/// The running thread.
pub(crate) struct GrowthThread {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl GrowthThread {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let shared = Arc::clone(shared);
        let thread = Builder::new().name("kvring-growth".into()).spawn({
            let shared = Arc::clone(&shared);
            move || keep_growing(&Ending(&shared))
        })?;
        Ok(Self { shared, thread })
    }

    /// Ends it after what it is doing, and says whether it did: the file system may not give it back. Not by dropping it, as
    /// the keeper's.
    pub(crate) fn end(self) -> bool {
        self.shared.growth.end();
        has_ended(self.thread, Instant::now() + LONGEST_RETURN, "the store did not grow any more")
    }
}

/// Ends the waiting of SETs with the thread, also if that is a panic.
struct Ending<'shared>(&'shared Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.growth.end();
        self.0.growth.is_under_way.store(false, Ordering::SeqCst);
        self.0.lanes.iter().for_each(|lane| lane.waker.wake());
    }
}

fn keep_growing(ending: &Ending<'_>) {
    let shared = ending.0;
    while let Some(needed_bytes) = shared.growth.next_order() {
        shared.grow(needed_bytes);
        shared.growth.note_done();
        shared.lanes.iter().for_each(|lane| lane.waker.wake());
    }
}

impl Shared {
    /// Has the store grow if it soon has to.
    pub(super) fn grow_ahead(&self) {
        let is_due = || self.store.is_growth_due(0) || self.index.table().is_growth_due();
        if !self.growth.is_under_way() && is_due() {
            self.order_growth(0);
        }
    }

    /// Has the store grow until there is room for `needed_bytes`, if it can. False if nobody does that any more.
    pub(super) fn order_growth(&self, needed_bytes: u64) -> bool {
        if !self.config.works_inline {
            return self.growth.order(needed_bytes);
        }
        self.grow(needed_bytes);
        self.lanes.iter().for_each(|lane| lane.waker.wake());
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
