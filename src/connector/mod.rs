//! The contract with LMCache: submit, drain, close. Everything here returns at once except `open` and `close`.

mod closing;
mod engines;
mod home;
mod joining;
mod path_names;
mod status;
mod upkeep;
mod volume;
mod volumes;

use std::iter::repeat_n;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use closing::Shutdown;
use joining::{Absent, Joined, leave_out, open_all};
use volume::Volume;
use volumes::{Volumes, Watch, alarms};

use crate::backlog::{Amount, Backlog};
use crate::batch::{Batch, BatchItem};
use crate::buffer::CallerBuffer;
use crate::completion::{Completion, CompletionQueue, KeepAlive};
use crate::config::Config;
use crate::engine::{Engine, Waker};
use crate::error::{EngineError, OpenError, StoreError, SubmitError};
use crate::index::{EnteredGet, EnteredSet, Recovery};
use crate::key::{Digest, Fingerprints, MAX_KEY_BYTES};
use crate::placement::Placement;
use crate::reactor::{Alarm, Answer, GetRequest, Operation, SetRequest, Shared};
use crate::schedule::Class;
use crate::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::thread::LONGEST_SYNC;

/// An open store.
pub struct Connector {
    config: Config,
    volumes: Arc<Volumes>,
    recovery: Recovery,
    completions: Arc<CompletionQueue>,
    /// Whether it was logged that chunks are too long.
    told_too_long: AtomicBool,
    backlog: Arc<Backlog>,
    watch: Mutex<Option<Watch>>,
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
    /// `OpenError` when another owner is alive, the format is newer, the path or its permissions are wrong, the engine cannot
    /// be had, or the paths do not belong together; then nothing was changed. Damage is no error: see
    /// [`Connector::recovery`]. Of several paths one whose device is gone is left out.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        engines::check(&config)?;
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
        let io_error = |action| {
            let path = config.path().to_owned();
            move |source| OpenError::Io { action, path, source }
        };
        let completions =
            Arc::new(CompletionQueue::new().map_err(io_error("make an eventfd for"))?);
        let make_engine = Arc::new(Mutex::new(make_engine));
        let (alarm, alarms) = alarms();
        let mut left_out = Vec::new();
        let (config, all, joined) = loop {
            let joined = open_all(&config, &left_out, &completions);
            match joined.and_then(|joined| start_all(joined, &alarm, &make_engine)) {
                Ok(started) => break started,
                // It could be read and not written, perhaps: the others go on without it.
                Err(error) => leave_out(error, &config, &mut left_out)?,
            }
        };
        let recovery = Recovery::of_all(all.iter().map(|volume| &volume.recovery));
        let (absent, placement, epoch) = joined;
        let volumes = Arc::new(Volumes::new(all, absent, placement, epoch));
        let watch = Watch::start(&volumes, alarm, alarms).map_err(io_error("start a thread for"));
        let watch = watch.inspect_err(|_| abandon(volumes.all()))?;
        // Last: an open that fails leaves no data file behind.
        volumes.all().iter().for_each(|volume| volume.shared.prepare_growth());
        let backlog = Backlog::new(Amount {
            operations: config.set_queue_operations,
            bytes: config.set_queue_bytes,
        });
        Ok(Self {
            config,
            volumes,
            recovery,
            completions,
            told_too_long: AtomicBool::new(false),
            backlog,
            watch: Mutex::new(Some(watch)),
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
        let (now_ms, submitted) = (self.config.clock.now_ms(), Instant::now());
        let route = self.volumes.route();
        let mut spreads = route.spreads(Class::Get, keys.len());
        let mut awaited = vec![Vec::new(); self.volumes.all().len()];
        let items = Batch::start(future_id, keys.len(), keep_alive, &self.completions);
        let digests: Vec<Digest> = keys.iter().map(|key| Digest::of(key.as_ref())).collect();
        if let Some(volume) = route.only() {
            volume.index().prefetch_each(keys, &digests);
        }
        for (((item, key), digest), buffer) in items.zip(keys).zip(digests).zip(buffers) {
            let key = key.as_ref();
            let request = GetRequest { item, buffer: *buffer, submitted };
            let length_bytes = buffer.length_bytes() as u64;
            let number = route.number_of(digest);
            let shared = &self.volumes.all()[number].shared;
            match shared.index.enter_get(digest, key, length_bytes, now_ms, request) {
                EnteredGet::Hit(request, pin) => {
                    spreads.of(number).add(Operation::Get(request, pin));
                }
                EnteredGet::Miss(request) => {
                    shared.counters.get_misses.add(1);
                    request.item.miss();
                }
                EnteredGet::Waits => awaited[number].push(digest),
            }
        }
        spreads.push();
        for (volume, awaited) in self.volumes.all().iter().zip(&awaited) {
            volume.shared.promote(awaited);
        }
        self.completions.announce();
        Ok(future_id)
    }

    /// Stores chunks. A key that is held, or on its way, with the very same bytes is not written again; with others, it is
    /// replaced, and readers see the old chunk or the new one, whole. The completion is `ok` if every key was stored. A chunk
    /// that is longer than the store takes fails alone.
    ///
    /// A batch past `set_queue_bytes` or `set_queue_operations` is answered at once: not `ok`, "queue full". Only with
    /// `backpressure` "block" does this call wait, for `backpressure_timeout_ms` at most.
    ///
    /// # Errors
    /// `SubmitError`, and then nothing is queued: closed, forked, counts differ, a key is too long, or a chunk is empty.
    pub fn submit_set<K: AsRef<str>>(
        &self,
        keys: &[K],
        buffers: &[CallerBuffer],
        keep_alive: KeepAlive,
    ) -> Result<u64, SubmitError> {
        let mut gate = self.enter(keys)?;
        check_counts(keys.len(), buffers.len())?;
        if let Some(position) = buffers.iter().position(|buffer| buffer.length_bytes() == 0) {
            return Err(SubmitError::EmptyChunk { position });
        }
        if keys.is_empty() {
            return Ok(self.answer(Vec::new(), keep_alive));
        }
        let limit_bytes = self.max_chunk_bytes();
        let lengths = buffers.iter().map(|buffer| buffer.length_bytes() as u64);
        let wanted = Amount {
            operations: keys.len() as u64,
            bytes: lengths.filter(|length_bytes| *length_bytes <= limit_bytes).sum(),
        };
        let config = &self.config;
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
        let (now_ms, submitted) = (self.config.clock.now_ms(), Instant::now());
        let route = self.volumes.route();
        let mut spreads = route.spreads(Class::Set, keys.len());
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
            let number = route.number_of(digest);
            let shared = &self.volumes.all()[number].shared;
            if buffer.length_bytes() as u64 > limit_bytes {
                self.refuse_long(request, limit_bytes, shared);
                continue;
            }
            shared.counters.set_queued.add(1);
            match shared.index.enter_set(digest, &key, now_ms, request) {
                EnteredSet::Ready(request) => spreads.of(number).add(Operation::Set(request)),
                EnteredSet::Collides(request) => {
                    shared.counters.hash_collision.add(1);
                    log::warn!("{}", collides(&key));
                    refuse(request, shared, || collides(&key));
                }
                EnteredSet::Quarantined(request) => refuse(request, shared, || collides(&key)),
                EnteredSet::Waits => {}
            }
        }
        spreads.push();
        self.completions.announce();
        drop(gate);
        Ok(future_id)
    }

    /// Tells which keys are held, and leases them for `lease_s`: the load that follows finds them. Answered from memory,
    /// without I/O. False for all keys of a path whose reactors have failed: nobody can load them.
    ///
    /// # Errors
    /// `SubmitError`: closed, forked, or a key is too long.
    pub fn submit_exists<K: AsRef<str>>(&self, keys: &[K]) -> Result<u64, SubmitError> {
        let _gate = self.enter(keys)?;
        let now_ms = self.config.clock.now_ms();
        let route = self.volumes.route();
        let results = match route.only() {
            Some(volume) => volume.contains_each(keys, now_ms),
            None => route.ask_each(keys, |volume, keys| volume.contains_each(keys, now_ms)),
        };
        Ok(self.answer(results, Box::new(())))
    }

    /// Removes keys. They are not held any more when this returns, and it is answered when no start will find them either; their
    /// space is freed after their last reader. True means "not here any more", so a key that was not held is answered true as well: LMCache picks a key that is answered false again
    /// and again, and its accounting never comes down.
    ///
    /// # Errors
    /// `SubmitError`: closed, forked, or a key is too long.
    pub fn submit_delete<K: AsRef<str>>(&self, keys: &[K]) -> Result<u64, SubmitError> {
        let _gate = self.enter(keys)?;
        if keys.is_empty() {
            return Ok(self.answer(Vec::new(), Box::new(())));
        }
        let future_id = self.future_id();
        let now = Instant::now();
        let route = self.volumes.route();
        let mut freed = route.spreads(Class::Delete, 0);
        let mut removed: Vec<Vec<BatchItem>> = Vec::new();
        removed.resize_with(self.volumes.all().len(), Vec::new);
        let items = Batch::start(future_id, keys.len(), Box::new(()), &self.completions);
        for (key, item) in keys.iter().zip(items) {
            let digest = Digest::of(key.as_ref());
            let number = route.number_of(digest);
            let shared = &self.volumes.all()[number].shared;
            let (found, extent) = shared.index.delete(digest, key.as_ref());
            let counters = &shared.counters;
            let counter = if found { &counters.deleted } else { &counters.delete_absent };
            counter.add(1);
            if let Some(extent) = extent {
                freed.of(number).add(Operation::Free(extent, now));
            }
            removed[number].push(item);
        }
        freed.push();
        for (volume, items) in self.volumes.all().iter().zip(removed) {
            if !items.is_empty() {
                volume.shared.answer_when_written(Answer::Removed(items));
                volume.shared.index.table().announce_changes();
            }
        }
        self.completions.announce();
        Ok(future_id)
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

    /// Longest chunk that every path in use takes.
    fn max_chunk_bytes(&self) -> u64 {
        let all = self.volumes.live().map(|volume| volume.shared.store.max_chunk_bytes());
        all.min().unwrap_or(0)
    }

    /// Fails one SET whose chunk is too long; the others of its batch are stored.
    fn refuse_long(&self, request: SetRequest, limit_bytes: u64, shared: &Shared) {
        let error = StoreError::TooLong {
            digest: request.digest,
            length_bytes: request.buffer.length_bytes() as u64,
            limit_bytes,
            capacity_bytes: shared.config.capacity_bytes(),
        };
        shared.counters.set_too_long.add(1);
        // Not chunk by chunk: all that a model has are equally long.
        if !self.told_too_long.swap(true, Ordering::Relaxed) {
            log::warn!("{}: {error}", shared.config.path().display());
        }
        refuse(request, shared, || error.to_string());
    }

    /// Completes a batch of SETs that there is no room for in the queue.
    fn reject_full(&self, keys: usize, keep_alive: KeepAlive) -> u64 {
        // No path's more than another's: the first one counts them.
        let counters = &self.volumes.all()[0].shared.counters;
        counters.set_failed.add(keys as u64);
        counters.set_rejected_queue_full.add(keys as u64);
        let (queued, config) = (self.backlog.queued(), &self.config);
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

/// What is open: the configuration in force, the volumes, and what there is to know of all of them.
type Started = (Config, Vec<Volume>, (Vec<Absent>, Placement, u64));

/// Starts every volume, or none.
fn start_all<E, M>(
    joined: Joined,
    alarm: &Alarm,
    make_engine: &Arc<Mutex<M>>,
) -> Result<Started, OpenError>
where
    E: Engine,
    M: FnMut(usize, Arc<Waker>) -> Result<E, EngineError> + Send + 'static,
{
    let Joined { config, opened, absent, placement, epoch } = joined;
    let shared: Vec<_> = opened.iter().map(|volume| Arc::clone(&volume.shared)).collect();
    if let [_, _, ..] = &shared[..] {
        shared.iter().for_each(|one| one.set_paths(&shared));
    }
    let mut all: Vec<Volume> = Vec::new();
    for (number, volume) in opened.into_iter().enumerate() {
        volume.shared.health.set_alarm(number, Some(alarm.clone()));
        all.push(volume.start(make_engine).inspect_err(|_| abandon(&all))?);
    }
    Ok((config, all, (absent, placement, epoch)))
}

/// Closes volumes that nobody will use.
fn abandon(volumes: &[Volume]) {
    volumes.iter().for_each(|volume| volume.shared.stop(Duration::ZERO));
    let closings: Vec<_> = volumes.iter().map(|volume| volume.begin_close(true)).collect();
    let deadline = Instant::now() + LONGEST_SYNC;
    for closing in closings {
        let _ = closing.end(deadline);
    }
}

/// Fails a SET whose key must not be stored.
fn refuse(request: SetRequest, shared: &Shared, error: impl FnOnce() -> String) {
    shared.counters.set_failed.add(1);
    let SetRequest { item, share, .. } = request;
    drop(share);
    item.fail(error);
}

fn collides(key: &str) -> String {
    format!("key {} has the digest of another key: not stored for an hour", Digest::of(key))
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
        let shared = &connector.volumes.all()[0].shared;
        let request = SetRequest {
            item: items.next().unwrap(),
            // SAFETY: a refused chunk is not looked at, and the byte lives longer.
            buffer: unsafe { CallerBuffer::new(&raw mut byte, 1) },
            digest: Digest::of(&key),
            namespace: Namespace::of(&key).fingerprint(),
            key,
            has_waited: false,
            submitted: Instant::now(),
            share: Arc::new(share.unwrap()),
        };
        refuse(request, shared, || collides("k"));
        let mut completions = Vec::new();
        connector.drain(&mut completions);
        assert_eq!((completions[0].future_id, completions[0].ok), (7, false));
        assert!(completions[0].error.contains("has the digest of another key"));
        assert_eq!(connector.backlog.queued(), Amount::default());
        assert_eq!(shared.counters.set_failed.get(), 1);
    }
}
