//! The maintenance thread: it evicts ahead of need, removes what has expired, has uses written, discards, and looks whether the files
//! are where they belong.
//!
//! It works in slices and rests between them, so that operations of users go on beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cache;
use super::presence::LOOK_PAUSE;
use super::threads::CacheThread;
use crate::block::Extent;
use crate::config::Discard;
use crate::sync::atomic::Ordering;

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

/// By how much of itself the length to make room for falls with each chunk that is shorter.
const FORGETS: u32 = 64;

const SLICE: Duration = Duration::from_micros(200);

/// Work that is due again and again after a pause; never without one.
type Work<'cache> = (Option<Duration>, Box<dyn FnMut() + 'cache>);

fn keep(cache: &Cache, tell_lost: &dyn Fn(String)) {
    let sweep_pause =
        cache.config.ttl.map(|ttl| (ttl / SWEEPS_PER_TTL).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    let uses_pause = sweep_pause.map_or(LONGEST_BEHIND, |pause| pause.min(LONGEST_BEHIND));
    let discard_pause = (cache.config.discard == Discard::Free).then_some(DISCARD_PAUSE);
    let changes = &cache.index.table.changes;
    let mut uses_ticket = 0;
    let write_uses = move || {
        // One round at a time, however long the file system takes.
        if changes.progress.is_done(uses_ticket) {
            cache.write_uses();
            uses_ticket = changes.progress.ticket();
        }
    };
    let all: [Work<'_>; 4] = [
        (Some(LOOK_PAUSE), Box::new(|| cache.look_for_files(tell_lost))),
        (sweep_pause, Box::new(|| _ = cache.expire(true))),
        (Some(uses_pause), Box::new(write_uses)),
        (discard_pause, Box::new(|| cache.discard_freed())),
    ];
    let timed = all.into_iter().filter_map(|(pause, work)| Some((pause?, work)));
    let mut timers: Vec<_> =
        timed.map(|(pause, work)| (Instant::now() + pause, pause, work)).collect();
    loop {
        changes.announce();
        let latest = Instant::now() + LONGEST_PAUSE;
        let due = timers.iter().map(|(due, ..)| *due).fold(latest, Instant::min);
        if !cache.maintenance.wait(due) {
            return;
        }
        cache.evict_ahead(|_, _| ());
        for (due, pause, work) in &mut timers {
            if Instant::now() >= *due {
                work();
                *due = Instant::now() + *pause;
            }
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
        if self.maintenance.take().is_none() {
            return;
        }
        let low_watermark = self.config.tuning.low_watermark;
        while self.is_filled_above(low_watermark) && !self.maintenance.are_to_end() {
            let before = self.counters.evicted_bytes.get();
            let blocks = self.typical_blocks.load(Ordering::Relaxed);
            if !self.make_room(blocks) {
                break;
            }
            notify(blocks, self.counters.evicted_bytes.get() - before);
        }
        self.maintenance.note_done();
    }

    /// A chunk of `bytes` got an extent, or none; wakes the maintenance thread if space is short now.
    pub(super) fn note_placed(&self, bytes: u64) {
        let blocks = Extent::blocks_for(bytes);
        let before = self.typical_blocks.load(Ordering::Relaxed);
        self.typical_blocks.store(blocks.max(before - before / FORGETS), Ordering::Relaxed);
        let high_watermark = self.config.tuning.high_watermark;
        if !self.maintenance.is_under_way() && self.is_filled_above(high_watermark) {
            self.maintenance.order(());
        }
    }

    fn is_filled_above(&self, share: f64) -> bool {
        let fill = self.store.fill();
        let is_above = fill.allocated_bytes as f64 > fill.total_bytes as f64 * share;
        is_above && !fill.can_grow && self.store.keeps_freed_space()
    }

    /// Looks whether the files are where they belong, and which of their blocks are shared.
    fn look_for_files(&self, tell_lost: &dyn Fn(String)) {
        let (missed, has_others) = (self.missed_files(), self.path_count() > 1);
        // The others take its keys, and say so.
        let lost = self.presence.note(missed, self.config.path(), has_others);
        lost.into_iter().for_each(tell_lost);
        if self.store.is_look_due(false) || self.index.table.lacks_blocks() {
            self.look_at_blocks();
        }
    }

    /// Discards extents that were freed, until there is something more urgent.
    fn discard_freed(&self) {
        // It waits for records to be cleared.
        self.index.table.changes.announce();
        let mut slice = Instant::now();
        while self.store.discard_freed() && self.maintenance.rest(&mut slice, true) {}
    }

    /// Has it written into the records how their chunks were used, until there is something more urgent, or the file system takes
    /// long. A fifth of the time, and a few at a time: answers of SETs and DELETEs wait behind them.
    pub(super) fn write_uses(&self) {
        let (table, mut slice) = (&self.index.table, Instant::now());
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
        self.index.expire(|extents, bytes| {
            self.counters.expired.add(extents.len() as u64);
            self.counters.expired_bytes.add(bytes);
            self.reclaim_all(extents);
            !pauses || slice.elapsed() < SLICE || self.maintenance.rest(&mut slice, false)
        });
        self.counters.expired.get() - before
    }
}
