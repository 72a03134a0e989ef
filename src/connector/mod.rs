//! The contract with LMCache: submit, drain, close. Everything here returns at once except `open` and `close`.

mod closing;
mod engines;
mod status;
mod upkeep;

use std::io;
use std::iter::repeat_n;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

pub use closing::Shutdown;

use crate::backlog::{Amount, Backlog};
use crate::batch::Batch;
use crate::budget::Budget;
use crate::buffer::CallerBuffer;
use crate::completion::{Completion, CompletionQueue, KeepAlive};
use crate::config::{Config, Durability, Layout};
use crate::engine::{Engine, Waker};
use crate::error::{EngineError, OpenError, SubmitError};
use crate::index::{EnteredGet, EnteredSet, Index, Recovery, Rules};
use crate::key::{Digest, Fingerprints, MAX_KEY_BYTES};
use crate::reactor::{GetRequest, KeeperThread, Operation, Reactors, SetRequest, Shared, Spread};
use crate::schedule::Class;
use crate::store::Store;
use crate::store::extents::ExtentStore;
use crate::store::files::FileStore;

/// An open store.
pub struct Connector {
    shared: Arc<Shared>,
    budget: Arc<Budget>,
    completions: Arc<CompletionQueue>,
    recovery: Recovery,
    engine: String,
    reactors: Mutex<Option<Reactors>>,
    keeper: Mutex<Option<KeeperThread>>,
    backlog: Arc<Backlog>,
    closed: AtomicBool,
    shutdown: Mutex<Option<Shutdown>>,
    /// Held by every submit, taken for good by `close`: no submit is under way when the files are given up.
    gate: RwLock<()>,
    next_future_id: AtomicU64,
    process_id: u32,
}

impl Connector {
    /// Opens the store that `config` describes, making it if there is none, and recovers what it holds.
    ///
    /// # Errors
    /// `OpenError` when another owner is alive, the format is newer, the path or its permissions are wrong, or the
    /// engine cannot be had. Damage is no error: see [`Connector::recovery`].
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let make_engine = engines::maker(&config);
        Self::open_with_engine(config, make_engine)
    }

    /// Like [`Connector::open`], with an engine of the caller's: the seam for faults in tests. `make_engine` gets the queue
    /// depth and the waker that must end its waits, and runs on each thread that will own an engine.
    ///
    /// # Errors
    /// As [`Connector::open`], and what `make_engine` says.
    pub fn open_with_engine<E, M>(config: Config, make_engine: M) -> Result<Self, OpenError>
    where
        E: Engine,
        M: FnMut(usize, Arc<Waker>) -> Result<E, EngineError> + Send + 'static,
    {
        let path = config.path.clone();
        let io_error = |action| move |source| OpenError::Io { action, path, source };
        std::fs::create_dir_all(&config.path).map_err(io_error.clone()("make the directory"))?;
        let completions =
            Arc::new(CompletionQueue::new().map_err(io_error.clone()("make an eventfd for"))?);
        let wakers: io::Result<Vec<_>> = (0..config.io_threads).map(|_| Waker::new()).collect();
        let wakers = wakers.map_err(io_error.clone()("make an eventfd for"))?;
        let budget = Budget::new(config.capacity_bytes).with_floor(&config.path, config.min_free);
        let budget = Arc::new(budget);
        let rules = Rules {
            capacity_bytes: config.capacity_bytes,
            eviction: config.eviction,
            quotas: config.quotas.clone(),
            ttl_ms: config.ttl.map(|ttl| ttl.as_millis() as u64),
            boot: config.boot,
            lease_s: config.lease_s,
        };
        let now_ms = config.clock.now_ms();
        let (index, store, recovery, suspects) =
            Index::open(&config.path, &budget, rules, now_ms, |owner, mean_use_by_file| {
                let (path, budget) = (&config.path, Arc::clone(&budget));
                Ok(match config.layout {
                    Layout::Extents => {
                        Box::new(ExtentStore::open(path, budget, owner, mean_use_by_file)?)
                            as Box<dyn Store>
                    }
                    Layout::Files => Box::new(FileStore::open(path, budget, wakers.clone())?),
                })
            })?;
        index
            .table()
            .prepare_syncs(config.io_threads)
            .map_err(io_error.clone()("open the index of"))?;
        log::info!("{}: {recovery}", config.path.display());
        let backlog = Backlog::new(Amount {
            operations: config.set_queue_operations,
            bytes: config.set_queue_bytes,
        });
        let shared = Shared::new(config, index, store, Arc::clone(&completions), wakers);
        shared.fit_capacity();
        let shared = Arc::new(shared);
        let reactors = Reactors::start(&shared, suspects, make_engine)?;
        let engine = engines::describe(&reactors.engines);
        if let Err(source) = begin_session(&shared) {
            shared.stop(Duration::ZERO);
            let _ = reactors.join();
            return Err(io_error("write the index of")(source));
        }
        let keeper = KeeperThread::start(&shared).map_err(io_error("start a thread for"))?;
        Ok(Self {
            keeper: Mutex::new(Some(keeper)),
            shared,
            budget,
            completions,
            recovery,
            engine,
            reactors: Mutex::new(Some(reactors)),
            backlog,
            closed: AtomicBool::new(false),
            shutdown: Mutex::new(None),
            gate: RwLock::new(()),
            next_future_id: AtomicU64::new(1),
            process_id: std::process::id(),
        })
    }

    /// Descriptor that is readable while completions wait: non-blocking, close-on-exec, cleared by `drain`.
    pub fn event_fd(&self) -> RawFd {
        self.completions.event_fd()
    }

    /// Loads chunks. A key that is not held, or not in exactly its buffer's length, is answered false and its buffer is
    /// left as it was. `keep_alive` is dropped with the completion.
    ///
    /// # Errors
    /// `SubmitError`, and then nothing is queued: closed, forked, counts differ, or a key is too long.
    pub fn submit_get<K: AsRef<str>>(
        &self,
        keys: &[K],
        buffers: &[CallerBuffer],
        keep_alive: KeepAlive,
    ) -> Result<u64, SubmitError> {
        let _gate = self.enter(keys)?;
        check_counts(keys.len(), buffers.len())?;
        if keys.is_empty() {
            return Ok(self.answer(Vec::new(), keep_alive));
        }
        let future_id = self.future_id();
        let (now_ms, submitted) = (self.shared.config.clock.now_ms(), Instant::now());
        let mut spread = Spread::new(&self.shared, Class::Get, keys.len());
        let items = Batch::start(future_id, keys.len(), keep_alive, &self.completions);
        let digests: Vec<Digest> = keys.iter().map(|key| Digest::of(key.as_ref())).collect();
        self.shared.index.prefetch_each(keys, &digests);
        for (((item, key), digest), buffer) in items.zip(keys).zip(digests).zip(buffers) {
            let key = key.as_ref();
            let request = GetRequest { item, buffer: *buffer, submitted };
            let length_bytes = buffer.length_bytes() as u64;
            match self.shared.index.enter_get(digest, key, length_bytes, now_ms, request) {
                EnteredGet::Hit(request, pin) => spread.add(Operation::Get(request, pin)),
                EnteredGet::Miss(request) => {
                    self.shared.counters.get_misses.add(1);
                    request.item.miss();
                }
                EnteredGet::Waits => {}
            }
        }
        self.shared.push(spread);
        self.completions.announce();
        Ok(future_id)
    }

    /// Stores chunks. A key that is held, or on its way, with the very same bytes is not written again; with others, it is
    /// replaced, and readers see the old chunk or the new one, whole. The completion is `ok` if every key was stored.
    ///
    /// A batch past `set_queue_bytes` or `set_queue_operations` is answered at once: not `ok`, "queue full". Only with
    /// `backpressure` "block" does this call wait, for `backpressure_timeout_ms` at most.
    ///
    /// # Errors
    /// `SubmitError`, and then nothing is queued: closed, forked, counts differ, a key is too long, or a chunk is empty
    /// or longer than the store can hold.
    pub fn submit_set<K: AsRef<str>>(
        &self,
        keys: &[K],
        buffers: &[CallerBuffer],
        keep_alive: KeepAlive,
    ) -> Result<u64, SubmitError> {
        let mut gate = self.enter(keys)?;
        check_counts(keys.len(), buffers.len())?;
        let limit_bytes = self.shared.store.max_chunk_bytes();
        let fits =
            |buffer: &CallerBuffer| (1..=limit_bytes).contains(&(buffer.length_bytes() as u64));
        if let Some(position) = buffers.iter().position(|buffer| !fits(buffer)) {
            let length_bytes = buffers[position].length_bytes();
            return Err(SubmitError::ChunkSize { position, length_bytes, limit_bytes });
        }
        if keys.is_empty() {
            return Ok(self.answer(Vec::new(), keep_alive));
        }
        let wanted = Amount {
            operations: keys.len() as u64,
            bytes: buffers.iter().map(|buffer| buffer.length_bytes() as u64).sum(),
        };
        let config = &self.shared.config;
        let mut admitted = self.backlog.admit(wanted, Duration::ZERO);
        if admitted.is_none() && config.blocks {
            // Not with the gate: close() and other submits would wait as well.
            drop(gate);
            admitted = self.backlog.admit(wanted, config.backpressure_timeout);
            gate = self.enter(keys)?;
        }
        // The last key takes the share itself, so that none outlives the answers.
        let Some(shares) = admitted.map(|share| repeat_n(Arc::new(share), keys.len())) else {
            return Ok(self.reject_full(keys.len(), keep_alive));
        };
        let future_id = self.future_id();
        let (now_ms, submitted) = (self.shared.config.clock.now_ms(), Instant::now());
        let mut spread = Spread::new(&self.shared, Class::Set, keys.len());
        self.shared.counters.set_queued.add(keys.len() as u64);
        let items = Batch::start(future_id, keys.len(), keep_alive, &self.completions);
        let mut fingerprints = Fingerprints::default();
        for (((item, share), key), buffer) in items.zip(shares).zip(keys).zip(buffers) {
            let namespace = fingerprints.of(key.as_ref());
            let key: Arc<str> = key.as_ref().into();
            let (digest, buffer) = (Digest::of(&key), *buffer);
            let request = SetRequest {
                item,
                buffer,
                digest,
                key: Arc::clone(&key),
                namespace,
                submitted,
                has_waited: false,
                share,
            };
            match self.shared.index.enter_set(digest, &key, now_ms, request) {
                EnteredSet::Ready(request) => spread.add(Operation::Set(request)),
                EnteredSet::Collides(request) => {
                    self.shared.counters.hash_collision.add(1);
                    log::warn!("key '{key}' has the digest of another key: not stored for an hour");
                    self.refuse(request);
                }
                EnteredSet::Quarantined(request) => self.refuse(request),
                EnteredSet::Waits => {}
            }
        }
        self.shared.push(spread);
        self.completions.announce();
        drop(gate);
        Ok(future_id)
    }

    /// Tells which keys are held, and leases them for `lease_s`: the load that follows finds them. Answered from memory,
    /// without I/O.
    ///
    /// # Errors
    /// `SubmitError`: closed, forked, or a key is too long.
    pub fn submit_exists<K: AsRef<str>>(&self, keys: &[K]) -> Result<u64, SubmitError> {
        let _gate = self.enter(keys)?;
        let now_ms = self.shared.config.clock.now_ms();
        let (results, refused) = self.shared.index.contains_each(keys, now_ms);
        self.shared.counters.leases_refused.add(refused);
        let hits = results.iter().filter(|hit| **hit).count() as u64;
        self.shared.counters.exists_hits.add(hits);
        self.shared.counters.exists_misses.add(results.len() as u64 - hits);
        Ok(self.answer(results, Box::new(())))
    }

    /// Removes keys. Answered from memory; their space is freed behind it, after their last reader. True means "not here
    /// any more", so a key that was not held is answered true as well: LMCache picks a key that is answered false again
    /// and again, and its accounting never comes down.
    ///
    /// # Errors
    /// `SubmitError`: closed, forked, or a key is too long.
    pub fn submit_delete<K: AsRef<str>>(&self, keys: &[K]) -> Result<u64, SubmitError> {
        let _gate = self.enter(keys)?;
        let now = Instant::now();
        let mut freed = Spread::new(&self.shared, Class::Delete, 0);
        let mut removed = 0;
        for key in keys {
            let digest = Digest::of(key.as_ref());
            let (found, extent) = self.shared.index.delete(digest, key.as_ref());
            removed += u64::from(found);
            if let Some(extent) = extent {
                freed.add(Operation::Free(extent, now));
            }
        }
        self.shared.counters.deleted.add(removed);
        self.shared.counters.delete_absent.add(keys.len() as u64 - removed);
        self.shared.push(freed);
        Ok(self.answer(vec![true; keys.len()], Box::new(())))
    }

    /// Adds all completions there are to `into` and clears the eventfd. Adds none after `close`, and none in a
    /// fork of the owner.
    pub fn drain(&self, into: &mut Vec<Completion>) {
        // A fork shares the eventfd: clearing it there would silence the owner.
        if self.process_id == std::process::id() && !self.closed.load(Ordering::Acquire) {
            self.completions.drain(into);
        }
    }

    fn enter<K: AsRef<str>>(&self, keys: &[K]) -> Result<RwLockReadGuard<'_, ()>, SubmitError> {
        // Before any lock: one that another thread held during fork() stays held in the child for ever.
        let this = std::process::id();
        if this != self.process_id {
            return Err(SubmitError::Forked { owner: self.process_id, this });
        }
        let gate = self.gate.read();
        if self.closed.load(Ordering::Acquire) {
            return Err(SubmitError::Closed);
        }
        match keys.iter().position(|key| key.as_ref().len() > MAX_KEY_BYTES) {
            Some(position) => Err(SubmitError::KeyTooLong {
                position,
                length_bytes: keys[position].as_ref().len(),
            }),
            None => Ok(gate),
        }
    }

    /// Fails a SET whose key must not be stored.
    fn refuse(&self, request: SetRequest) {
        self.shared.counters.set_failed.add(1);
        let SetRequest { item, key, share, .. } = request;
        drop(share);
        item.fail(|| format!("key '{key}' has the digest of another key: not stored for an hour"));
    }

    /// Completes a batch of SETs that there is no room for in the queue.
    fn reject_full(&self, keys: usize, keep_alive: KeepAlive) -> u64 {
        let counters = &self.shared.counters;
        counters.set_failed.add(keys as u64);
        counters.set_rejected_queue_full.add(keys as u64);
        let (queued, config) = (self.backlog.queued(), &self.shared.config);
        let error = format!(
            "queue full: {} SETs of {} bytes are under way, the limits are set_queue_operations = {} and \
             set_queue_bytes = {}; store more slowly or raise them",
            queued.operations, queued.bytes, config.set_queue_operations, config.set_queue_bytes
        );
        self.complete(Completion {
            future_id: self.future_id(),
            ok: false,
            error,
            results: vec![false; keys],
            _keep_alive: Some(keep_alive),
        })
    }

    fn future_id(&self) -> u64 {
        self.next_future_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Completes a batch that needs no reactor.
    fn answer(&self, results: Vec<bool>, keep_alive: KeepAlive) -> u64 {
        self.complete(Completion {
            future_id: self.future_id(),
            ok: true,
            error: String::new(),
            results,
            _keep_alive: Some(keep_alive),
        })
    }

    fn complete(&self, completion: Completion) -> u64 {
        let future_id = completion.future_id;
        self.completions.push(completion);
        self.completions.announce();
        future_id
    }
}

/// Notes durably that the store is open. In `persistent`, what an earlier owner left counts as durable from here on, so
/// that is made durable first.
fn begin_session(shared: &Shared) -> io::Result<()> {
    if shared.config.durability == Durability::Persistent {
        shared.store.sync()?;
    }
    shared.index.write_session(shared.config.clock.now_ms(), false)?;
    shared.index.table().sync()
}

fn check_counts(keys: usize, buffers: usize) -> Result<(), SubmitError> {
    if keys == buffers { Ok(()) } else { Err(SubmitError::CountMismatch { keys, buffers }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Namespace;

    /// The answer to a key that has another one's digest, which nobody can produce.
    #[test]
    fn a_refused_set_fails_and_gives_its_room_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let connector = Connector::open(Config::new(path, 64 << 20).unwrap()).unwrap();
        let share = connector.backlog.admit(Amount { operations: 1, bytes: 1 }, Duration::ZERO);
        let mut byte = 0;
        let key: Arc<str> = "k".into();
        let mut items = Batch::start(7, 1, Box::new(()), &connector.completions);
        connector.refuse(SetRequest {
            item: items.next().unwrap(),
            // SAFETY: a refused chunk is not looked at, and the byte lives longer.
            buffer: unsafe { CallerBuffer::new(&raw mut byte, 1) },
            digest: Digest::of(&key),
            namespace: Namespace::of(&key).fingerprint(),
            key,
            has_waited: false,
            submitted: Instant::now(),
            share: Arc::new(share.unwrap()),
        });
        let mut completions = Vec::new();
        connector.drain(&mut completions);
        assert_eq!((completions[0].future_id, completions[0].ok), (7, false));
        assert!(completions[0].error.contains("'k' has the digest of another key"));
        assert_eq!(connector.backlog.queued(), Amount::default());
        assert_eq!(connector.shared.counters.set_failed.get(), 1);
    }
}
