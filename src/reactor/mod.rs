//! The thread that owns an engine and walks operations through their steps.
//!
//! Life of an operation: a submitting thread pushes it (a batch at a time) on the intake and wakes the reactor. The
//! reactor queues it in the scheduler and, when granted, starts it piece by piece: a SET is placed at its first piece, a
//! GET comes with its place. Pieces come back in any order; short ones go on where they stopped, interrupted ones are
//! tried again with a bound, the first failed one fails its operation, whose other pieces are waited for. With the last
//! piece a SET is published and a GET verified; then its key is answered. Pieces are summed up after the device has its
//! next transfers. All batches that became complete in one turn are announced together.
//!
//! The caller's memory is used from the first piece's start to the last one's end and never after the answer.

mod commit;
mod operation;
mod piece;
mod steps;
mod work;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub(crate) use operation::{ChunkIndex, GetRequest, Intake, Operation, SetRequest};

use crate::completion::CompletionQueue;
use crate::config::Config;
use crate::engine::{Engine, Reaped, Waker};
use crate::error::{EngineError, OpenError};
use crate::index::Suspect;
use crate::schedule::{Class, Limits, Scheduler};
use crate::stats::Counters;
use crate::store::Store;
use work::Work;

/// How long transfers are waited for after close() has cancelled them; then their memory is leaked.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes in the device at a time: what the fastest drives need, and a bound on bounce memory.
const MAX_IN_FLIGHT_BYTES: u64 = 32 << 20;

/// Bytes that are summed up between two looks at the device: about a tenth of a millisecond, in which a device has enough
/// with what it was given before.
const SETTLE_BYTES: u64 = 1 << 20;

/// Most bytes that may wait to be summed up, as loads hold bounce memory until then.
const MAX_UNSETTLED_BYTES: u64 = MAX_IN_FLIGHT_BYTES;

/// What submitting threads and the reactor have in common.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) index: ChunkIndex,
    pub(crate) store: Box<dyn Store>,
    pub(crate) counters: Counters,
    pub(crate) completions: Arc<CompletionQueue>,
    intake: Intake,
    waker: Arc<Waker>,
    /// When queued work is to be dropped; set by `stop`.
    deadline: Mutex<Option<Instant>>,
    /// The reactor takes nothing any more.
    stopped: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        index: ChunkIndex,
        store: Box<dyn Store>,
        completions: Arc<CompletionQueue>,
        waker: Arc<Waker>,
    ) -> Self {
        Self {
            config,
            index,
            store,
            counters: Counters::default(),
            completions,
            intake: Intake::default(),
            waker,
            deadline: Mutex::new(None),
            stopped: AtomicBool::new(false),
        }
    }

    /// Hands a batch's operations to the reactor.
    pub(crate) fn push(&self, class: Class, operations: Vec<Operation>) {
        if !operations.is_empty() {
            self.intake.push(class, operations);
            self.waker.wake();
        }
        if self.stopped.load(Ordering::SeqCst) {
            self.reject_all();
        }
    }

    /// Asks the reactor to finish: what is queued until `drain_timeout` has passed, what is in the kernel in any case.
    pub(crate) fn stop(&self, drain_timeout: Duration) {
        *self.deadline.lock() = Some(Instant::now() + drain_timeout);
        self.waker.wake();
    }

    /// Answers everything that no reactor will take any more: dropping an operation answers "failed".
    fn reject_all(&self) {
        while let Some(operations) = self.intake.pop() {
            self.counters.abandoned.add(operations.len() as u64);
        }
        let (gets, sets) = self.index.abandon_waiting();
        self.counters.abandoned.add((gets.len() + sets.len()) as u64);
        drop((gets, sets));
        self.completions.announce();
    }
}

/// How a reactor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was asked to, and the kernel holds nothing any more.
    Orderly,
    /// It failed; the kernel holds nothing any more.
    Failed,
    /// The kernel still holds memory and files, which are leaked.
    Leaked,
}

/// Starts a reactor, whose engine is made on its own thread. Returns the thread and the description of the engine once
/// that is running.
pub(crate) fn start<E, M>(
    shared: Arc<Shared>,
    suspects: Vec<Suspect>,
    make_engine: M,
) -> Result<(JoinHandle<Ending>, String), OpenError>
where
    E: Engine,
    M: FnOnce(usize, Arc<Waker>) -> Result<E, EngineError> + Send + 'static,
{
    let (sender, receiver) = mpsc::sync_channel(1);
    let path = shared.config.path.clone();
    let thread = Builder::new().name("kvring-reactor".into()).spawn(move || {
        match make_engine(shared.config.queue_depth, Arc::clone(&shared.waker)) {
            Ok(engine) => {
                let _ = sender.send(Ok(engine.description()));
                Reactor::new(shared, suspects, engine).live()
            }
            Err(error) => {
                let _ = sender.send(Err(error));
                Ending::Failed
            }
        }
    });
    let thread =
        thread.map_err(|source| OpenError::Io { action: "start a thread for", path, source })?;
    match receiver.recv() {
        Ok(Ok(description)) => Ok((thread, description)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(EngineError::Failed {
            operation: "starting",
            source: std::io::Error::other("the reactor's thread ended at once"),
        }
        .into()),
    }
}

struct Reactor<E: Engine> {
    shared: Arc<Shared>,
    engine: E,
    work: Work,
    reaped: Vec<Reaped>,
}

impl<E: Engine> Reactor<E> {
    fn new(shared: Arc<Shared>, suspects: Vec<Suspect>, engine: E) -> Self {
        let limits = Limits {
            queue_depth: shared.config.queue_depth,
            max_io_bytes: shared.config.max_io_bytes,
            max_in_flight_bytes: MAX_IN_FLIGHT_BYTES,
        };
        let work = Work::new(Scheduler::new(limits), shared.config.queue_depth, suspects);
        Self { shared, engine, work, reaped: Vec::new() }
    }

    /// Runs until it is stopped, or dies; answers everything in either case.
    fn live(mut self) -> Ending {
        let ending = match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Ok(())) => Ending::Orderly,
            Ok(Err(error)) => {
                log::error!("the reactor stops: {error}; every operation fails from here on");
                Ending::Failed
            }
            Err(_) => {
                log::error!("the reactor stops after a panic; every operation fails from here on");
                Ending::Failed
            }
        };
        let quiet = catch_unwind(AssertUnwindSafe(|| self.quiesce())).unwrap_or(false);
        // Not before that: from here on submitting threads clear the index of what waits in it.
        self.shared.stopped.store(true, Ordering::SeqCst);
        if !quiet {
            log::error!(
                "the kernel still holds memory of {} transfers: it is leaked",
                self.work.in_flight()
            );
            self.work.abandon();
        }
        let shared = Arc::clone(&self.shared);
        if quiet {
            drop(self);
        } else {
            std::mem::forget(self);
        }
        shared.reject_all();
        if quiet { ending } else { Ending::Leaked }
    }

    fn run(&mut self) -> Result<(), EngineError> {
        loop {
            while let Some(operations) = self.shared.intake.pop() {
                operations.into_iter().for_each(|operation| self.work.accept(operation));
            }
            self.work.start_due(Instant::now());
            let deadline = *self.shared.deadline.lock();
            if deadline.is_none() {
                self.work.verify_if_idle(&self.shared);
            }
            self.work.start_all(&self.shared, &mut self.engine)?;
            self.work.start_group(&self.shared, &mut self.engine)?;
            self.shared.completions.announce();

            let idle = self.work.is_idle() && self.shared.intake.is_empty();
            if deadline.is_some_and(|deadline| idle || Instant::now() >= deadline) {
                return Ok(());
            }
            let until = [deadline, self.work.next_due()].into_iter().flatten().min();
            let timeout = match self.work.is_unsettled() {
                true => Some(Duration::ZERO),
                false => until.map(|until| until.saturating_duration_since(Instant::now())),
            };
            self.reap_or_sleep(timeout, deadline.is_some())?;
            self.work.finish_reaped(&self.shared, &mut self.engine, &mut self.reaped)?;
            self.work.settle(SETTLE_BYTES, &self.shared);
        }
    }

    fn reap_or_sleep(
        &mut self,
        timeout: Option<Duration>,
        stopping: bool,
    ) -> Result<(), EngineError> {
        self.shared.waker.prepare_sleep();
        let stop_came = !stopping && self.shared.deadline.lock().is_some();
        let work_came = stop_came || !self.shared.intake.is_empty();
        let timeout = if work_came { Some(Duration::ZERO) } else { timeout };
        let outcome = self.engine.reap(timeout, &mut self.reaped);
        self.shared.waker.awake();
        self.shared.counters.reactor_turns.add(1);
        outcome
    }

    /// Drops what is queued and waits for what is in the kernel. Says whether the kernel is done.
    fn quiesce(&mut self) -> bool {
        self.work.drop_queued(&self.shared);
        if self.work.in_flight() > 0 {
            self.engine.cancel_all();
        }
        let deadline = Instant::now() + CANCEL_TIMEOUT;
        while self.work.in_flight() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.engine.reap(Some(left), &mut self.reaped).is_err() {
                return false;
            }
            self.work.finish_stopped::<E>(&self.shared, &mut self.reaped);
            // What waited behind a SET that ended now will not start any more either.
            self.work.drop_queued(&self.shared);
        }
        self.shared.completions.announce();
        true
    }
}
