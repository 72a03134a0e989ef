//! One path of a store: its files and its index, the reactors that move its bytes, the maintenance thread. A connector has one of them
//! or several.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytesize::ByteSize;

use crate::base::sync::Mutex;
use crate::batch::completion_queue::CompletionQueues;
use crate::cache::{Cache, CacheThread, ChunkIndex, FilesChange, WriteBudget};
use crate::config::{Config, Durability};
use crate::connector::engines::describe;
use crate::connector::opening::LockedStore;
use crate::engine::{SyncListener, Waker, WatchedFiles};
use crate::error::OpenError;
use crate::evict::Quotas;
use crate::format::names::StoreId;
use crate::index::{ChunkVersion, RecordWriter, RecoveredIndex, Recovery, Sharing};
use crate::key::{Digest, Hashed};
use crate::lock::OpenStore;
use crate::reactor::{MakeEngine, ReactorEnd, ReactorGroup, Reactors};
use crate::space_account::SpaceAccount;

/// A path in use.
pub(crate) struct Volume {
    pub(crate) shared: Arc<ReactorGroup>,
    pub(crate) id: StoreId,
    /// What it noted of other paths before it was opened.
    pub(crate) sharing: Sharing,
    pub(crate) space: Arc<SpaceAccount>,
    pub(crate) recovery: Recovery,
    /// What it lies on, for the log.
    place: String,
    unverified: Vec<ChunkVersion>,
    watched_files: Arc<WatchedFiles>,
    pub(crate) threads: Mutex<Threads>,
    /// How its reactors ended, once they have.
    pub(crate) reactors_end: OnceLock<ReactorEnd>,
    /// How it was closed, once it is.
    pub(crate) closed: OnceLock<Shutdown>,
}

/// What all volumes of a store have in common.
pub(crate) struct VolumeContext {
    completions: Arc<CompletionQueues>,
    quotas: Quotas,
    write_budget: Arc<WriteBudget>,
}

impl VolumeContext {
    pub(crate) fn new(config: &Config, completions: &Arc<CompletionQueues>) -> Self {
        let write_budget = WriteBudget::new(config.write_budget_bytes, Instant::now());
        Self {
            completions: Arc::clone(completions),
            quotas: Quotas::new(&config.quotas, config.paths.len()),
            write_budget: Arc::new(write_budget),
        }
    }
}

impl Volume {
    /// Opens what was looked at, makes what is missing, and recovers the chunks. `config` is of that path alone. Its files are those
    /// of `watched_files`.
    pub(crate) fn open(
        config: Config,
        watched_files: &Arc<WatchedFiles>,
        locked: Option<LockedStore>,
        context: &VolumeContext,
    ) -> Result<Self, OpenError> {
        let path = config.path().to_owned();
        let io_error = |action| OpenError::io(action, &path);
        let wakers: io::Result<Vec<_>> = (0..config.reactors()).map(|_| Waker::new()).collect();
        let wakers = wakers.map_err(io_error("make an eventfd for"))?;
        let LockedStore { location, index, files } = LockedStore::prepare(locked, &config)?;
        let space = Arc::new(location.space(&config));
        warn_of_floor(&path, &space);
        let sharing = index.sharing();
        let place = location.describe();
        let index = index.take_over(&space, config.clock.now_ms())?;
        let store = location.open_store(&config, files, &space, &index, &wakers)?;
        let RecoveredIndex { index, recovery, unverified } =
            index.recover(&*store, &config, &context.quotas);
        let id = index.store_id().map_err(io_error("read the index of"))?;
        let write_budget = Arc::clone(&context.write_budget);
        let reactors = wakers.iter().map(Arc::clone).collect();
        let open_store = OpenStore::new(id);
        let cache = Cache::new(config, index, store, write_budget, reactors, open_store);
        let completions = Arc::clone(&context.completions);
        let shared = Arc::new(ReactorGroup::new(Arc::new(cache), completions, wakers));
        Ok(Self {
            shared,
            id,
            sharing,
            space,
            recovery,
            place,
            unverified,
            watched_files: Arc::clone(watched_files),
            threads: Mutex::default(),
            reactors_end: OnceLock::new(),
            closed: OnceLock::new(),
        })
    }

    /// Drops every chunk that does not stay, by its digest, and counts it as one of another path, or as one that may be stale.
    pub(crate) fn drop_not_owned(&mut self, is_stale: bool, stays: impl Fn(Digest) -> bool) {
        let count = self.shared.cache.retain(|digest| !is_stale && stays(digest));
        self.recovery.kept -= count.min(self.recovery.kept);
        match is_stale {
            true => self.recovery.stale += count,
            false => self.recovery.moved += count,
        }
    }

    /// Starts its threads, and notes that it is open.
    pub(crate) fn start(&mut self, make_engine: &MakeEngine) -> Result<(), OpenError> {
        let (shared, recovery) = (&self.shared, &self.recovery);
        shared.cache.evict_beyond_capacity();
        shared.cache.store.drain_removals();
        // A command that opens a store with `keeps_misplaced` has made the capacity up.
        if !shared.cache.config.keeps_misplaced {
            warn_of_capacity(self.path(), &self.space);
        }
        let mut threads = self.threads.lock();
        let unverified = std::mem::take(&mut self.unverified);
        let started = threads.start(
            shared,
            unverified,
            make_engine,
            recovery.clean_shutdown,
            &self.watched_files,
        );
        started.inspect_err(|_| {
            shared.stop(Duration::ZERO);
            threads.join_reactors();
            threads.end_others(shared);
        })?;
        self.log_open();
        Ok(())
    }

    /// Says in one line what was opened, and what came of it.
    fn log_open(&self) {
        let (shared, recovery) = (&self.shared, &self.recovery);
        // Without the flags of its rings.
        let names: Vec<_> = shared.engines().iter().flat_map(|one| one.split(' ').next()).collect();
        let level = if recovery.is_damaged() { log::Level::Warn } else { log::Level::Info };
        log::log!(
            level,
            "{}: kvring {}, {}, {}, capacity {}, chunks up to {}, {recovery}",
            self.path().display(),
            env!("CARGO_PKG_VERSION"),
            describe(&names),
            self.place,
            ByteSize(self.space.capacity_bytes()),
            ByteSize(shared.cache.store.max_chunk_bytes()),
        );
    }

    pub(crate) fn index(&self) -> &ChunkIndex {
        &self.shared.cache.index
    }

    /// Which of `keys`, all of this volume, are stored and can be loaded, at most up to the first miss if it `stops_at_miss`; leases
    /// them.
    pub(crate) fn contains_each<'key>(
        &self,
        keys: impl Iterator<Item = Hashed<'key>>,
        stops_at_miss: bool,
    ) -> Vec<bool> {
        let can_be_loaded = !self.shared.has_failed() && !self.shared.responsiveness.misses_loads();
        self.shared.cache.contains_each(keys, stops_at_miss, can_be_loaded)
    }

    pub(crate) fn pin_keys(&self, keys: &[Hashed<'_>], now_ms: u64) -> Vec<bool> {
        match self.shared.has_failed() {
            true => vec![false; keys.len()],
            false => {
                self.shared.cache.note_usable();
                self.index().pin_keys(keys, now_ms)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.shared.cache.config.path()
    }
}

#[derive(Default)]
pub(crate) struct Threads {
    writer: Option<RecordWriter>,
    reactors: Option<Reactors>,
    growth: Option<CacheThread>,
    maintenance: Option<CacheThread>,
    flushes: Option<CacheThread>,
}

impl Threads {
    /// Starts them, and notes that the store is open when its bytes can be moved. Those that run when one fails are left to
    /// [`Threads::join_reactors`] and [`Threads::end_others`].
    fn start(
        &mut self,
        shared: &Arc<ReactorGroup>,
        unverified: Vec<ChunkVersion>,
        make_engine: &MakeEngine,
        was_closed: bool,
        watched_files: &WatchedFiles,
    ) -> Result<(), OpenError> {
        let io_error = |action| OpenError::io(action, shared.cache.config.path());
        let thread_error = || io_error("start a thread for");
        let config = &shared.cache.config;
        if !config.works_inline {
            self.writer = Some(shared.start_record_writer().map_err(thread_error())?);
        }
        self.reactors = Some(Reactors::start(shared, unverified, make_engine)?);
        begin_session(shared, was_closed).map_err(io_error("write the index of"))?;
        // From here on a failed sync may be of what this owner has written.
        let listener: Weak<dyn SyncListener> = Arc::<ReactorGroup>::downgrade(shared);
        watched_files.tell(listener);
        self.growth = Some(shared.cache.start_growth().map_err(thread_error())?);
        let owner = Arc::clone(shared);
        let maintenance =
            shared.cache.start_maintenance(move |change| note_files_change(&owner, change));
        self.maintenance = Some(maintenance.map_err(thread_error())?);
        if config.durability == Durability::BestEffort && !config.works_inline {
            let owner = Arc::clone(shared);
            let note = move |outcome: &io::Result<()>| owner.note_flush(outcome);
            let flushes = shared.cache.start_flushes(was_closed, note);
            self.flushes = Some(flushes.map_err(thread_error())?);
        }
        Ok(())
    }

    /// Waits for the reactors, which have been asked to stop.
    pub(crate) fn join_reactors(&mut self) -> ReactorEnd {
        self.reactors.take().map_or(ReactorEnd::Leaked, Reactors::join)
    }

    /// Ends all others, when the reactors have ended. Says whether all changes of records are written; answers that wait for one that
    /// is not, fail.
    pub(crate) fn end_others(&mut self, shared: &ReactorGroup) -> bool {
        // They free extents, which needs the files; what was queued may have needed them until now.
        [self.maintenance.take(), self.flushes.take(), self.growth.take()]
            .into_iter()
            .flatten()
            .for_each(CacheThread::end);
        // After all that change records.
        let is_written = self.writer.take().is_none_or(RecordWriter::end);
        shared.fail_answers();
        is_written
    }
}

fn note_files_change(shared: &ReactorGroup, change: FilesChange) {
    match change {
        // The others take its keys, and say so.
        FilesChange::Missed(reason) => shared.health.fail_for_now(|| reason),
        // One that is out of use stays so.
        FilesChange::Back if shared.health.has_failed() => {}
        FilesChange::Back => log::warn!(
            "{}: its files are where they belong again, so it stores chunks again",
            shared.cache.config.path().display()
        ),
    }
}

fn warn_of_floor(path: &Path, space: &SpaceAccount) {
    if let Some((floor_bytes, all_bytes)) = space.floor_above_all() {
        log::warn!(
            "{}: min_free = {} is more than its file system has, {} in all: the store cannot grow; lower min_free",
            path.display(),
            ByteSize(floor_bytes),
            ByteSize(all_bytes)
        );
    }
}

fn warn_of_capacity(path: &Path, space: &SpaceAccount) {
    let (used_bytes, capacity_bytes) = (space.used_bytes(), space.capacity_bytes());
    let most_bytes = used_bytes.saturating_add(space.free_above_floor_bytes());
    if most_bytes < capacity_bytes && space.floor_above_all().is_none() {
        log::warn!(
            "{}: capacity is {}, but the file system has only {} for the store: {} that it takes, and what is free above \
             min_free; it evicts within these; free space there, lower min_free, or lower capacity",
            path.display(),
            ByteSize(capacity_bytes),
            ByteSize(most_bytes),
            ByteSize(used_bytes)
        );
    }
}

/// Notes durably that the store is open. In `persistent`, what an earlier owner left counts as durable from here on, so
/// that is made durable first.
fn begin_session(shared: &ReactorGroup, was_closed: bool) -> io::Result<()> {
    if shared.cache.config.durability == Durability::Persistent && !was_closed {
        // A sync may have failed, and its owner been killed before it saw that.
        shared.cache.index.write_anew();
    }
    let note = || {
        if shared.cache.config.durability == Durability::Persistent {
            shared.cache.store.sync()?;
        }
        shared.cache.index.write_session(shared.cache.config.clock.now_ms(), false)?;
        shared.cache.index.sync()
    };
    note().or_else(|error| {
        let path = shared.cache.config.path().display();
        log::error!("{path}: cannot make durable what an earlier owner left: {error}");
        // It may be the error of an earlier owner's writes, which the kernel tells the next one.
        shared.cache.index.trust_none();
        // The same of the data, while it is known whose errors these are: close() would take them for its own.
        let _ = shared.cache.store.sync();
        note()
    })
}

/// How a store was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// The clean flag is on disk: the next open needs no deep check.
    pub clean: bool,
    /// Operations were dropped at the deadline.
    pub partial_flush: bool,
    /// How many; if it `timed_out` also those that are not answered yet.
    pub abandoned: u64,
    /// The kernel, or a thread in it, still has memory of callers: it must stay where it is.
    pub memory_held: bool,
    /// The time was over first: threads go on with the rest, and keep the store locked until then.
    pub timed_out: bool,
    /// Stores and removals, at most, that are not known to be durable: power loss may undo them. In `persistent` those whose
    /// records are not in the index file.
    pub not_durable: u64,
}

impl Shutdown {
    /// How several volumes were left, as if they were one.
    pub(crate) fn of_all(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self { clean: true, ..Self::default() }, |sum, one| Self {
            clean: sum.clean && one.clean,
            partial_flush: sum.partial_flush || one.partial_flush,
            abandoned: sum.abandoned + one.abandoned,
            memory_held: sum.memory_held || one.memory_held,
            timed_out: sum.timed_out || one.timed_out,
            not_durable: sum.not_durable + one.not_durable,
        })
    }
}

impl std::fmt::Display for Shutdown {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let order = match (self.clean, self.timed_out) {
            (true, _) => "closed in order",
            (false, false) => "closed, but not in order",
            (false, true) => "not closed yet",
        };
        formatter.write_str(order)?;
        // Operations of a path that is not closed yet may still complete.
        if !self.timed_out {
            write!(formatter, ", {} operations abandoned", self.abandoned)?;
        }
        match self.not_durable {
            0 => Ok(()),
            count => write!(formatter, ", {count} changes not durable"),
        }
    }
}
