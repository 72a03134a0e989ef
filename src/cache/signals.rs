//! Signals between those that need space and the threads of a cache that make it: eviction and growth.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::block::Extent;
use crate::store::Fill;
use crate::sync::{Condvar, Mutex};

/// What the thread is told by which the store grows.
#[derive(Default)]
pub(super) struct Growth {
    orders: Mutex<GrowthOrders>,
    told: Condvar,
    /// From an order until all is done that was ordered.
    is_under_way: AtomicBool,
}

#[derive(Default)]
struct GrowthOrders {
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

    pub(super) fn next_order(&self) -> Option<u64> {
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

    /// Nothing grows the store any more: nobody waits for that.
    pub(super) fn give_up(&self) {
        self.end();
        self.is_under_way.store(false, Ordering::SeqCst);
    }

    pub(super) fn note_done(&self) {
        let orders = self.orders.lock();
        if orders.needed_bytes.is_none() {
            self.is_under_way.store(false, Ordering::SeqCst);
        }
    }

    pub(super) fn end(&self) {
        self.orders.lock().ends = true;
        self.told.notify_one();
    }
}

/// By how much of itself the length to make room for falls with each chunk that is shorter.
const FORGETS: u32 = 64;

pub(super) struct Maintenance {
    /// Above this share of the space it evicts, down to the other one.
    high_watermark: f64,
    pub(super) low_watermark: f64,
    /// Blocks of about the longest chunk of late.
    pub(super) typical_blocks: AtomicU32,
    pub(super) is_short: AtomicBool,
    pub(super) orders: Mutex<MaintenanceOrders>,
    pub(super) told: Condvar,
}

#[derive(Default)]
pub(super) struct MaintenanceOrders {
    pub(super) ends: bool,
    pub(super) is_short: bool,
}

impl Maintenance {
    pub(super) fn new(low_watermark: f64, high_watermark: f64) -> Self {
        Self {
            high_watermark,
            low_watermark,
            typical_blocks: AtomicU32::new(1),
            is_short: AtomicBool::new(false),
            orders: Mutex::default(),
            told: Condvar::new(),
        }
    }

    /// A chunk of `bytes` has been placed, or not; wakes the maintenance thread if space is short now.
    pub(super) fn note_placed(&self, bytes: u64, fill: impl FnOnce() -> Fill) {
        let blocks = Extent::blocks_for(bytes);
        let before = self.typical_blocks.load(Ordering::Relaxed);
        self.typical_blocks.store(blocks.max(before - before / FORGETS), Ordering::Relaxed);
        if !self.is_short.load(Ordering::Relaxed) && is_above(fill(), self.high_watermark) {
            self.is_short.store(true, Ordering::Relaxed);
            self.orders.lock().is_short = true;
            self.told.notify_all();
        }
    }

    pub(super) fn end(&self) {
        self.orders.lock().ends = true;
        self.told.notify_all();
    }
}

pub(super) fn is_above(fill: Fill, share: f64) -> bool {
    !fill.can_grow && fill.allocated_bytes as f64 > fill.total_bytes as f64 * share
}
