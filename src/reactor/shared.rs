//! What submitting threads and reactors have in common.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bytes_bound::{BytesBound, OfLoadsAndStores, Saturated};
use super::health::Health;
use super::lanes::{Lane, Offered, Spread, ThreadSyncs};
use super::latency::Latencies;
use super::limits;
use super::record_writer::WaitingAnswers;
use super::responsiveness::Responsiveness;
use super::scaling::Sample;
use crate::cache::Cache;
use crate::completion_queue::CompletionQueues;
use crate::engine::Waker;
use crate::key::Digest;
use crate::schedule::Class;
use crate::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, SegQueue};

/// The cache of one path, and a lane to each of its reactors.
pub(crate) struct Shared {
    pub(crate) cache: Arc<Cache>,
    pub(crate) completions: Arc<CompletionQueues>,
    pub(crate) health: Health,
    pub(crate) responsiveness: Responsiveness,
    pub(super) answers: Mutex<WaitingAnswers>,
    pub(super) lanes: Box<[Lane]>,
    /// Syncs that failed; see [`super::failed_syncs`].
    pub(super) failed_syncs: AtomicU64,
    pub(super) sync_errno: AtomicI32,
    pub(super) thread_syncs: Mutex<ThreadSyncs>,
    /// When queued work is to be dropped; set by `stop`.
    pub(super) deadline: Mutex<Option<Instant>>,
    live: AtomicUsize,
    /// Reactors that may still begin a SET.
    beginning: Mutex<usize>,
    /// One of them begins none any more.
    settled: Condvar,
    /// The first so many reactors get work.
    active: AtomicUsize,
    /// Most bytes of loads, and as many of stores, in the device; 0 as long as they follow from its depth alone.
    bound_bytes: AtomicU64,
    /// Pieces to be summed up by whichever reactor is free.
    pub(super) offered: SegQueue<Offered>,
    /// A reactor that was needed could not be started.
    pub(super) is_start_refused: AtomicBool,
    /// No reactor takes anything any more.
    stopped: AtomicBool,
    /// A reactor has failed, and all of them stop for it: nothing can be loaded any more, and what is stored must not be promised.
    pub(super) has_failed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        cache: Arc<Cache>,
        completions: Arc<CompletionQueues>,
        wakers: Vec<Arc<Waker>>,
    ) -> Self {
        Self {
            cache,
            completions,
            health: Health::default(),
            responsiveness: Responsiveness::new(),
            answers: Mutex::default(),
            live: AtomicUsize::new(0),
            beginning: Mutex::new(0),
            settled: Condvar::new(),
            active: AtomicUsize::new(1),
            bound_bytes: AtomicU64::new(0),
            offered: SegQueue::new(),
            is_start_refused: AtomicBool::new(false),
            lanes: wakers.into_iter().map(Lane::new).collect(),
            failed_syncs: AtomicU64::new(0),
            sync_errno: AtomicI32::new(0),
            thread_syncs: Mutex::default(),
            deadline: Mutex::new(None),
            stopped: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn spread(&self, class: Class, expected: usize) -> Spread {
        Spread::new(&self.lanes[..self.active()], class, expected)
    }

    /// How many reactors get work.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }

    /// From here on the first `count` reactors get work, all of which run. Others end what they have.
    pub(super) fn set_active(&self, count: usize) {
        self.active.store(count, Ordering::SeqCst);
    }

    /// The reactors that run, or have run.
    pub(super) fn running(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| lane.engine.get().is_some())
    }

    /// The engines of those.
    pub(crate) fn engines(&self) -> Vec<&str> {
        self.running().filter_map(|lane| lane.engine.get()).map(String::as_str).collect()
    }

    /// What all reactors have done, as far as they have told.
    pub(super) fn sample(&self, at: Instant) -> Sample {
        let sum = |of: fn(&Lane) -> &AtomicU64| {
            self.lanes.iter().map(|lane| of(lane).load(Ordering::Relaxed)).sum()
        };
        Sample {
            at,
            processor: Duration::from_nanos(sum(|lane| &lane.processor_ns)),
            moved_bytes: [sum(|lane| &lane.moved_bytes[0]), sum(|lane| &lane.moved_bytes[1])],
            is_pending: self.lanes.iter().any(Lane::is_pending),
        }
    }

    /// Most transfers of loads, and as many of stores, in the device of this path, and most bytes of either.
    pub(crate) fn device_limits(&self) -> (usize, u64) {
        let (queue_depth, derived_bytes) = self.derived_limits();
        match self.bound_bytes.load(Ordering::Relaxed) {
            0 => (queue_depth, derived_bytes),
            bound_bytes => (queue_depth, bound_bytes),
        }
    }

    /// The same as the depth of the drives lets expect them.
    fn derived_limits(&self) -> (usize, u64) {
        let cache = &self.cache;
        let drives_depth = cache.store.geometry().queue_depth;
        limits::of_device(&cache.config, drives_depth, cache.path_count())
    }

    /// What decides the bytes in the device, where trials do.
    pub(super) fn bytes_bound(&self) -> Option<BytesBound> {
        limits::bytes_bound(&self.cache.config, self.derived_limits())
    }

    /// Most bytes of loads, and as many of stores, from here on.
    pub(super) fn set_bound(&self, bytes: u64) {
        self.bound_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What the bound held back in all reactors, as far as they have told.
    pub(super) fn saturated(&self) -> OfLoadsAndStores<Saturated> {
        let sum = |place: usize| {
            let told = self.lanes.iter().map(|lane| lane.saturated(place));
            told.fold(Saturated::default(), Saturated::plus)
        };
        [sum(0), sum(1)]
    }

    pub(crate) fn push(&self, spread: Spread) {
        for (lane, part) in self.lanes.iter().zip(spread.parts) {
            if !part.operations.is_empty() {
                lane.load.add(spread.class, part.bytes);
                let intake = &lane.intake[usize::from(spread.class != Class::Get)];
                part.into_turns().for_each(|operations| intake.push(operations));
                lane.waker.wake();
            }
        }
        if self.stopped.load(Ordering::SeqCst) {
            self.reject_all();
        }
    }

    /// Keys were deleted: the reactor that gives extents back does so when it is their turn.
    pub(crate) fn reclaim_deleted(&self) {
        if !self.cache.deleted.is_empty() {
            self.lanes.iter().take(1).for_each(|lane| lane.waker.wake());
        }
        if self.stopped.load(Ordering::SeqCst) {
            self.reject_all();
        }
    }

    /// Whether it is reactor `number` that gives the extents of deleted chunks back, and there are some.
    pub(super) fn reclaims_deleted(&self, number: usize) -> bool {
        number == 0 && !self.cache.deleted.is_empty()
    }

    /// Whether anything waits for reactor `number` to be taken up, or to be done by any.
    pub(super) fn has_work(&self, number: usize) -> bool {
        let lane = &self.lanes[number];
        lane.intake.iter().any(|intake| !intake.is_empty())
            || !lane.awaited.is_empty()
            || !lane.returned.is_empty()
            || !self.offered.is_empty()
            || self.reclaims_deleted(number)
    }

    /// GETs wait for what is being written for these keys: whichever reactor has such a SET promotes it.
    pub(crate) fn promote(&self, awaited: &[Digest]) {
        // Only one that runs has a SET.
        for lane in self.running().filter(|_| !awaited.is_empty()) {
            awaited.iter().for_each(|digest| lane.awaited.push(*digest));
            lane.waker.wake();
        }
    }

    /// Asks the reactors to finish: what is queued until `drain_timeout` has passed, what is in the kernel in any case.
    pub(crate) fn stop(&self, drain_timeout: Duration) {
        let deadline = Instant::now() + drain_timeout;
        let mut current = self.deadline.lock();
        *current = Some(current.map_or(deadline, |earlier| earlier.min(deadline)));
        drop(current);
        self.lanes.iter().for_each(|lane| lane.waker.wake());
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Reactor `number` could not be started; those before it go on without it.
    pub(super) fn note_refused(&self, number: usize, error: &dyn std::fmt::Display) {
        let path = self.cache.config.path().display();
        log::warn!("{path}: {number} of its reactors go on without a further one: {error}");
        self.is_start_refused.store(true, Ordering::SeqCst);
    }

    pub(super) fn note_starting(&self) {
        self.live.fetch_add(1, Ordering::SeqCst);
        *self.beginning.lock() += 1;
    }

    /// A reactor has dropped what is queued, and begins nothing any more.
    pub(super) fn note_settled(&self) {
        *self.beginning.lock() -= 1;
        self.settled.notify_all();
    }

    /// Waits until no reactor begins a SET any more, after [`Shared::stop`].
    pub(crate) fn wait_until_settled(&self) {
        let mut beginning = self.beginning.lock();
        while *beginning > 0 {
            beginning = self.settled.wait(beginning);
        }
    }

    /// A reactor takes nothing any more. With the last one everything that still comes is answered here.
    pub(super) fn note_stopped(&self) {
        if self.live.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.stopped.store(true, Ordering::SeqCst);
            self.reject_all();
        }
    }

    /// Answers everything that no reactor will take any more: dropping an operation answers "failed".
    fn reject_all(&self) {
        for intake in self.lanes.iter().flat_map(|lane| &lane.intake) {
            while let Some(operations) = intake.pop() {
                self.cache.counters.abandoned.add(operations.len() as u64);
            }
        }
        while let Some((extent, _)) = self.cache.deleted.pop() {
            self.cache.reclaim(extent);
        }
        let (gets, sets) = self.cache.index.abandon_waiting();
        self.cache.counters.abandoned.add((gets.len() + sets.len()) as u64);
        drop((gets, sets));
        self.completions.announce();
    }

    /// Reactor `number` has this many loads now, and SETs that wait for a grant or none.
    pub(super) fn note_work(&self, number: usize, loads: usize, sets_wait: bool) {
        if self.lanes.len() == 1 {
            return;
        }
        let lane = &self.lanes[number];
        // Before the loads of others are looked at: either the reactor that ends the last load sees this, or this one sees no load.
        lane.sets_wait.store(sets_wait, Ordering::SeqCst);
        if lane.loads.swap(loads, Ordering::SeqCst) > 0 && loads == 0 {
            let waiting = |lane: &&Lane| lane.sets_wait.load(Ordering::SeqCst);
            self.lanes.iter().filter(waiting).for_each(|lane| lane.waker.wake());
        }
    }

    pub(super) fn loads_elsewhere(&self, number: usize) -> bool {
        let others = self.lanes.iter().enumerate().filter(|(other, _)| *other != number);
        others.into_iter().any(|(_, lane)| lane.loads.load(Ordering::SeqCst) > 0)
    }

    pub(crate) fn add_latencies(&self, all: &mut Latencies) {
        self.lanes.iter().for_each(|lane| all.add(&lane.latencies.lock()));
    }
}
