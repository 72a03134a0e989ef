//! The contract with LMCache: submit, drain, close. Everything here returns at once except `open` and `close`.

mod admin;
mod engines;
mod forecast;
mod key_watch;
mod limits;
mod opening;
mod owned_chunks;
mod status;
mod submits;
mod volume;

use std::borrow::Cow;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use admin::Removal;
pub use forecast::{ChunkSum, OpenForecast, forecast_open};
pub use limits::{LimitError, StoreLimits};
use opening::{OpenedStore, open_all};
pub use opening::{check_places, format_device};
use thiserror::Error;
pub use volume::Shutdown;
use volume::{Volumes, Watch, close_all, close_started, on_thread};

use crate::base::buffer::MemoryReturn;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::base::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::batch::backlog::{Amount, Backlog};
use crate::batch::completion_queue::{
    Completion, CompletionQueue, CompletionQueues, FailureReason, KeepAlive,
};
use crate::config::Config;
use crate::engine::{Engine, EngineError, MemoryError, RegisteredMemory, Waker};
use crate::error::OpenError;
use crate::index::{KeyEvents, Recovery, UntoldChunk};
use crate::key::MAX_KEY_BYTES;
use crate::reactor::MakeEngine;

/// How long `close` takes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// By how much the time of `close` may be exceeded: without any, a device that answers would not be waited for where it is 0.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Why a call was refused as a whole: nothing of it was queued or changed, but for what `NotRemoved` says.
///
/// Every call that returns it may return `Closed` and `Forked`. Calls with keys may return `KeyTooLong`, calls with buffers
/// `CountMismatch`, and SETs `EmptyChunk`. `NotRemoved` is of calls that wait for the index file, and `Memory` of
/// [`Connector::register_memory`].
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the message of each error says what it means")]
pub enum SubmitError {
    #[error("the connector is closed; open a new one")]
    Closed,
    #[error(
        "the connector belongs to process {owner}, not to its fork {this}; open a connector of its own with another path"
    )]
    Forked { owner: u32, this: u32 },
    #[error("{keys} keys but {buffers} buffers; each key needs exactly one buffer")]
    CountMismatch { keys: usize, buffers: usize },
    /// `position` is that in the batch, here and below.
    #[error("key {position} has {length_bytes} bytes; keys have at most {MAX_KEY_BYTES}")]
    KeyTooLong { position: usize, length_bytes: usize },
    #[error("buffer {position} has 0 bytes; a chunk has 1 byte or more")]
    EmptyChunk { position: usize },
    /// Keys of `path` are removed only once its index has that: those that it refused beforehand stay, and a restart may bring others
    /// back. Those of other paths are removed.
    #[error("not all keys are removed from {path}: {reason}")]
    NotRemoved { path: PathBuf, reason: String },
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// An open store. Its calls return at once, but for those that say how long they wait. Threads may share it; a fork may not use it.
pub struct Connector {
    config: Config,
    pub(crate) volumes: Arc<Volumes>,
    recovery: Recovery,
    pub(crate) completions: Arc<CompletionQueues>,
    memory: Arc<RegisteredMemory>,
    backlog: Arc<Backlog>,
    watch: Arc<Mutex<Option<Watch>>>,
    shutdown: Mutex<Option<Shutdown>>,
    gate: Arc<Gate>,
    next_future_id: AtomicU64,
    /// Of [`Connector::set_epoch`], as part of variants.
    epoch: AtomicU32,
    key_watch: Mutex<Option<KeyWatch>>,
    limit_changes: Mutex<()>,
    process_id: u32,
    /// Last: it is dropped after all else.
    _memory_return: MemoryReturn,
}

impl Connector {
    /// Opens the store that `config` describes, making it if there is none, and recovers what it holds.
    ///
    /// # Errors
    /// `OpenError` when another owner is alive, the format is newer, the path or its permissions are wrong, the engine cannot
    /// be had, or the paths do not belong together; then nothing was changed. Damage is no error: see
    /// [`Connector::recovery`]. Of several paths one whose device is gone is left out.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        engines::check(&config)?;
        let memory = Arc::default();
        let make_engine = engines::maker(&config, &memory);
        Self::open_with(config, memory, &make_engine)
    }

    /// Like [`Connector::open`], with an engine of the caller's: the seam for faults in tests. `make_engine` gets the queue
    /// depth and the waker that must end its waits, and runs on each thread that will own an engine.
    ///
    /// # Errors
    /// As [`Connector::open`], and what `make_engine` says.
    #[doc(hidden)]
    pub fn open_with_engine<E, M>(config: Config, mut make_engine: M) -> Result<Self, OpenError>
    where
        E: Engine + 'static,
        M: FnMut(usize, Arc<Waker>) -> Result<E, EngineError> + Send + 'static,
    {
        let make_engine: MakeEngine = Arc::new(Mutex::new(Box::new(move |queue_depth, waker| {
            Ok(Box::new(make_engine(queue_depth, waker)?))
        })));
        Self::open_with(config, Arc::default(), &make_engine)
    }

    fn open_with(
        config: Config,
        memory: Arc<RegisteredMemory>,
        make_engine: &MakeEngine,
    ) -> Result<Self, OpenError> {
        let io_error = |action| OpenError::io(action, config.path());
        let completions =
            Arc::new(CompletionQueues::new().map_err(io_error("make an eventfd for"))?);
        let OpenedStore { config, volumes, alarm } = open_all(&config, &completions, make_engine)?;
        let recovery = Recovery::of_all(volumes.all.iter().map(|volume| &volume.recovery));
        let watch = Watch::start(&volumes, alarm).map_err(io_error("start a thread for"));
        let watch = watch.inspect_err(|_| close_started(&volumes, volumes.all.len()))?;
        // Last: an open that fails leaves no data file behind.
        volumes.all.iter().for_each(|volume| volume.shared.cache.prepare_growth());
        let backlog = Backlog::new(Amount {
            operations: config.tuning.set_queue_operations,
            bytes: config.set_queue_bytes,
        });
        Ok(Self {
            config,
            volumes,
            recovery,
            completions,
            memory,
            backlog,
            watch: Arc::new(Mutex::new(Some(watch))),
            shutdown: Mutex::new(None),
            gate: Arc::new(Gate::new()),
            next_future_id: AtomicU64::new(1),
            epoch: AtomicU32::new(0),
            key_watch: Mutex::new(None),
            limit_changes: Mutex::default(),
            process_id: std::process::id(),
            _memory_return: MemoryReturn,
        })
    }

    /// Descriptor that is readable while completions wait: non-blocking, close-on-exec, cleared by `drain`.
    pub fn event_fd(&self) -> RawFd {
        self.completions.common.event_fd()
    }

    /// An event of the same completions, borrowed: it can be waited for without unsafe code.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.completions.common.event()
    }

    /// As [`Connector::event_fd`], for SETs; another one after [`Connector::split_completions`].
    pub fn set_event_fd(&self) -> RawFd {
        self.completions.of_sets().event_fd()
    }

    /// Gives SETs that are submitted from here on a queue of completions and an eventfd of their own, for hosts that wait for them apart.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn split_completions(&self) -> std::io::Result<()> {
        self.completions.split()
    }

    /// Adds all completions there are to `into` and clears the eventfd. Adds none after `close`, and none in a
    /// fork of the owner.
    pub fn drain(&self, into: &mut Vec<Completion>) {
        // A fork shares the eventfd: clearing it there would silence the owner.
        if self.is_open_here() {
            self.completions.common.drain(into);
        }
    }

    /// Adds all completions there are to `into`, or those of SETs if they have a queue of their own; leaves the eventfd to whoever polls
    /// it. Adds none where [`Connector::drain`] adds none.
    pub fn take(&self, of_sets: bool, into: &mut Vec<Completion>) {
        let queue = if of_sets { self.completions.of_sets() } else { &self.completions.common };
        if self.is_open_here() {
            queue.take(into);
        }
    }

    fn is_open_here(&self) -> bool {
        self.process_id == std::process::id() && !self.gate.is_closed()
    }

    /// [`Connector::close_within`] 20 s, the first 10 s of which are for what is queued.
    pub fn close(&self) -> Shutdown {
        self.close_within(CLOSE_TIMEOUT / 2, CLOSE_TIMEOUT)
    }

    /// Accepts nothing new, works on what is queued for at most `drain_timeout`, cancels the rest, waits for the kernel, makes all
    /// durable, notes the clean shutdown, releases the files, and drops the completions that were not drained. A second call waits
    /// for the first and returns the same. In a fork of the owner it does nothing.
    ///
    /// It returns after `timeout` and 1 s at the latest, whatever a device or a frozen file system does. What is left then, the
    /// shutdown and the log say, and threads go on with it: the store stays locked, for this process too, until they are done, and
    /// is closed in order if they can. SETs and DELETEs that are not in the index file fail. Transfers that the kernel does not
    /// finish within 10 s after `drain_timeout` are leaked, with their memory and the lock.
    ///
    /// No caller memory is used after it, unless the shutdown says [`Shutdown::memory_held`].
    pub fn close_within(&self, drain_timeout: Duration, timeout: Duration) -> Shutdown {
        if self.process_id != std::process::id() {
            return Shutdown::default();
        }
        let mut shutdown = self.shutdown.lock();
        if let Some(done) = *shutdown {
            return done;
        }
        self.gate.close();
        self.volumes.all.iter().for_each(|volume| volume.shared.cache.open_store.note_closing());
        if !self.end_within(drain_timeout, timeout + CLOSE_GRACE) {
            // Whoever is inside the gate may have kept them from being asked.
            self.volumes.all.iter().for_each(|volume| volume.shared.stop(Duration::ZERO));
        }
        let closed: Vec<_> =
            self.volumes.all.iter().map(|volume| volume.shutdown(timeout)).collect();
        let Shutdown { memory_held, timed_out, .. } = Shutdown::of_all(closed.iter().copied());
        // A path that is out of use is outdated anyway, and what was dropped there no loss of this moment.
        let counts =
            closed.into_iter().enumerate().filter(|(number, _)| self.volumes.is_live(*number));
        let mut done = Shutdown::of_all(counts.map(|(_, done)| done));
        if timed_out {
            done.abandoned += self.completions.unanswered();
            done.partial_flush = done.abandoned > 0;
        }
        (done.memory_held, done.timed_out) = (memory_held, timed_out);
        self.memory.close();
        let mut untaken = Vec::new();
        self.completions.common.drain(&mut untaken);
        self.completions.of_sets().drain(&mut untaken);
        drop(untaken);
        *shutdown = Some(done);
        done
    }

    /// Waits, when it is closed, until no reactor uses memory of callers any more, or has leaked what the kernel has of it.
    pub fn wait_for_memory(&self) {
        if self.process_id == std::process::id() {
            self.volumes.all.iter().for_each(|volume| _ = volume.reactors_end.wait());
        }
    }

    /// Has a thread close all volumes, and waits for it for at most `timeout`. Says whether it has ended.
    fn end_within(&self, drain_timeout: Duration, timeout: Duration) -> bool {
        let end = {
            let (gate, volumes) = (Arc::clone(&self.gate), Arc::clone(&self.volumes));
            let watch = Arc::clone(&self.watch);
            move || {
                gate.wait_until_empty();
                let watch = watch.lock().take();
                close_all(&volumes.all, drain_timeout, watch);
            }
        };
        on_thread(timeout, end)
    }

    /// Keys as they are stored: with the identity of the engine, if it has one.
    fn as_stored<'key, K: AsRef<str>>(&self, keys: &'key [K]) -> Vec<Cow<'key, str>> {
        let keys = keys.iter().map(AsRef::as_ref);
        match &self.config.identity {
            Some(identity) => keys.map(|key| Cow::Owned(identity.qualify(key))).collect(),
            None => keys.map(Cow::Borrowed).collect(),
        }
    }

    /// The key that is stored as `stored`; none if it belongs to another engine.
    fn own_key<'key>(&self, stored: &'key str) -> Option<&'key str> {
        match &self.config.identity {
            Some(identity) => identity.own(stored),
            None => Some(stored),
        }
    }

    fn enter<K: AsRef<str>>(&self, keys: &[K]) -> Result<RwLockReadGuard<'_, ()>, SubmitError> {
        // Before any lock: one that another thread held during fork() stays held in the child for ever.
        let this = std::process::id();
        if this != self.process_id {
            return Err(SubmitError::Forked { owner: self.process_id, this });
        }
        let gate = self.gate.enter().ok_or(SubmitError::Closed)?;
        match keys.iter().position(|key| key.as_ref().len() > MAX_KEY_BYTES) {
            Some(position) => Err(SubmitError::KeyTooLong {
                position,
                length_bytes: keys[position].as_ref().len(),
            }),
            None => Ok(gate),
        }
    }

    fn future_id(&self) -> u64 {
        self.next_future_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Completes a batch that needs no reactor. It is `ok` without an `error`.
    fn complete(
        &self,
        queue: &CompletionQueue,
        results: Vec<bool>,
        failure: Option<FailureReason>,
        keep_alive: KeepAlive,
    ) -> u64 {
        let future_id = self.future_id();
        let (code, error) = failure.map(|failure| (failure.code, failure.message)).unzip();
        queue.push(Completion {
            future_id,
            ok: code.is_none(),
            code,
            error: error.unwrap_or_default(),
            results,
            completed_at: Instant::now(),
            keep_alive: Some(keep_alive),
        });
        queue.announce();
        future_id
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.close();
    }
}

/// Keys that are told, and were not taken yet.
#[derive(Default)]
struct KeyWatch {
    events: Arc<KeyEvents>,
    /// Chunks that were stored when it began, with the number of their volume, the one that was used last first.
    stored: Vec<(UntoldChunk, u32)>,
}

/// Entered by every submit, and closed once. Whoever is inside is waited for.
struct Gate {
    is_closed: AtomicBool,
    inside: RwLock<()>,
}

impl Gate {
    fn new() -> Self {
        Self { is_closed: AtomicBool::new(false), inside: RwLock::new(()) }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// None if it is closed.
    fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let inside = self.inside.read();
        // Behind the lock: a close that has waited already would not wait for this one.
        (!self.is_closed()).then_some(inside)
    }

    /// From here on nobody enters.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Waits until nobody is inside, after [`Gate::close`].
    fn wait_until_empty(&self) {
        drop(self.inside.write());
    }
}

#[cfg(test)]
mod tests;
