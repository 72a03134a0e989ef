//! The maintenance thread: it evicts ahead of need, removes what has expired, has uses written, discards, and looks whether the files
//! are where they belong.
//!
//! It works in slices and rests between them, so that operations of users go on beside it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Cache;
use super::orders::is_above;
use super::presence::LOOK_PAUSE;
use super::threads::CacheThread;
use crate::config::Discard;

/// Expired chunks are looked for so many times within `ttl`, within these bounds.
const SWEEPS_PER_TTL: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Uses are written into the records so often within `ttl`, within these bounds: a kill loses those of that time.
const LONGEST_BEHIND: Duration = Duration::from_secs(5);

/// A few uses that take so long to be written are written later on: the file system may be frozen.
const LONGEST_WRITE: Duration = Duration::from_millis(100);

/// Freed extents are discarded so often, many at a time.
const DISCARD_PAUSE: Duration = Duration::from_millis(200);

/// Entries that are looked at for expiry while a lock is held.
const LOOKED_AT: u32 = 64;

const SLICE: Duration = Duration::from_micros(200);

fn keep(cache: &Cache, tell_lost: &dyn Fn(String)) {
    let pause =
        cache.config.ttl.map(|ttl| (ttl / SWEEPS_PER_TTL).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    let uses_pause = pause.map_or(LONGEST_BEHIND, |pause| pause.min(LONGEST_BEHIND));
    let mut next_uses = Instant::now() + uses_pause;
    let mut next_sweep = pause.map(|pause| Instant::now() + pause);
    let discards = cache.config.discard == Discard::Free;
    let mut next_discard = discards.then(|| Instant::now() + DISCARD_PAUSE);
    let mut next_look = Instant::now() + LOOK_PAUSE;
    let progress = &cache.index.table().changes.progress;
    let mut uses_ticket = 0;
    loop {
        cache.index.table().changes.announce();
        let others = [next_sweep, next_discard].into_iter().flatten();
        let next_due = others.fold(next_look.min(next_uses), Instant::min);
        let orders = cache.maintenance.next_orders(next_due);
        if orders.ends {
            return;
        }
        if orders.is_short {
            cache.evict_ahead(|_, _| ());
        }
        if Instant::now() >= next_look {
            let (missed, has_others) = (cache.missed_files(), cache.paths.get().is_some());
            // The others take its keys, and say so.
            let lost = cache.presence.note(missed, cache.config.path(), has_others);
            lost.into_iter().for_each(tell_lost);
            if cache.store.is_look_due(false) || cache.index.table().lacks_blocks() {
                cache.look_at_blocks();
            }
            next_look = Instant::now() + LOOK_PAUSE;
        }
        if let (Some(next), Some(pause)) = (next_sweep, pause)
            && Instant::now() >= next
        {
            cache.expire(true);
            next_sweep = Some(Instant::now() + pause);
        }
        if Instant::now() >= next_uses {
            // One round at a time, however long the file system takes.
            if progress.is_done(uses_ticket) {
                cache.write_uses();
                uses_ticket = progress.ticket();
            }
            next_uses = Instant::now() + uses_pause;
        }
        if next_discard.is_some_and(|next| Instant::now() >= next) {
            cache.discard_freed();
            next_discard = Some(Instant::now() + DISCARD_PAUSE);
        }
    }
}

impl Cache {
    /// Starts the maintenance thread. `tell_lost` is called with the reason when the files of the store are not found any more
    /// and other paths can take its keys.
    pub(crate) fn start_maintenance(
        self: &Arc<Self>,
        tell_lost: impl Fn(String) + Send + 'static,
    ) -> std::io::Result<CacheThread> {
        let work = move |cache: &Self| keep(cache, &tell_lost);
        let lost = "nothing expired or was evicted early";
        CacheThread::start(self, "kvring-maintain", work, |cache| cache.maintenance.end(), lost)
    }

    /// Evicts down to the low watermark, if the high one was passed. `notify` gets each run of blocks that it made room
    /// for, and how many bytes it evicted for it.
    pub(super) fn evict_ahead(&self, mut notify: impl FnMut(u32, u64)) {
        let maintenance = &self.maintenance;
        if !maintenance.is_short.load(Ordering::Relaxed) {
            return;
        }
        while is_above(self.store.fill(), maintenance.low_watermark)
            && !maintenance.orders.lock().ends
        {
            let before = self.counters.evicted_bytes.get();
            let blocks = maintenance.typical_blocks.load(Ordering::Relaxed);
            if !self.make_room(blocks) {
                break;
            }
            notify(blocks, self.counters.evicted_bytes.get() - before);
        }
        maintenance.is_short.store(false, Ordering::Relaxed);
    }

    /// Discards extents that were freed, until there is something more urgent.
    fn discard_freed(&self) {
        // It waits for records to be cleared.
        self.index.table().changes.announce();
        let mut slice = Instant::now();
        while self.store.discard_freed() && self.maintenance.rest(&mut slice, true) {}
    }

    /// Has it written into the records how their chunks were used, until there is something more urgent, or the file system takes
    /// long. A fifth of the time, and a few at a time: answers of SETs and DELETEs wait behind them.
    pub(super) fn write_uses(&self) {
        let (table, mut slice) = (self.index.table(), Instant::now());
        for number in 0..self.index.shard_count() {
            let mut has_more = true;
            while has_more {
                has_more = self.index.write_uses(number);
                table.changes.announce();
                let deadline = Instant::now() + LONGEST_WRITE;
                if !table.changes.progress.wait(table.changes.progress.ticket(), Some(deadline)) {
                    return;
                }
                if slice.elapsed() >= SLICE && !self.maintenance.rest(&mut slice, true) {
                    return;
                }
            }
        }
    }

    /// Takes out what has expired and gives its space back. With `pauses`, it stops when the maintenance thread is to end, and works a
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
                self.reclaim_all(expired.extents);
                let is_over = pauses && slice.elapsed() >= SLICE;
                if is_over && !self.maintenance.rest(&mut slice, false) {
                    return self.counters.expired.get() - before;
                }
            }
        }
        self.counters.expired.get() - before
    }
}
