//! What submitting threads and reactors have in common.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::admission::WriteBudget;
use super::balance::{Load, Spread};
use super::doubts::Doubts;
use super::failed_syncs::SyncCounts;
use super::growth::Growth;
use super::health::Health;
use super::keeper::Keeper;
use super::latency::Latencies;
use super::operation::{ChunkIndex, Intake};
use super::presence::Presence;
use super::record_writer::Answers;
use crate::block::Extent;
use crate::completion::CompletionQueue;
use crate::config::Config;
use crate::engine::Waker;
use crate::key::Digest;
use crate::open_stores::OpenStore;
use crate::stats::Counters;
use crate::store::Store;
use crate::sync::Mutex;

/// The store, its counters, and a lane to each reactor.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) index: ChunkIndex,
    pub(crate) store: Box<dyn Store>,
    pub(crate) counters: Counters,
    pub(crate) completions: Arc<CompletionQueue>,
    pub(crate) health: Health,
    pub(super) doubts: Doubts,
    pub(crate) presence: Presence,
    /// Dropped after the files that it speaks of.
    pub(crate) open_store: OpenStore,
    pub(super) keeper: Keeper,
    pub(super) growth: Growth,
    pub(super) answers: Answers,
    pub(super) write_budget: Arc<WriteBudget>,
    /// All paths of the store; empty if it is the only one.
    pub(super) paths: OnceLock<Vec<Weak<Shared>>>,
    pub(super) lanes: Box<[Lane]>,
    /// Syncs that failed; see [`super::failed_syncs`].
    pub(super) failed_syncs: AtomicU64,
    pub(super) sync_errno: AtomicI32,
    /// Places of chunks that got a record and were not stored: until it is durable that the record is cleared, power loss
    /// could bring it back, and it would win over an older one of its key.
    pub(super) cleared: Mutex<Vec<Extent>>,
    /// When a chunk had to go last because the index was full.
    pub(super) index_full_at: Mutex<Option<Instant>>,
    /// When queued work is to be dropped; set by `stop`.
    pub(super) deadline: Mutex<Option<Instant>>,
    /// Reactors that take work.
    live: AtomicUsize,
    /// No reactor takes anything any more.
    stopped: AtomicBool,
    /// A reactor has failed, and all of them stop for it: nothing can be loaded any more.
    has_failed: AtomicBool,
}

/// The way to one reactor, and what the others need to know of it.
pub(super) struct Lane {
    pub(super) intake: Intake,
    pub(super) waker: Arc<Waker>,
    pub(super) latencies: Mutex<Latencies>,
    pub(super) load: Load,
    pub(super) syncs: SyncCounts,
    /// It waits for changes of records to be made.
    pub(super) awaits_records: AtomicBool,
    /// GETs that wait or are in flight here.
    loads: AtomicUsize,
    /// SETs wait here for the loads of others to end.
    sets_wait: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        index: ChunkIndex,
        store: Box<dyn Store>,
        completions: Arc<CompletionQueue>,
        write_budget: Arc<WriteBudget>,
        wakers: Vec<Arc<Waker>>,
        open_store: OpenStore,
    ) -> Self {
        let lane = |waker| Lane {
            intake: Intake::default(),
            waker,
            latencies: Mutex::new(Latencies::new()),
            load: Load::default(),
            syncs: SyncCounts::default(),
            awaits_records: AtomicBool::new(false),
            loads: AtomicUsize::new(0),
            sets_wait: AtomicBool::new(false),
        };
        Self {
            keeper: Keeper::new(config.low_watermark, config.high_watermark),
            growth: Growth::default(),
            answers: Answers::default(),
            write_budget,
            paths: OnceLock::new(),
            config,
            index,
            store,
            counters: Counters::default(),
            completions,
            health: Health::default(),
            doubts: Doubts::default(),
            presence: Presence::default(),
            open_store,
            live: AtomicUsize::new(wakers.len()),
            lanes: wakers.into_iter().map(lane).collect(),
            failed_syncs: AtomicU64::new(0),
            sync_errno: AtomicI32::new(0),
            cleared: Mutex::default(),
            index_full_at: Mutex::new(None),
            deadline: Mutex::new(None),
            stopped: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Which chunk it is and where it lies, for messages.
    pub(super) fn extent_text(&self, digest: Digest, extent: Extent) -> String {
        let (place, path) = (self.store.extent_text(extent, digest), self.config.path().display());
        format!("digest {digest}, {place} of {path}")
    }

    /// Hands a batch's operations to the reactors.
    pub(crate) fn push(&self, spread: Spread) {
        for (lane, part) in self.lanes.iter().zip(spread.parts) {
            if !part.operations.is_empty() {
                lane.load.add_queued(spread.class, part.bytes);
                lane.intake.push(spread.class, part.operations);
                lane.waker.wake();
            }
        }
        if self.stopped.load(Ordering::SeqCst) {
            self.reject_all();
        }
    }

    /// GETs wait for what is being written for these keys: whichever reactor has such a SET promotes it.
    pub(crate) fn promote(&self, awaited: &[Digest]) {
        for lane in self.lanes.iter().filter(|_| !awaited.is_empty()) {
            awaited.iter().for_each(|digest| lane.intake.push_awaited(*digest));
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

    /// A reactor has failed: what is stored must not be promised from here on.
    pub(super) fn note_failed(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }

    /// Whether a reactor has failed, so that nothing can be loaded any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
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
        for lane in &self.lanes {
            while let Some(operations) = lane.intake.pop() {
                self.counters.abandoned.add(operations.len() as u64);
            }
        }
        let (gets, sets) = self.index.abandon_waiting();
        self.counters.abandoned.add((gets.len() + sets.len()) as u64);
        drop((gets, sets));
        self.completions.announce();
    }

    /// Reactor `number` has this much to do now, this many loads, and SETs that wait for a grant or none.
    pub(super) fn note_work(
        &self,
        number: usize,
        in_hand_bytes: &[u64; 3],
        loads: usize,
        sets_wait: bool,
    ) {
        if self.lanes.len() == 1 {
            return;
        }
        let lane = &self.lanes[number];
        lane.load.set_in_hand(in_hand_bytes);
        // Before the loads of others are looked at: who ends the last one sees it, or this one sees none.
        lane.sets_wait.store(sets_wait, Ordering::SeqCst);
        if lane.loads.swap(loads, Ordering::SeqCst) > 0 && loads == 0 {
            let waiting = |lane: &&Lane| lane.sets_wait.load(Ordering::SeqCst);
            self.lanes.iter().filter(waiting).for_each(|lane| lane.waker.wake());
        }
    }

    /// Whether reactors other than `number` have loads.
    pub(super) fn loads_elsewhere(&self, number: usize) -> bool {
        let others = self.lanes.iter().enumerate().filter(|(other, _)| *other != number);
        others.into_iter().any(|(_, lane)| lane.loads.load(Ordering::SeqCst) > 0)
    }

    /// Adds the latencies of all reactors to `all`.
    pub(crate) fn add_latencies(&self, all: &mut Latencies) {
        self.lanes.iter().for_each(|lane| all.add(&lane.latencies.lock()));
    }
}
