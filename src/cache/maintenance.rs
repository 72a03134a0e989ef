//! The maintenance thread: it evicts ahead of need, removes what has expired, has uses written, discards, and looks whether the files
//! are where they belong.
//!
//! It works in slices and rests between them, so that operations of users go on beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cache;
use super::directory_watch::{FilesChange, LOOK_PAUSE};
use super::threads::CacheThread;
use crate::base::block::Extent;
use crate::base::sync::atomic::Ordering;
use crate::base::time::Patience;
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

/// By how much of itself the length to make room for falls with each chunk that is shorter.
const FORGETS: u32 = 64;

const SLICE: Duration = Duration::from_micros(200);

/// Pauses before expired chunks are looked for, and uses are written. Without `ttl` nothing is to be found.
fn pauses(ttl: Option<Duration>) -> [Duration; 2] {
    let sweep_pause = ttl.map_or(LONGEST_PAUSE, |ttl| ttl / SWEEPS_PER_TTL);
    let sweep_pause = sweep_pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    [sweep_pause, sweep_pause.min(LONGEST_BEHIND)]
}

/// Work that is due again and again after a pause.
struct Timer<'cache> {
    last: Instant,
    /// As it is now: `ttl` may be another one.
    pause: Box<dyn Fn() -> Duration + 'cache>,
    work: Box<dyn FnMut() + 'cache>,
}

impl<'cache> Timer<'cache> {
    fn new(pause: impl Fn() -> Duration + 'cache, work: impl FnMut() + 'cache) -> Self {
        Self { last: Instant::now(), pause: Box::new(pause), work: Box::new(work) }
    }

    fn due(&self) -> Instant {
        self.last + (self.pause)()
    }

    fn work_if_due(&mut self) {
        if Instant::now() >= self.due() {
            (self.work)();
            self.last = Instant::now();
        }
    }
}

fn keep(cache: &Cache, tell: &dyn Fn(FilesChange)) {
    let mut uses_ticket = 0;
    let write_uses = move || {
        // One round at a time, however long the file system takes.
        if cache.index.changes.is_done(uses_ticket) {
            cache.write_uses();
            uses_ticket = cache.index.changes.ticket();
        }
    };
    let mut is_unused = false;
    let look = move || {
        // First: the look may wait for a device that fails.
        cache.tell_counts(false);
        if !is_unused && let Some(note) = cache.unused() {
            is_unused = true;
            log::warn!("{}: {note}", cache.config.path().display());
        }
        cache.look_for_files(tell);
    };
    let pauses = || pauses(cache.index.ttl());
    let mut timers = vec![
        Timer::new(|| LOOK_PAUSE, look),
        Timer::new(|| pauses()[0], || _ = cache.expire(true)),
        Timer::new(|| pauses()[1], write_uses),
    ];
    if cache.config.discard == Discard::Free {
        timers.push(Timer::new(|| DISCARD_PAUSE, || cache.discard_freed()));
    }
    loop {
        cache.index.changes.announce();
        if !cache.maintenance.wait(timers.iter().map(Timer::due).min()) {
            return;
        }
        if cache.is_fitting() || cache.index.is_over_capacity() {
            cache.fit_limits();
        }
        cache.evict_ahead(|_, _| ());
        timers.iter_mut().for_each(Timer::work_if_due);
    }
}

impl Cache {
    /// Starts the maintenance thread, which calls `tell` with changes of the files.
    pub(crate) fn start_maintenance(
        self: &Arc<Self>,
        tell: impl Fn(FilesChange) + Send + 'static,
    ) -> std::io::Result<CacheThread> {
        let work = move |cache: &Self| keep(cache, &tell);
        let lost = "nothing expired or was evicted early";
        CacheThread::start(self, "kvring-maintain", work, |cache| cache.maintenance.end(), lost)
    }

    /// Logs how many failures were counted, where that is due, or none is noted any more.
    pub(crate) fn tell_counts(&self, is_last: bool) {
        let (store, index) = (self.store.log_limits(), self.index.log_limits());
        let all = self.log_limits.all().into_iter().chain(store).chain(index);
        all.for_each(|limit| limit.tell_count(self.config.path(), is_last));
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

    pub(super) fn is_filled_above(&self, share: f64) -> bool {
        let fill = self.store.fill();
        let is_above = fill.allocated_bytes as f64 > fill.total_bytes as f64 * share;
        is_above && !fill.can_grow && self.store.keeps_freed_space()
    }

    /// Looks whether the files are where they belong.
    pub(super) fn look_for_files(&self, tell: &dyn Fn(FilesChange)) {
        let (missed, has_others) = (self.missed_files(), self.path_count() > 1);
        self.directory_watch
            .note(missed, self.config.path(), has_others)
            .into_iter()
            .for_each(tell);
    }

    /// Discards extents that were freed, until there is something more urgent.
    pub(super) fn discard_freed(&self) {
        // It waits for records to be cleared.
        self.index.changes.announce();
        let mut slice = Instant::now();
        while self.store.discard_freed() && self.maintenance.rest(&mut slice, true) {}
    }

    /// Has it written into the records how their chunks were used, until there is something more urgent, or the file system takes
    /// long. A fifth of the time, and a few at a time: answers of SETs and DELETEs wait behind them.
    pub(super) fn write_uses(&self) {
        let (index, mut slice) = (&self.index, Instant::now());
        for number in 0..index.shard_count() {
            let mut has_more = true;
            while has_more {
                has_more = index.write_uses(number);
                index.changes.announce();
                let mut patience = Patience::new(LONGEST_WRITE);
                if !index.changes.wait(index.changes.ticket(), Some(&mut patience)) {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_lives_shortly_is_looked_for_often_within_bounds() {
        let pauses_s = |ttl_s: Option<u64>| {
            pauses(ttl_s.map(Duration::from_secs)).map(|pause| pause.as_secs_f64())
        };
        assert_eq!(pauses_s(None), [60.0, 5.0]);
        assert_eq!(pauses_s(Some(1)), [1.0, 1.0]);
        assert_eq!(pauses_s(Some(50)), [2.5, 2.5]);
        assert_eq!(pauses_s(Some(200)), [10.0, 5.0]);
        assert_eq!(pauses_s(Some(86_400)), [60.0, 5.0]);
    }

    #[test]
    fn work_is_done_when_it_is_due_and_then_after_its_pause() {
        let (count, pause) = (Cell::new(0), Duration::from_secs(3600));
        let mut timer = Timer::new(|| pause, || count.set(count.get() + 1));
        timer.work_if_due();
        assert_eq!(count.get(), 0);
        timer.last -= pause;
        timer.work_if_due();
        timer.work_if_due();
        assert_eq!(count.get(), 1);
        assert!(timer.due() > Instant::now() + pause / 2);
    }
}
