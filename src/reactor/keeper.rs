//! The thread that keeps house: it evicts ahead of need, gives back what has expired, and looks whether the files are where they
//! belong.
//!
//! It works in slices and rests between them, so that what users wait for goes on beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::Shared;
use super::presence::LOOK_PAUSE;
use crate::block::Extent;
use crate::config::Discard;
use crate::store::Fill;
use crate::sync::{Condvar, Mutex};
use crate::thread::{LONGEST_RETURN, has_ended};

/// Expired chunks are looked for so many times within `ttl`, within these bounds.
const SWEEPS_PER_TTL: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Uses are written into the records so often within `ttl`, within these bounds: a kill loses those of that time.
const LONGEST_BEHIND: Duration = Duration::from_secs(5);

/// A few uses that take so long to be written are written later on: the file system may be frozen.
const LONGEST_WRITE: Duration = Duration::from_millis(100);

/// Freed places are discarded so often, many at a time.
const DISCARD_PAUSE: Duration = Duration::from_millis(200);

/// Entries that are looked at for expiry while a lock is held.
const LOOKED_AT: u32 = 64;

/// A slice of work.
const SLICE: Duration = Duration::from_micros(200);

/// How much longer than it has worked it rests.
const RESTS: u32 = 4;

/// By how much of itself the length to make room for falls with each chunk that is shorter.
const FORGETS: u32 = 64;

/// What the keeper is told.
pub(super) struct Keeper {
    /// Above this share of the space it evicts, down to the other one.
    high_watermark: f64,
    low_watermark: f64,
    /// Blocks of about the longest chunk of late.
    typical_blocks: AtomicU32,
    is_short: AtomicBool,
    orders: Mutex<Orders>,
    told: Condvar,
}

#[derive(Default)]
struct Orders {
    ends: bool,
    is_short: bool,
}

impl Keeper {
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

    /// A chunk of `bytes` has been placed, or not; wakes the keeper if space is short now.
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

    fn end(&self) {
        self.orders.lock().ends = true;
        self.told.notify_all();
    }
}

fn is_above(fill: Fill, share: f64) -> bool {
    !fill.can_grow && fill.allocated_bytes as f64 > fill.total_bytes as f64 * share
}

/// The running thread.
pub(crate) struct KeeperThread {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl KeeperThread {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let shared = Arc::clone(shared);
        let thread = Builder::new().name("kvring-keeper".into()).spawn({
            let shared = Arc::clone(&shared);
            move || keep(&shared)
        })?;
        Ok(Self { shared, thread })
    }

    /// Ends it, at the next slice, and says whether it did: a device may take a discard and not give it back. Not by dropping
    /// it: that must do nothing in a fork, where the thread is not.
    pub(crate) fn end(self) -> bool {
        self.shared.keeper.end();
        let lost = "nothing expired or was evicted early";
        has_ended(self.thread, Instant::now() + LONGEST_RETURN, lost)
    }
}

fn keep(shared: &Shared) {
    let pause =
        shared.config.ttl.map(|ttl| (ttl / SWEEPS_PER_TTL).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    let uses_pause = pause.map_or(LONGEST_BEHIND, |pause| pause.min(LONGEST_BEHIND));
    let mut next_uses = Instant::now() + uses_pause;
    let mut next_sweep = pause.map(|pause| Instant::now() + pause);
    let discards = shared.config.discard == Discard::Free;
    let mut next_discard = discards.then(|| Instant::now() + DISCARD_PAUSE);
    let mut next_look = Instant::now() + LOOK_PAUSE;
    let progress = shared.index.table().progress();
    let mut uses_ticket = 0;
    loop {
        shared.index.table().announce_changes();
        let mut orders = shared.keeper.orders.lock();
        while !orders.ends && !orders.is_short {
            let others = [next_sweep, next_discard].into_iter().flatten();
            let next = others.fold(next_look.min(next_uses), Instant::min);
            let (again, is_due) = shared.keeper.told.wait_until(orders, next);
            orders = again;
            if is_due {
                break;
            }
        }
        let is_short = std::mem::take(&mut orders.is_short);
        let ends = orders.ends;
        drop(orders);
        if ends {
            return;
        }
        if is_short {
            shared.evict_ahead(|_, _| ());
        }
        if Instant::now() >= next_look {
            shared.look_for_files();
            if shared.store.is_look_due(false) || shared.index.table().lacks_blocks() {
                shared.look_at_blocks();
            }
            next_look = Instant::now() + LOOK_PAUSE;
        }
        if let (Some(next), Some(pause)) = (next_sweep, pause)
            && Instant::now() >= next
        {
            shared.expire(true);
            next_sweep = Some(Instant::now() + pause);
        }
        if Instant::now() >= next_uses {
            // One round at a time, however long the file system takes.
            if progress.is_done(uses_ticket) {
                shared.write_uses();
                uses_ticket = progress.ticket();
            }
            next_uses = Instant::now() + uses_pause;
        }
        if next_discard.is_some_and(|next| Instant::now() >= next) {
            shared.discard_freed();
            next_discard = Some(Instant::now() + DISCARD_PAUSE);
        }
    }
}

impl Shared {
    /// Evicts down to the low watermark, if the high one was passed. Tells of each run of blocks that it made room for, and
    /// how many bytes it evicted for it.
    pub(super) fn evict_ahead(&self, mut told: impl FnMut(u32, u64)) {
        let keeper = &self.keeper;
        if !keeper.is_short.load(Ordering::Relaxed) {
            return;
        }
        while is_above(self.store.fill(), keeper.low_watermark) && !keeper.orders.lock().ends {
            let before = self.counters.evicted_bytes.get();
            let blocks = keeper.typical_blocks.load(Ordering::Relaxed);
            if !self.make_room(blocks) {
                break;
            }
            told(blocks, self.counters.evicted_bytes.get() - before);
        }
        keeper.is_short.store(false, Ordering::Relaxed);
    }

    /// Tells the device of what was freed, until there is something more urgent.
    fn discard_freed(&self) {
        // It waits for records to be cleared.
        self.index.table().announce_changes();
        let mut start = Instant::now();
        while self.store.discard_freed() {
            let mut orders = self.keeper.orders.lock();
            if !orders.ends && !orders.is_short {
                let rested = Instant::now() + start.elapsed() * RESTS;
                (orders, _) = self.keeper.told.wait_until(orders, rested);
            }
            if orders.ends || orders.is_short {
                return;
            }
            start = Instant::now();
        }
    }

    /// Has it written into the records how their chunks were used, until there is something more urgent, or the file system takes
    /// long. A fifth of the time, and a few at a time: answers of SETs and DELETEs wait behind them.
    pub(super) fn write_uses(&self) {
        let (table, mut slice) = (self.index.table(), Instant::now());
        for number in 0..self.index.shard_count() {
            let mut has_more = true;
            while has_more {
                has_more = self.index.write_uses(number);
                table.announce_changes();
                let deadline = Instant::now() + LONGEST_WRITE;
                if !table.progress().wait_until(table.progress().ticket(), deadline) {
                    return;
                }
                let worked = slice.elapsed();
                if worked >= SLICE {
                    let orders = self.keeper.orders.lock();
                    if orders.ends || orders.is_short {
                        return;
                    }
                    drop(self.keeper.told.wait_until(orders, Instant::now() + worked * RESTS));
                    slice = Instant::now();
                }
            }
        }
    }

    /// Takes out what has expired and gives its space back. With `pauses`, it stops when the keeper is to end, and works a
    /// fifth of the time. Returns the number of chunks.
    pub(crate) fn expire(&self, pauses: bool) -> u64 {
        let before = self.counters.expired.get();
        let mut slice = Instant::now();
        for number in 0..self.index.shard_count() {
            let mut from = Some(0);
            while let Some(first) = from {
                let now_ms = self.config.clock.now_ms();
                let expired = self.index.expire(number, first, LOOKED_AT, now_ms);
                from = expired.next;
                self.counters.expired.add(expired.chunks);
                self.counters.expired_bytes.add(expired.bytes);
                expired.places.into_iter().for_each(|place| self.store.free(place));
                let worked = slice.elapsed();
                if pauses && worked >= SLICE {
                    let orders = self.keeper.orders.lock();
                    if orders.ends {
                        return self.counters.expired.get() - before;
                    }
                    drop(self.keeper.told.wait_until(orders, Instant::now() + worked * RESTS));
                    slice = Instant::now();
                }
            }
        }
        self.counters.expired.get() - before
    }
}
