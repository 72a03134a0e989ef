//! Counters. Each is named once, here; `stats()` shows them under the same names, and docs/reference/metrics.md says what each means.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::completion_queue::FailureCode;
use crate::store::Geometry;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($name:ident,)+) => {
        /// What happened since the store was opened.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub $name: Counter,)+ }

        impl Counters {
            /// Every counter by name.
            pub(crate) fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }
        }
    };
}

counters! {
    get_hits,
    get_misses,
    get_late,
    set_stored,
    set_unchanged,
    set_deleted,
    set_failed,
    set_queued,
    set_coalesced,
    set_rejected_queue_full,
    set_no_space,
    set_quota_full,
    set_collision,
    set_unavailable,
    set_io_error,
    set_closed,
    set_abandoned,
    exists_hits,
    exists_misses,
    deleted,
    delete_absent,
    read_bytes,
    written_bytes,
    bounced_bytes,
    checksum_mismatch,
    verified_after_crash,
    read_errors,
    read_dropped,
    write_errors,
    write_retries,
    write_retries_exhausted,
    syncs,
    sync_errors,
    set_too_long,
    index_full,
    evicted,
    evicted_bytes,
    evicted_unused_ms,
    foreground_evictions,
    expired,
    expired_bytes,
    purged,
    leases_refused,
    set_not_admitted,
    not_admitted_bytes,
    set_over_write_budget,
    over_write_budget_bytes,
    hash_collision,
    other_variant,
    transfers,
    transfers_resumed,
    transfers_slow,
    reactor_turns,
    abandoned,
}

impl Counters {
    /// Counts SETs that failed: all together, and by the code that their callers get.
    pub(crate) fn fail_sets(&self, code: FailureCode, count: u64) {
        let of_code = match code {
            FailureCode::QueueFull => &self.set_rejected_queue_full,
            FailureCode::NoSpace => &self.set_no_space,
            FailureCode::QuotaFull => &self.set_quota_full,
            FailureCode::TooLong => &self.set_too_long,
            FailureCode::Collision => &self.set_collision,
            FailureCode::Unavailable => &self.set_unavailable,
            FailureCode::Io => &self.set_io_error,
            FailureCode::Closed => &self.set_closed,
            FailureCode::Abandoned => &self.set_abandoned,
        };
        of_code.add(count);
        self.set_failed.add(count);
    }
}

/// A write stream of a drive, and what was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamUse {
    /// Its number; the drive's placement identifiers are one less.
    pub stream: u8,
    /// `first_time` or `returned` chunks, those of `one_namespace`, or of `other_namespaces`.
    pub content: &'static str,
    /// Bytes of the chunks stored there since the open, in whole blocks.
    pub written_bytes: u64,
}

macro_rules! path_stats {
    ($($(#[doc = $meaning:literal])+ $name:ident,)+) => {
        /// State of what is at one path, at one moment.
        #[derive(Clone, Debug, Default)]
        pub struct PathStats {
            /// The path.
            pub path: PathBuf,
            /// Whether it is in use; if not, its keys are missed, and it counts in no sum.
            pub in_use: bool,
            /// Why it has failed; empty if it works. A path that is the last one stays in use.
            pub reason: String,
            /// What fails now: `reason`, or transfers of which none has worked since; empty if all is well.
            pub trouble: String,
            /// Whether its drive answers nothing: what was not begun fails until it answers.
            pub stuck: bool,
            /// What is worth knowing and no trouble: that its drive is slow, that nothing is ever found; empty if there is nothing.
            pub note: String,
            /// The last error of the device or the file system; empty if there was none.
            pub last_error: String,
            /// When that was, Unix time in ms; 0 if there was none.
            pub last_error_ms: u64,
            /// Payload bytes written there since the store was opened, also before the path failed.
            pub written_bytes: u64,
            /// Write streams in use; none of several paths together.
            pub write_streams: Vec<StreamUse>,
            /// Of several paths, all different ones.
            pub engine: String,
            /// Of several paths, whether all are direct, and the strictest alignment of memory.
            pub geometry: Geometry,
            $($(#[doc = $meaning])+ pub $name: u64,)+
        }

        impl PathStats {
            /// Its numbers, by name.
            pub fn numbers(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }

            fn add_numbers(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

path_stats! {
    /// Keys stored.
    keys,
    /// Payload bytes stored.
    stored_bytes,
    /// Records of the index in use: one for each key, more for keys of over 168 bytes.
    records,
    /// Pages of the index that the disk did not return since it was opened; their chunks are missed.
    index_pages_lost,
    /// Bytes of the data files that hold chunks, rounding to blocks included.
    allocated_bytes,
    /// Configured capacity.
    capacity_bytes,
    /// What data files and index take of it.
    used_bytes,
    /// Number of data files.
    data_files,
    /// Bytes of the data files that are leased.
    leased_bytes,
    /// Bytes of the data files that are pinned.
    pinned_bytes,
    /// Most reads, and as many writes, that are in the device at a time.
    queue_depth,
    /// Most bytes of either.
    max_in_flight_bytes,
    /// Records that opening threw out, whatever for.
    discarded_at_open,
    /// Keys asked for, by EXISTS or GET, that were not stored and would have been with one and a half times the capacity.
    would_hit_at_1_5x,
    /// The same with twice the capacity.
    would_hit_at_2x,
    /// SETs of keys that were evicted, or not admitted, and still remembered: what adaptive eviction learns from.
    returned_keys,
    /// 1 if much was written since the store was opened, long ago, and nothing was found; then `note` says so.
    unused,
}

impl PathStats {
    /// Of a path that opening left out.
    pub(crate) fn unavailable(path: &Path, reason: &str) -> Self {
        let (path, reason) = (path.to_owned(), reason.to_owned());
        Self { path, trouble: reason.clone(), reason, ..Self::default() }
    }

    /// What is at several paths, as if they were one; those that are not in use do not count.
    pub(crate) fn of_all(all: &[Self]) -> Self {
        let geometry = Geometry { direct: true, ..Geometry::default() };
        let mut total = Self { in_use: true, geometry, ..Self::default() };
        let mut engines: Vec<&str> = Vec::new();
        for one in all.iter().filter(|one| one.in_use) {
            if !engines.contains(&one.engine.as_str()) {
                engines.push(&one.engine);
            }
            let (all, own) = (&mut total.geometry, one.geometry);
            all.direct &= own.direct;
            all.memory_alignment_bytes = all.memory_alignment_bytes.max(own.memory_alignment_bytes);
            total.add_numbers(one);
        }
        total.written_bytes = all.iter().map(|one| one.written_bytes).sum();
        total.engine = engines.join("; ");
        total
    }
}

/// How long operations of a class took in a phase, since the store was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// `get`, `set` or `delete`.
    pub class: &'static str,
    /// `wait` in the queue, `device`, or `total` from submit to answer.
    pub phase: &'static str,
    /// Upper bounds in microseconds, and how many operations took no longer.
    pub buckets: Vec<(u64, u64)>,
    /// Number of operations.
    pub count: u64,
    /// What they took together in microseconds, about.
    pub sum_us: u64,
}

/// State of the store at one moment.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Whole seconds since it was opened, by a clock that nobody sets.
    pub open_s: u64,
    /// What a chunk without uses is worth with `eviction: adaptive`, in doublings of uses; of namespaces without a quota.
    pub eviction_bonus: f64,
    /// The share of requests whose new chunks are stored; of namespaces without a quota. 1 without `admit: adaptive`.
    pub admitted_share: f64,
    /// Longest chunk this store takes.
    pub max_chunk_bytes: u64,
    /// Operations submitted and not yet completed.
    pub in_flight: u64,
    /// SETs that are not answered yet.
    pub set_queued_operations: u64,
    /// Their bytes.
    pub set_queued_bytes: u64,
    /// Bytes of registered memory.
    pub registered_bytes: u64,
    /// Transfers that were wholly in it, of `transfers`.
    pub transfers_fixed: u64,
    /// Threads that take work now and move its bytes.
    pub io_threads: u64,
    /// Whether it is closed, and in order.
    pub shutdown_clean: bool,
    /// Whether it is closed, and operations were dropped at the deadline.
    pub partial_flush: bool,
    /// Quantiles of latency in microseconds, by name: class, phase (`wait` in the queue, `device`, `total` from submit to
    /// answer), and quantile.
    pub latencies: Vec<(String, u64)>,
    /// All counters, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// What is at all paths in use together; its fields are those of [`Stats`] as well.
    pub total: PathStats,
    /// What is at each path.
    pub paths: Vec<PathStats>,
}

impl Deref for Stats {
    type Target = PathStats;

    fn deref(&self) -> &PathStats {
        &self.total
    }
}

/// Counters of one part of the store, by name.
pub(crate) type CounterGroup = Vec<(&'static str, u64)>;

impl Stats {
    /// What operators watch, in three groups whose names do not clash: `storage` (what became of chunks), `writer` (the
    /// queue of SETs), `lookup` (hits). Keys, or bytes where the name ends so. The names are those of the plan that this
    /// project started from.
    pub fn groups(&self) -> [(&'static str, CounterGroup); 3] {
        let of = |name: &str| {
            let found = self.counters.iter().find(|(other, _)| *other == name);
            debug_assert!(found.is_some(), "there is no counter {name}");
            found.map_or(0, |(_, value)| *value)
        };
        let storage = vec![
            ("ssd_save_success", of("set_stored")),
            ("ssd_save_fail", of("set_failed")),
            ("ssd_save_dedup_skip", of("set_unchanged")),
            ("ssd_save_not_admitted", of("set_not_admitted") + of("set_over_write_budget")),
            (
                "ssd_stale_index_cleaned",
                self.total.discarded_at_open + of("checksum_mismatch") + of("read_dropped"),
            ),
            ("ssd_hash_collision_detected", of("hash_collision")),
            ("ssd_evicted", of("evicted")),
            ("ssd_evicted_bytes", of("evicted_bytes")),
            ("ssd_expired", of("expired")),
            ("ssd_expired_bytes", of("expired_bytes")),
            ("ssd_written_bytes", of("written_bytes")),
            ("ssd_read_bytes", of("read_bytes")),
            ("ssd_used_bytes", self.total.used_bytes),
            ("ssd_capacity_bytes", self.total.capacity_bytes),
        ];
        let writer = vec![
            ("writer_enqueue_total", of("set_queued")),
            ("writer_enqueue_dedup_skip", of("set_coalesced")),
            ("writer_save_success", of("set_stored")),
            ("writer_save_fail", of("set_failed")),
            ("writer_queue_full", of("set_rejected_queue_full")),
            ("writer_retry_attempts", of("write_retries")),
            ("writer_retry_final_fail", of("write_retries_exhausted")),
        ];
        let lookup = vec![
            ("kv_lookup_hits", of("exists_hits")),
            ("kv_lookup_miss", of("exists_misses")),
            ("kv_promote_hits", of("get_hits")),
            ("kv_promote_fail", of("get_misses")),
            ("kv_lookup_would_hit_at_1_5x", self.total.would_hit_at_1_5x),
            ("kv_lookup_would_hit_at_2x", self.total.would_hit_at_2x),
        ];
        [("storage", storage), ("writer", writer), ("lookup", lookup)]
    }
}
