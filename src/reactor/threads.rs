//! The threads of a path's reactors. They are there as long as the path is open, and sleep in the kernel while there is nothing for them.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::ReactorGroup;
use super::state::Reactor;
use crate::base::sync::Mutex;
use crate::base::sync::mpsc::{self, Receiver};
use crate::base::sync::thread::{Builder, JoinHandle};
use crate::engine::{Engine, EngineError, Waker};
use crate::error::OpenError;
use crate::index::ChunkVersion;

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

/// Where the number of reactors is open, so many have engines with threads of their own: those do the transfers.
pub(crate) const REACTORS_ABOVE_THREADS: usize = 2;

type ReactorThread = (JoinHandle<()>, Receiver<ReactorEnd>);

#[derive(Default)]
pub(crate) struct Reactors(Vec<ReactorThread>);

impl Reactors {
    /// Starts the reactors, each of which makes its engine on its own thread. If one fails that was asked for, none runs; where their
    /// number is open, the others go on without it.
    pub(crate) fn start(
        group: &Arc<ReactorGroup>,
        mut unverified: Vec<ChunkVersion>,
        make_engine: &MakeEngine,
    ) -> Result<Self, OpenError> {
        let config = &group.cache.config;
        let is_open = config.io_threads.is_none();
        let mut reactors = Self::default();
        for number in 0..config.reactors() {
            // They are read one at a time, so one reactor is enough.
            let unverified = mem::take(&mut unverified);
            match start(number, group, unverified, Arc::clone(make_engine)) {
                Ok((thread, depth)) => {
                    reactors.0.push(thread);
                    let has_threads = depth < usize::MAX;
                    if has_threads && number + 1 == REACTORS_ABOVE_THREADS && is_open {
                        break;
                    }
                }
                Err(error) if number > 0 && is_open => {
                    let path = config.path().display();
                    log::warn!(
                        "{path}: {number} of its reactors go on without a further one: {error}"
                    );
                    break;
                }
                Err(error) => {
                    group.stop(Duration::ZERO);
                    reactors.join();
                    return Err(error);
                }
            }
        }
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

/// Starts reactor `number`, and waits until it has an engine. Returns how many transfers that works on, too.
fn start(
    number: usize,
    group: &Arc<ReactorGroup>,
    unverified: Vec<ChunkVersion>,
    make_engine: MakeEngine,
) -> Result<(ReactorThread, usize), OpenError> {
    let cache = &group.cache;
    let io_error = |action| OpenError::io(action, cache.config.path());
    cache.index.prepare_syncs(number + 1).map_err(io_error("open the index of"))?;
    let (tell_ending, ending) = mpsc::sync_channel(1);
    let (tell_started, started) = mpsc::sync_channel(1);
    let own = Arc::clone(group);
    group.note_starting();
    let name = format!("kvring-{number}");
    let thread = Builder::new().name(name).spawn(move || {
        let group = own;
        let waker = Arc::clone(&group.lanes[number].waker);
        let limits = group.limits();
        // Loads, and as many stores.
        let engine = make_engine.lock()(2 * limits.queue_depth, waker);
        // It may hold what belongs to the caller.
        drop(make_engine);
        match engine {
            Ok(engine) => {
                let _ = group.lanes[number].engine.set(engine.description());
                drop(tell_started.send(Ok(engine.depth())));
                let operations = Reactor::new(number, group, unverified, engine, limits);
                let _ = tell_ending.send(operations.live());
            }
            Err(error) => {
                drop(tell_started.send(Err(error)));
                group.note_settled();
                group.note_stopped();
                let _ = tell_ending.send(ReactorEnd::Orderly);
            }
        }
    });
    let thread = thread.inspect_err(|_| {
        group.note_settled();
        group.note_stopped();
    });
    let thread = thread.map_err(io_error("start a thread for"))?;
    let at_once = |_| EngineError::Failed {
        operation: "starting",
        source: std::io::Error::other("the reactor's thread ended at once"),
    };
    match started.recv().map_err(at_once).and_then(|started| started) {
        Ok(depth) => Ok(((thread, ending), depth)),
        Err(error) => {
            // A refused open holds nothing any more when it returns.
            drop(thread.join());
            Err(error.into())
        }
    }
}
