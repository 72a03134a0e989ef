//! Counters and state. Each is named and described once, here: `stats()` has the same names, and `make reference` makes
//! docs/reference/metrics.md of the descriptions.

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
    ($($(#[doc = $meaning:literal])+ $name:ident,)+) => {
        /// What happened since the store was opened.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[doc = $meaning])+ pub $name: Counter,)+ }

        impl Counters {
            /// Every counter by name.
            pub(crate) fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }
        }
    };
}

counters! {
    /// GETs that loaded their chunk.
    get_hits,
    /// GETs that did not, for any reason.
    get_misses,
    /// Of `get_misses`, those past `load_deadline_ms` or on a stuck disk.
    get_late,
    /// SETs written.
    set_stored,
    /// SETs of bytes that were stored already.
    set_unchanged,
    /// SETs whose key was deleted before they were done.
    set_deleted,
    /// SETs accepted.
    set_queued,
    /// Of `set_unchanged`, those joined with a queued SET.
    set_coalesced,
    /// SETs that failed, with any code below.
    set_failed,
    /// Code `queue_full`.
    set_rejected_queue_full,
    /// Code `no_space`.
    set_no_space,
    /// Code `quota_full`.
    set_quota_full,
    /// Code `too_long`.
    set_too_long,
    /// Code `collision`.
    set_collision,
    /// Code `unavailable`.
    set_unavailable,
    /// Code `io`.
    set_io_error,
    /// Code `closed`.
    set_closed,
    /// Code `abandoned`.
    set_abandoned,
    /// Keys that lookups found (EXISTS or prefix).
    exists_hits,
    /// Keys that they did not find.
    exists_misses,
    /// Keys removed by DELETE.
    deleted,
    /// DELETEs of absent keys.
    delete_absent,
    /// Payload loaded.
    read_bytes,
    /// Payload written.
    written_bytes,
    /// Payload copied through bounce buffers.
    bounced_bytes,
    /// Corrupt chunks, dropped.
    checksum_mismatch,
    /// Chunks verified when idle, after a crash.
    verified_after_crash,
    /// GETs with an I/O error.
    read_errors,
    /// Chunks dropped after repeated I/O errors.
    read_dropped,
    /// SETs with an I/O error.
    write_errors,
    /// Writes retried (`persistent`, ENOSPC).
    write_retries,
    /// Writes that failed after all retries.
    write_retries_exhausted,
    /// Syncs (`persistent`) or flushes (`best_effort`).
    syncs,
    /// Syncs and flushes that failed.
    sync_errors,
    /// SETs that evicted a chunk to get an index record.
    index_full,
    /// Chunks evicted, for space or a quota.
    evicted,
    /// Disk space of evicted chunks.
    evicted_bytes,
    /// Sum of the idle times of evicted chunks.
    evicted_unused_ms,
    /// SETs that waited for an eviction.
    foreground_evictions,
    /// Chunks removed after `ttl`.
    expired,
    /// Payload of expired chunks.
    expired_bytes,
    /// Keys removed by `purge()`.
    purged,
    /// Leases beyond a quarter of the capacity.
    leases_refused,
    /// SETs declined by `admit`.
    set_not_admitted,
    /// Payload that `admit` declined.
    not_admitted_bytes,
    /// SETs declined by `write_budget`.
    set_over_write_budget,
    /// Payload that `write_budget` declined.
    over_write_budget_bytes,
    /// Keys with the digest of another key.
    hash_collision,
    /// Misses of chunks of another dtype, shape, weights or epoch.
    other_variant,
    /// Transfers sent to the device.
    transfers,
    /// Transfers continued or retried.
    transfers_resumed,
    /// Transfers of more than 1 s.
    transfers_slow,
    /// Loop iterations of the reactors; constant when idle.
    reactor_turns,
    /// Operations dropped by `close()` at its deadline.
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
    /// Its number; the drive's placement identifier is one less.
    pub stream: u8,
    /// `first_time` or `returned` chunks, those of `one_namespace`, or of `other_namespaces`.
    pub content: &'static str,
    /// Bytes written to it since the open, in whole blocks.
    pub written_bytes: u64,
}

macro_rules! path_stats {
    ($($(#[doc = $meaning:literal])+ $name:ident,)+) => {
        /// State of what is at one path, at one moment.
        #[derive(Clone, Debug, Default)]
        pub struct PathStats {
            /// The path, as given.
            pub path: PathBuf,
            /// Whether it is in use; else it counts in no sum.
            pub in_use: bool,
            /// Why it failed, else empty. The last path stays in use.
            pub reason: String,
            /// Current failure, else empty.
            pub trouble: String,
            /// Whether the drive answers nothing.
            pub stuck: bool,
            /// A slow drive, or a path without hits, else empty.
            pub note: String,
            /// Last error of the device or file system, else empty.
            pub last_error: String,
            /// Its Unix time in ms, else 0.
            pub last_error_ms: u64,
            /// Payload written since the open.
            pub written_bytes: u64,
            /// Write streams in use.
            pub write_streams: Vec<StreamUse>,
            /// I/O engine and its flags.
            pub engine: String,
            /// Geometry of the path.
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
    /// Payload stored.
    stored_bytes,
    /// Index records; a key of more than 168 bytes has several.
    records,
    /// Index pages with I/O errors; their chunks are misses.
    index_pages_lost,
    /// Disk space of chunks, in whole blocks.
    allocated_bytes,
    /// Configured capacity.
    capacity_bytes,
    /// Capacity in use, by data files and index.
    used_bytes,
    /// Data files.
    data_files,
    /// Disk space of leased chunks.
    leased_bytes,
    /// Disk space of pinned chunks.
    pinned_bytes,
    /// Limit of in-flight reads, and of writes.
    queue_depth,
    /// Limit of in-flight bytes of either.
    max_in_flight_bytes,
    /// Records that the open discarded.
    discarded_at_open,
    /// Misses of EXISTS and GET that 1.5 times the capacity would hit.
    would_hit_at_1_5x,
    /// Misses that twice the capacity would hit.
    would_hit_at_2x,
    /// SETs of remembered keys, which were evicted or not admitted.
    returned_keys,
    /// Paths that were written to and not hit in 1 h.
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
    /// Seconds since the open.
    pub open_s: u64,
    /// Bonus that `eviction: adaptive` learned (docs/explanation/eviction.md).
    pub eviction_bonus: f64,
    /// Share of requests whose new chunks `admit: adaptive` stores, else 1.
    pub admitted_share: f64,
    /// Longest chunk that a SET stores.
    pub max_chunk_bytes: u64,
    /// Unanswered operations.
    pub in_flight: u64,
    /// Unanswered SETs.
    pub set_queued_operations: u64,
    /// Payload of unanswered SETs.
    pub set_queued_bytes: u64,
    /// Registered memory.
    pub registered_bytes: u64,
    /// Of `transfers`, those inside registered memory.
    pub transfers_fixed: u64,
    /// I/O threads that work now.
    pub io_threads: u64,
    /// Whether the store was closed cleanly.
    pub shutdown_clean: bool,
    /// Whether its close dropped operations.
    pub partial_flush: bool,
    /// Quantiles of latency in microseconds, by name: class, phase as in [`LatencyHistogram`], and quantile.
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
    /// queue of SETs), `lookup` (hits). Keys, or bytes where the name ends so.
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
