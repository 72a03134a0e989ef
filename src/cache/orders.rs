//! What requests for room order from the threads of a cache.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use crate::block::Extent;
use crate::config::Tuning;
use crate::store::Fill;
use crate::sync::{Condvar, Mutex};

/// How much longer than it has worked it rests.
const RESTS: u32 = 4;

/// By how much of itself the length to make room for falls with each chunk that is shorter.
const FORGETS: u32 = 64;

#[derive(Default)]
pub(super) struct Growth {
    pub(super) orders: Mutex<GrowthOrders>,
    pub(super) ordered: Condvar,
    /// From an order until all is done that was ordered.
    pub(super) is_under_way: AtomicBool,
}

#[derive(Default)]
pub(super) struct GrowthOrders {
    pub(super) ends: bool,
    pub(super) needed_bytes: Option<u64>,
}

impl Growth {
    pub(super) fn next_order(&self) -> Option<u64> {
        let mut orders = self.orders.lock();
        loop {
            if orders.ends {
                return None;
            }
            if let Some(needed_bytes) = orders.needed_bytes.take() {
                return Some(needed_bytes);
            }
            orders = self.ordered.wait(orders);
        }
    }

    pub(super) fn end(&self) {
        self.orders.lock().ends = true;
        self.ordered.notify_one();
    }
}

pub(super) struct Maintenance {
    /// Above this share of the space it evicts, down to the other one.
    high_watermark: f64,
    pub(super) low_watermark: f64,
    /// Blocks of about the longest chunk of late.
    pub(super) typical_blocks: AtomicU32,
    pub(super) is_short: AtomicBool,
    pub(super) orders: Mutex<MaintenanceOrders>,
    ordered: Condvar,
}

#[derive(Default)]
pub(super) struct MaintenanceOrders {
    pub(super) ends: bool,
    pub(super) is_short: bool,
}

impl Maintenance {
    pub(super) fn new(tuning: &Tuning) -> Self {
        Self {
            high_watermark: tuning.high_watermark,
            low_watermark: tuning.low_watermark,
            typical_blocks: AtomicU32::new(1),
            is_short: AtomicBool::new(false),
            orders: Mutex::default(),
            ordered: Condvar::new(),
        }
    }

    /// A chunk of `bytes` got an extent, or none; wakes the maintenance thread if space is short now.
    pub(super) fn note_placed(&self, bytes: u64, fill: impl FnOnce() -> Fill) {
        let blocks = Extent::blocks_for(bytes);
        let before = self.typical_blocks.load(Ordering::Relaxed);
        self.typical_blocks.store(blocks.max(before - before / FORGETS), Ordering::Relaxed);
        if !self.is_short.load(Ordering::Relaxed) && is_above(fill(), self.high_watermark) {
            self.is_short.store(true, Ordering::Relaxed);
            self.orders.lock().is_short = true;
            self.ordered.notify_all();
        }
    }

    pub(super) fn end(&self) {
        self.orders.lock().ends = true;
        self.ordered.notify_all();
    }

    /// Waits for orders, or until something else is due.
    pub(super) fn next_orders(&self, due: Instant) -> MaintenanceOrders {
        let mut orders = self.orders.lock();
        while !orders.ends && !orders.is_short {
            let (again, is_due) = self.ordered.wait_until(orders, due);
            orders = again;
            if is_due {
                break;
            }
        }
        MaintenanceOrders { ends: orders.ends, is_short: std::mem::take(&mut orders.is_short) }
    }

    /// Rests for four times as long as the `slice` of work took that ends now. Says whether to go on: not if the thread is to
    /// end, nor, if it `yields`, while space is short.
    pub(super) fn rest(&self, slice: &mut Instant, yields: bool) -> bool {
        let stops = |orders: &MaintenanceOrders| orders.ends || yields && orders.is_short;
        let mut orders = self.orders.lock();
        if !stops(&orders) {
            let rested = Instant::now() + slice.elapsed() * RESTS;
            (orders, _) = self.ordered.wait_until(orders, rested);
        }
        *slice = Instant::now();
        !stops(&orders)
    }
}

pub(super) fn is_above(fill: Fill, share: f64) -> bool {
    !fill.can_grow && fill.allocated_bytes as f64 > fill.total_bytes as f64 * share
}
