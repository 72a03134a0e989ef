//! What a chunk goes through between a key and its bytes on disk: claimed, given an extent, written, stored, read, evicted.
//!
//! Two handles own a chunk on its way. A [`WriteHandle`] has an extent, a record and a share of the quota; a [`ReadHandle`] has a
//! reader's hold on a chunk that is stored. Dropping one gives everything back. Extents are given back to the store in one place,
//! [`Cache::reclaim`].

mod admission;
mod background_signal;
mod capacity;
mod claim;
mod directory_watch;
mod flush;
mod growth;
mod maintenance;
mod quota;
mod read;
mod room;
mod suspect_chunks;
mod threads;
mod unused;
mod write;
mod write_streams;
mod writes;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use background_signal::BackgroundSignal;
use directory_watch::DirectoryWatch;
use log::Level::{Error, Warn};
use write_streams::StreamPlacement;
use writes::WritesInFlight;

pub(crate) use admission::WriteBudget;
pub(crate) use claim::{BeginOutcome, Claim};
pub(crate) use directory_watch::FilesChange;
pub(crate) use read::ReadHandle;
pub(crate) use suspect_chunks::{Finding, SuspectChunks};
pub(crate) use threads::CacheThread;
pub(crate) use write::{RecordedWrite, SupersedingWrite, WriteHandle};
pub(crate) use writes::RoomOf;

use crate::base::block::Extent;
use crate::base::buffer::{CallerBuffer, SourceBuffer, Variant};
use crate::base::log_limit::LogLimit;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::base::sync::{Mutex, SegQueue};
use crate::batch::backlog::QueueShare;
use crate::batch::responder::Responder;
use crate::config::Config;
use crate::engine::Waker;
use crate::index::{Index, Lookups, Purged};
use crate::key::{Digest, Hashed};
use crate::lock::OpenStore;
use crate::stats::Counters;
use crate::store::Store;

/// A GET of one key.
pub(crate) struct GetRequest {
    pub(crate) item: Responder,
    pub(crate) buffer: CallerBuffer,
    pub(crate) submitted: Instant,
}

/// A SET of one key.
pub(crate) struct SetRequest {
    pub(crate) item: Responder,
    pub(crate) buffer: SourceBuffer,
    pub(crate) digest: Digest,
    pub(crate) key: Arc<str>,
    /// Fingerprint of the key's namespace.
    pub(crate) namespace: u64,
    /// When its batch was submitted, Unix time in ms.
    pub(crate) submitted_ms: u64,
    pub(crate) variant: Variant,
    pub(crate) submitted: Instant,
    /// Its batch's share of the SETs that are not answered yet.
    pub(crate) share: Arc<QueueShare>,
}

/// The index, with the requests that wait in it.
pub(crate) type ChunkIndex = Index<SetRequest>;

/// The chunks of one path: index, extents, counters, and what is decided about them.
pub(crate) struct Cache {
    pub(crate) config: Config,
    pub(crate) index: ChunkIndex,
    pub(crate) store: Box<dyn Store>,
    pub(crate) counters: Counters,
    pub(crate) log_limits: LogLimits,
    pub(crate) suspects: SuspectChunks,
    pub(crate) directory_watch: DirectoryWatch,
    pub(crate) writes: WritesInFlight,
    pub(crate) streams: StreamPlacement,
    /// Dropped after the files that it speaks of.
    pub(crate) open_store: OpenStore,
    /// Space is short.
    maintenance: BackgroundSignal<()>,
    /// The capacity, or a quota, is another one, and nothing was done about that yet.
    are_limits_new: AtomicBool,
    /// Until what lies beyond the capacity was evicted once. SETs that find no room meanwhile wait.
    is_fitting: AtomicBool,
    /// By the clock that only goes forward.
    opened_s: u32,
    /// Blocks of about the longest chunk of late.
    typical_blocks: AtomicU32,
    /// Bytes that room is needed for.
    growth: BackgroundSignal<u64>,
    /// For the end of the flush thread alone.
    flushes: BackgroundSignal<()>,
    /// Changes of records that are durable: all before this ticket.
    durable_changes: AtomicU64,
    has_flush_failed: AtomicBool,
    write_budget: Arc<WriteBudget>,
    /// The caches of all paths of the store.
    paths: OnceLock<Vec<Weak<Self>>>,
    /// Woken when the store has grown.
    reactors: Box<[Arc<Waker>]>,
    /// Extents of deleted chunks, to be given to [`Cache::reclaim`], and since when they wait for that.
    pub(crate) deleted: SegQueue<(Extent, Instant)>,
    /// Extents of chunks that got a record and were not stored. Until it is durable that the record is cleared, power loss
    /// could bring it back, and it would win over an older one of its key.
    withdrawn: Mutex<Vec<Extent>>,
}

impl Cache {
    pub(crate) fn new(
        config: Config,
        index: ChunkIndex,
        store: Box<dyn Store>,
        write_budget: Arc<WriteBudget>,
        reactors: Box<[Arc<Waker>]>,
        open_store: OpenStore,
    ) -> Self {
        let drive_streams = config.tuning.write_streams.or(store.geometry().write_streams);
        Self {
            maintenance: BackgroundSignal::default(),
            are_limits_new: AtomicBool::new(false),
            is_fitting: AtomicBool::new(false),
            opened_s: config.clock.passed_s(),
            typical_blocks: AtomicU32::new(1),
            growth: BackgroundSignal::default(),
            flushes: BackgroundSignal::default(),
            durable_changes: AtomicU64::new(0),
            has_flush_failed: AtomicBool::new(false),
            write_budget,
            paths: OnceLock::new(),
            streams: StreamPlacement::new(&config, drive_streams),
            config,
            index,
            store,
            counters: Counters::default(),
            log_limits: LogLimits::default(),
            suspects: SuspectChunks::default(),
            directory_watch: DirectoryWatch::default(),
            writes: WritesInFlight::default(),
            open_store,
            reactors,
            deleted: SegQueue::new(),
            withdrawn: Mutex::default(),
        }
    }

    pub(crate) fn path_count(&self) -> usize {
        self.paths.get().map_or(1, Vec::len)
    }

    pub(super) fn all_paths(&self) -> Vec<Arc<Self>> {
        self.paths.get().into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Tells it of the caches of all paths of the store, itself among them.
    pub(crate) fn set_paths(&self, all: &[Arc<Self>]) {
        let _ = self.paths.set(all.iter().map(Arc::downgrade).collect());
    }

    /// Which of `keys` are stored; leases them. If it `stops_at_miss`, there are no answers behind the first miss. The caller says
    /// whether anything `can_be_loaded`.
    pub(crate) fn contains_each<'key>(
        &self,
        keys: impl Iterator<Item = Hashed<'key>>,
        stops_at_miss: bool,
        can_be_loaded: bool,
    ) -> Vec<bool> {
        self.note_usable();
        let now_ms = self.config.clock.now_ms();
        let Lookups { stored, leases_refused, other_variants } =
            match (can_be_loaded, stops_at_miss) {
                (true, _) => self.index.contains_each(keys, stops_at_miss, now_ms),
                (false, true) => Lookups::misses(keys.take(1).count()),
                (false, false) => Lookups::misses(keys.count()),
            };
        self.note_other_variants(other_variants);
        let hits = stored.iter().filter(|stored| **stored).count();
        self.counters.leases_refused.add(leases_refused);
        self.counters.exists_hits.add(hits as u64);
        self.counters.exists_misses.add((stored.len() - hits) as u64);
        stored
    }

    /// Counts keys that were asked for and are stored in another variant.
    pub(crate) fn note_other_variants(&self, keys: u64) {
        if keys == 0 {
            return;
        }
        self.counters.other_variant.add(keys);
        let path = self.config.path();
        self.log_limits.other_variants.log(path, keys, || {
            format!(
                "{}: a chunk is stored under its key with another dtype, shape, weights or epoch than is asked for: it is a miss, and \
                 replaced by the next store",
                path.display()
            )
        });
    }

    /// Bounds of leases and pins follow what chunks can really have.
    pub(crate) fn note_usable(&self) {
        let (fill, capacity_bytes) = (self.store.fill(), self.index.capacity_bytes());
        let usable_bytes = if fill.was_refused { fill.total_bytes } else { capacity_bytes };
        self.index.set_usable_bytes(usable_bytes);
    }

    /// Removes a key from the index, and says whether it was there. Its extent waits in `deleted` from `now` on, or for its last reader.
    pub(crate) fn delete(&self, digest: Digest, key: &str, now: Instant) -> bool {
        let (found, extent) = self.index.delete(digest, key);
        let counters = &self.counters;
        let counter = if found { &counters.deleted } else { &counters.delete_absent };
        counter.add(1);
        if let Some(extent) = extent {
            self.deleted.push((extent, now));
        }
        found
    }

    /// Gives an extent back to the store. No record names it and nothing is under way there.
    pub(crate) fn reclaim(&self, extent: Extent) {
        self.store.free(extent);
    }

    fn reclaim_all(&self, extents: impl IntoIterator<Item = Extent>) {
        extents.into_iter().for_each(|extent| self.reclaim(extent));
    }

    /// Whether a sync of the index would free extents.
    pub(crate) fn has_withdrawn(&self) -> bool {
        !self.withdrawn.lock().is_empty()
    }

    /// Takes the extents whose records were cleared and not synced yet.
    pub(crate) fn take_withdrawn(&self) -> Vec<Extent> {
        std::mem::take(&mut *self.withdrawn.lock())
    }

    /// The records of these extents are cleared, and that is durable if it `is_synced`.
    pub(crate) fn end_withdrawn(&self, extents: Vec<Extent>, is_synced: bool) {
        match is_synced {
            true => {
                let is_room = !extents.is_empty();
                self.reclaim_all(extents);
                if is_room {
                    self.note_room();
                }
            }
            false => self.withdrawn.lock().extend(extents),
        }
    }

    /// Drops every chunk whose key `stays` denies, while nobody reads. Returns how many that were.
    pub(crate) fn retain(&self, stays: impl Fn(Digest) -> bool) -> u64 {
        let (extents, count) = self.index.retain(stays);
        self.reclaim_all(extents);
        count
    }

    /// Removes a namespace; see [`Connector::purge`](crate::Connector::purge).
    pub(crate) fn purge(&self, namespace: &str) -> Purged {
        let (purged, extents) = self.index.purge(namespace);
        self.reclaim_all(extents);
        self.counters.purged.add(purged.keys);
        purged
    }

    /// Why the next open would not find the files of this store, if so, as the file system says now.
    pub(crate) fn missed_files(&self) -> Option<String> {
        self.index.missed().or_else(|| self.store.missed())
    }

    /// Which chunk it is and where it lies, for messages.
    pub(crate) fn extent_text(&self, digest: Digest, extent: Extent) -> String {
        let text = self.store.extent_text(extent, digest);
        format!("digest {digest}, {text} of {}", self.config.path().display())
    }
}

/// What the log tells of failures at one path, which may come by the thousand: one for each reason. Those of the store and of the index are theirs.
pub(crate) struct LogLimits {
    pub(crate) reads: LogLimit,
    pub(crate) mismatches: LogLimit,
    pub(crate) writes: LogLimit,
    pub(crate) retries: LogLimit,
    pub(crate) syncs: LogLimit,
    pub(crate) flushes: LogLimit,
    pub(super) index_full: LogLimit,
    pub(super) shrinks: LogLimit,
    /// All chunks of a model are equally long.
    pub(crate) too_long: LogLimit,
    other_variants: LogLimit,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            reads: LogLimit::new(Error, "chunks could not be read"),
            mismatches: LogLimit::new(
                Error,
                "chunks did not match their checksums and were dropped",
            ),
            writes: LogLimit::new(Error, "chunks could not be written"),
            retries: LogLimit::new(Warn, "writes failed and were tried again"),
            syncs: LogLimit::new(Error, "chunks could not be made durable"),
            flushes: LogLimit::new(Error, "flushes failed"),
            shrinks: LogLimit::of_lasting(
                "times space beyond the capacity could not be given back",
            ),
            index_full: LogLimit::of_lasting("chunks went for the records of others"),
            too_long: LogLimit::of_lasting("chunks were too long to be stored"),
            other_variants: LogLimit::of_lasting(
                "chunks were stored with another dtype, shape, weights or epoch than was asked for",
            ),
        }
    }
}

impl LogLimits {
    pub(super) fn all(&self) -> [&LogLimit; 10] {
        let Self { reads, mismatches, writes, retries, syncs, flushes, .. } = self;
        let Self { index_full, shrinks, too_long, other_variants, .. } = self;
        [
            reads,
            mismatches,
            writes,
            retries,
            syncs,
            flushes,
            index_full,
            shrinks,
            too_long,
            other_variants,
        ]
    }
}
