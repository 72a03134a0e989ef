//! What submitting threads and reactors have in common.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::health::Health;
use super::latency::Latencies;
use super::limits::{self, CHECKSUM_TURN_BYTES};
use super::operation::{Operation, Pending};
use super::responsiveness::Responsiveness;
use crate::base::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use crate::base::sync::{Condvar, Mutex};
use crate::batch::backlog::QueueShare;
use crate::batch::completion_queue::CompletionQueues;
use crate::batch::completion_queue::{FailureCode, FailureReason};
use crate::batch::responder::Responder;
use crate::cache::Cache;
use crate::engine::Waker;
use crate::schedule::{Elsewhere, InFlight, Limits, Scheduler};

/// The cache of one path, and a lane to each of its reactors.
pub(crate) struct ReactorGroup {
    pub(crate) cache: Arc<Cache>,
    pub(crate) completions: Arc<CompletionQueues>,
    pub(crate) health: Health,
    pub(crate) responsiveness: Responsiveness,
    pub(super) answers: Mutex<WaitingAnswers>,
    pub(super) lanes: Box<[Lane]>,
    pub(super) pending: Pending,
    /// What was begun last came back as fast as it was asked for: more processors move more.
    is_processor_bound: AtomicBool,
    /// Syncs that failed; see [`super::failed_syncs`].
    pub(super) failed_syncs: AtomicU64,
    pub(super) sync_errno: AtomicI32,
    pub(super) syncs: Mutex<Syncs>,
    /// When queued work is to be dropped; set by `stop`.
    pub(super) deadline: Mutex<Option<Instant>>,
    live: AtomicUsize,
    /// Reactors that may still begin a SET.
    beginning: Mutex<usize>,
    /// One of them begins none any more.
    settled: Condvar,
    /// No reactor takes anything any more.
    stopped: AtomicBool,
    /// A reactor has failed, and all of them stop for it: nothing can be loaded any more, and what is stored must not be promised.
    pub(super) has_failed: AtomicBool,
}

impl ReactorGroup {
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
            pending: Pending::default(),
            is_processor_bound: AtomicBool::new(false),
            lanes: wakers.into_iter().map(Lane::new).collect(),
            failed_syncs: AtomicU64::new(0),
            sync_errno: AtomicI32::new(0),
            syncs: Mutex::default(),
            deadline: Mutex::new(None),
            stopped: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// The reactors that run, or have run.
    pub(super) fn running(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| lane.engine.get().is_some())
    }

    /// How many they are.
    pub(crate) fn running_count(&self) -> u64 {
        self.running().count() as u64
    }

    /// Their engines.
    pub(crate) fn engines(&self) -> Vec<&str> {
        self.running().filter_map(|lane| lane.engine.get()).map(String::as_str).collect()
    }

    /// What may be in the device of this path at a time.
    pub(crate) fn limits(&self) -> Limits {
        let cache = &self.cache;
        let drives_depth = cache.store.geometry().queue_depth;
        limits::of_device(&cache.config, drives_depth, cache.path_count())
    }

    /// Queues operations of one kind.
    pub(crate) fn push(&self, operations: Vec<Operation>) {
        if operations.is_empty() {
            return;
        }
        let bytes: u64 = operations.iter().map(Operation::cost_bytes).sum();
        self.pending.push(operations);
        // One may be enough, and wakes others if it is not. That would take several turns of the processor where others want it too.
        let turns = match self.is_processor_bound.load(Ordering::Relaxed) {
            true => bytes.div_ceil(CHECKSUM_TURN_BYTES) as usize,
            false => 1,
        };
        self.wake(turns);
        if self.stopped.load(Ordering::SeqCst) {
            self.reject_all();
        }
    }

    /// Wakes so many reactors that sleep, the first ones: those have work in the device rather than the others.
    fn wake(&self, count: usize) {
        let sleeping = self.lanes.iter().filter(|lane| lane.waker.sleeps());
        sleeping.take(count).for_each(|lane| lane.waker.wake());
    }

    /// A reactor tells, after it has given the kernel something, whether more processors would move more. If so, and there is
    /// something to take up, another one is woken.
    pub(super) fn note_processor_bound(&self, is_bound: bool) {
        if self.is_processor_bound.load(Ordering::Relaxed) != is_bound {
            self.is_processor_bound.store(is_bound, Ordering::Relaxed);
        }
        if is_bound && !self.pending.is_empty() {
            self.wake(1);
        }
    }

    /// Keys were deleted: a reactor gives their extents back when it is their turn.
    pub(crate) fn reclaim_deleted(&self) {
        if !self.cache.deleted.is_empty() {
            self.wake(1);
        }
        if self.stopped.load(Ordering::SeqCst) {
            self.reject_all();
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

    pub(super) fn note_starting(&self) {
        self.live.fetch_add(1, Ordering::SeqCst);
        *self.beginning.lock() += 1;
    }

    /// A reactor has dropped what is queued, and begins nothing any more.
    pub(super) fn note_settled(&self) {
        *self.beginning.lock() -= 1;
        self.settled.notify_all();
    }

    /// Waits until no reactor begins a SET any more, after [`ReactorGroup::stop`].
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
        while !self.pending.is_empty() {
            self.cache.counters.abandoned.add(self.pending.drain_some().len() as u64);
        }
        while let Some((extent, _)) = self.cache.deleted.pop() {
            self.cache.reclaim(extent);
        }
        self.cache.counters.abandoned.add(self.cache.index.abandon_waiting().len() as u64);
        self.completions.announce();
    }

    /// Reactor `number` has this many loads now, and SETs that wait for a grant or none.
    pub(super) fn note_work(&self, number: usize, loads: usize, scheduler: &Scheduler) {
        if self.lanes.len() == 1 {
            return;
        }
        let lane = &self.lanes[number];
        lane.tell_in_flight(scheduler);
        // Before the loads of others are looked at: either the reactor that ends the last load sees this, or this one sees no load.
        lane.sets_wait.store(scheduler.has_waiting_sets(), Ordering::SeqCst);
        if lane.loads.swap(loads, Ordering::SeqCst) > 0 && loads == 0 {
            self.wake_waiting_sets();
        }
    }

    /// Reactor `number` is about to take up loads: it has some before they are not pending any more, so that nobody sees none.
    pub(super) fn note_taking_up(&self, number: usize) {
        self.lanes[number].loads.fetch_max(1, Ordering::SeqCst);
    }

    /// The last load of a reactor, or of those that none has taken up, has ended.
    pub(super) fn wake_waiting_sets(&self) {
        let waiting = |lane: &&Lane| lane.sets_wait.load(Ordering::SeqCst);
        self.lanes.iter().filter(waiting).for_each(|lane| lane.waker.wake());
    }

    /// What other reactors than `number` do with the device, and what none has taken up.
    pub(super) fn elsewhere(&self, number: usize) -> Elsewhere {
        let are_loads_present = self.pending.has_loads();
        let mut elsewhere = Elsewhere { are_loads_present, ..Elsewhere::default() };
        let others = self.lanes.iter().enumerate().filter(|(other, _)| *other != number);
        others.for_each(|(_, lane)| lane.add_to(&mut elsewhere));
        elsewhere
    }

    pub(crate) fn add_latencies(&self, all: &mut Latencies) {
        self.lanes.iter().for_each(|lane| all.add(&lane.latencies.lock()));
    }
}

/// What submitting threads and other reactors need to know of one reactor.
pub(super) struct Lane {
    pub(super) waker: Arc<Waker>,
    pub(super) latencies: Mutex<Latencies>,
    /// It waits for syncs of others.
    pub(super) awaits_syncs: AtomicBool,
    /// It waits for changes of records to be made.
    pub(super) awaits_records: AtomicBool,
    /// GETs that wait or are in flight here.
    pub(super) loads: AtomicUsize,
    /// SETs wait here for the loads of others to end.
    pub(super) sets_wait: AtomicBool,
    /// What it has in the device, of GETs and of SETs: may be a little old.
    in_flight: [(AtomicUsize, AtomicU64); 2],
    /// Describes its engine, once it runs.
    pub(super) engine: OnceLock<String>,
}

/// Syncs of the store, by number: each of a thread that is no reactor, and those that a reactor begins at once as one.
#[derive(Default)]
pub(super) struct Syncs {
    pub(super) begun: u64,
    pub(super) under_way: BTreeSet<u64>,
}

impl Lane {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self {
            waker,
            latencies: Mutex::new(Latencies::new()),
            awaits_syncs: AtomicBool::new(false),
            awaits_records: AtomicBool::new(false),
            loads: AtomicUsize::new(0),
            sets_wait: AtomicBool::new(false),
            in_flight: Default::default(),
            engine: OnceLock::new(),
        }
    }

    /// Tells others what it has in the device.
    pub(super) fn tell_in_flight(&self, scheduler: &Scheduler) {
        for ((pieces, bytes), now) in self.in_flight.iter().zip(scheduler.in_flight()) {
            pieces.store(now.pieces, Ordering::Relaxed);
            bytes.store(now.bytes, Ordering::Relaxed);
        }
    }

    /// Adds what it has told to what others have.
    pub(super) fn add_to(&self, elsewhere: &mut Elsewhere) {
        let told = self.in_flight.each_ref().map(|(pieces, bytes)| InFlight {
            pieces: pieces.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
        });
        elsewhere.loads = elsewhere.loads.plus(told[0]);
        elsewhere.sets = elsewhere.sets.plus(told[1]);
        elsewhere.are_loads_present |= self.loads.load(Ordering::SeqCst) > 0;
    }
}

/// Answers that wait for changes of records.
#[derive(Default)]
pub(super) struct WaitingAnswers {
    /// In the order of their tickets.
    pub(super) answers: VecDeque<(u64, Answer)>,
    pub(super) have_ended: bool,
}

/// What is answered when all changes are made that were queued before it.
pub(crate) enum Answer {
    /// Of a SET, whose chunk got a record with this generation, or none.
    Stored {
        item: Responder,
        share: Arc<QueueShare>,
        generation: Option<u64>,
    },
    Removed(Vec<Responder>),
}

impl Answer {
    pub(super) fn give(self, cache: &Cache) {
        match self {
            Self::Removed(items) => items.into_iter().for_each(Responder::succeed),
            Self::Stored { generation: Some(generation), .. }
                if cache.index.changes.has_lost(generation) =>
            {
                let path = cache.config.path().display();
                let message =
                    format!("cannot write the record of a chunk into the index of {path}");
                self.fail(cache, &FailureReason::new(FailureCode::Io, message));
            }
            Self::Stored { item, share, .. } => {
                // Before the answer: the caller may submit more then.
                drop(share);
                item.succeed();
            }
        }
    }

    pub(super) fn fail(self, cache: &Cache, reason: &FailureReason) {
        match self {
            Self::Removed(items) => items.into_iter().for_each(|item| item.fail(|| reason.clone())),
            Self::Stored { item, share, .. } => {
                drop(share);
                cache.counters.fail_sets(reason.code, 1);
                item.fail(|| reason.clone());
            }
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::Removed(items) => items.len(),
            Self::Stored { .. } => 1,
        }
    }
}
