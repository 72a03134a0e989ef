//! The threads of a path's reactors: those that are there from the start, and those that come when they are needed.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::operations::Operations;
use super::scaling::Scaling;
use super::{Shared, limits};
use crate::engine::{Engine, EngineError, Waker};
use crate::error::OpenError;
use crate::index::ChunkVersion;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::sync::mpsc::{self, Receiver};
use crate::sync::thread::{Builder, JoinHandle};
use crate::thread;

/// How often a reactor tells what it has done.
const TELLING: Duration = Duration::from_millis(2);

/// Makes the engine of a reactor, with a queue depth and the waker that ends its waits.
pub(crate) type MakeEngine =
    Arc<Mutex<Box<dyn FnMut(usize, Arc<Waker>) -> Result<Box<dyn Engine>, EngineError> + Send>>>;

/// How a reactor ended, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReactorEnd {
    /// It was asked to, and the kernel holds nothing any more.
    Orderly,
    /// It failed; the kernel holds nothing any more.
    Failed,
    /// The kernel still holds memory and files, which are leaked.
    Leaked,
}

type ReactorThread = (JoinHandle<()>, Receiver<ReactorEnd>);

#[derive(Default)]
pub(crate) struct Reactors(Vec<ReactorThread>);

impl Reactors {
    /// Starts the reactors that are there from the start, each of which makes its engine on its own thread. If one fails, none
    /// runs.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        mut unverified: Vec<ChunkVersion>,
        make_engine: &MakeEngine,
    ) -> Result<Self, OpenError> {
        let (least, most) = shared.cache.config.reactors();
        let mut reactors = Self::default();
        for number in 0..least {
            // They are read one at a time, so one reactor is enough.
            let unverified = mem::take(&mut unverified);
            let (sender, receiver) = mpsc::sync_channel(1);
            let started = move |outcome| drop(sender.send(outcome));
            let further = (number == 0 && most > least).then(|| Further {
                scaling: Scaling::new(most, shared.cache.config.tuning.busy_share),
                make_engine: Arc::clone(make_engine),
                reactors: Self::default(),
            });
            let outcome =
                start(number, shared, unverified, Arc::clone(make_engine), further, started)
                    .and_then(|thread| {
                        reactors.0.push(thread);
                        let at_once = |_| EngineError::Failed {
                            operation: "starting",
                            source: std::io::Error::other("the reactor's thread ended at once"),
                        };
                        Ok(receiver.recv().map_err(at_once)??)
                    });
            if let Err(error) = outcome {
                shared.stop(Duration::ZERO);
                reactors.join();
                return Err(error);
            }
        }
        shared.set_active(least);
        Ok(reactors)
    }

    /// Waits for the reactors to end, without a limit, as they may use the memory of callers. Returns how the worst one ended. The
    /// thread of one that leaks is left behind: it does not exit before the kernel has given back what its ring has.
    pub(crate) fn join(self) -> ReactorEnd {
        let join = |(thread, ending): ReactorThread| {
            let ending = ending.recv().unwrap_or(ReactorEnd::Leaked);
            match ending {
                ReactorEnd::Leaked => ReactorEnd::Leaked,
                ending => thread.join().map_or(ReactorEnd::Leaked, |()| ending),
            }
        };
        self.0.into_iter().map(join).max().unwrap_or(ReactorEnd::Orderly)
    }
}

/// Starts reactor `number`; `started` gets to know, on its thread, whether it has an engine.
fn start(
    number: usize,
    shared: &Arc<Shared>,
    unverified: Vec<ChunkVersion>,
    make_engine: MakeEngine,
    further: Option<Further>,
    started: impl FnOnce(Result<(), EngineError>) + Send + 'static,
) -> Result<ReactorThread, OpenError> {
    let cache = &shared.cache;
    let io_error = |action| OpenError::io(action, cache.config.path());
    cache.index.table.prepare_syncs(number + 1).map_err(io_error("open the index of"))?;
    let (tell_ending, ending) = mpsc::sync_channel(1);
    let own = Arc::clone(shared);
    shared.note_starting();
    let name = format!("kvring-{number}");
    let thread = Builder::new().name(name).spawn(move || {
        let shared = own;
        if let Some(node) = shared.cache.store.geometry().numa_node {
            thread::run_on_node(node);
        }
        let waker = Arc::clone(&shared.lanes[number].waker);
        let least = shared.cache.config.reactors().0;
        let limits =
            limits::of_reactor(&shared.cache.config, shared.device_limits(), least.max(number + 1));
        // Loads, and as many stores.
        let engine = make_engine.lock()(2 * limits.queue_depth, waker);
        // It may hold what belongs to the caller.
        drop(make_engine);
        match engine {
            Ok(engine) => {
                let _ = shared.lanes[number].engine.set(engine.description());
                started(Ok(()));
                let operations = Operations::new(number, shared, unverified, engine, limits);
                let _ = tell_ending.send(operations.live(further));
            }
            Err(error) => {
                started(Err(error));
                shared.note_settled();
                shared.note_stopped();
                let _ = tell_ending.send(ReactorEnd::Orderly);
            }
        }
    });
    let thread = thread.inspect_err(|_| {
        shared.note_settled();
        shared.note_stopped();
    });
    Ok((thread.map_err(io_error("start a thread for"))?, ending))
}

/// What the first reactor needs to start others.
pub(super) struct Further {
    scaling: Scaling,
    make_engine: MakeEngine,
    /// Those that it has started.
    reactors: Reactors,
}

impl Further {
    /// [`Reactors::join`] of those that it has started.
    pub(super) fn join(self) -> ReactorEnd {
        self.reactors.join()
    }

    /// Decides how many reactors take work, and starts one if there are too few. Without it the others go on. Says whether their number
    /// is on trial.
    fn step(&mut self, shared: &Arc<Shared>, now: Instant) -> bool {
        let active = shared.active();
        let wanted = self.scaling.step(shared.sample(now), active);
        let number = 1 + self.reactors.0.len();
        if wanted > number {
            let owner = Arc::clone(shared);
            let started = move |outcome: Result<(), EngineError>| {
                outcome.unwrap_or_else(|error| owner.note_refused(number, &error));
            };
            match start(number, shared, Vec::new(), Arc::clone(&self.make_engine), None, started) {
                Ok(thread) => self.reactors.0.push(thread),
                Err(error) => shared.note_refused(number, &error),
            }
        }
        if shared.is_start_refused.swap(false, Ordering::SeqCst) {
            self.scaling.limit(active);
        }
        // It has no engine yet, perhaps.
        if shared.lanes[wanted - 1].engine.get().is_some() {
            shared.set_active(wanted);
        }
        self.scaling.is_trying()
    }
}

impl Operations {
    /// Tells what this reactor has done, and decides, if it is the first one, how many of them take work and how many bytes are in the
    /// device.
    pub(super) fn scale(&mut self, further: &mut Option<Further>, now: Instant) {
        let shared = &self.shared;
        let is_alone = shared.lanes.len() == 1;
        if is_alone && self.bytes_bound.is_none()
            || now.saturating_duration_since(self.told_at) < TELLING
        {
            return;
        }
        self.told_at = now;
        let lane = &shared.lanes[self.number];
        lane.tell_saturated(self.account.totals);
        if !is_alone {
            for (told, moved_bytes) in lane.moved_bytes.iter().zip(self.moved_bytes) {
                told.store(moved_bytes, Ordering::Relaxed);
            }
            lane.processor_ns.store(thread::processor_time().as_nanos() as u64, Ordering::Relaxed);
        }
        let active = shared.active();
        let is_on_trial = further.as_mut().is_some_and(|further| further.step(shared, now));
        if let Some(bytes_bound) = &mut self.bytes_bound {
            let is_steady = !is_on_trial && shared.active() == active;
            shared.set_bound(bytes_bound.step(now, shared.saturated(), is_steady));
        }
        self.follow_limits();
    }
}
