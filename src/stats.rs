//! Counters. Each is named once, here; `stats()` shows them under the same names.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $meaning:literal])+ $name:ident,)+) => {
        /// What happened since the store was opened.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[doc = $meaning])+ pub $name: Counter,)+ }

        impl Counters {
            /// Every counter by name.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }
        }
    };
}

counters! {
    /// Keys asked for by GET that were returned.
    get_hits,
    /// Keys asked for by GET that were not there, or not in that length.
    get_misses,
    /// Keys stored by SET.
    set_stored,
    /// Keys of SET that were already held with the same bytes.
    set_unchanged,
    /// Keys of SET that failed.
    set_failed,
    /// Keys of SET that were refused because too much is queued; they count as failed too.
    set_rejected_queue_full,
    /// Keys found by EXISTS.
    exists_hits,
    /// Keys not found by EXISTS.
    exists_misses,
    /// Keys removed by DELETE.
    deleted,
    /// Keys named by DELETE that were not held.
    delete_absent,
    /// Payload bytes read.
    read_bytes,
    /// Payload bytes written.
    written_bytes,
    /// Payload bytes that went through a bounce block instead of straight from or to caller memory.
    bounced_bytes,
    /// Chunks that did not match their checksum when they were read: each was dropped, and its GET answered as a miss.
    checksum_mismatch,
    /// Chunks read in idle moments because their owner had not closed the store.
    verified_after_crash,
    /// Chunks that the device could not read: each was dropped, and its GET answered as a miss.
    read_errors,
    /// SETs that failed in the device.
    write_errors,
    /// Writes tried again, in `persistent`.
    write_retries,
    /// Barriers given to the device, in `persistent`.
    syncs,
    /// Groups of SETs that could not be made durable.
    sync_errors,
    /// SETs that found no room.
    store_full,
    /// Keys put in quarantine because another key has the same digest.
    hash_collision,
    /// Transfers given to the device, again after a short one too.
    transfers,
    /// Transfers that had to be continued or tried again.
    transfers_resumed,
    /// Times the reactor went to the kernel and came back; stands still while nothing is asked.
    reactor_turns,
    /// Operations dropped by close() at its deadline.
    abandoned,
}

/// State of the store at one moment.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Engine that moves the bytes, with the flags it got.
    pub engine: String,
    /// Whether transfers bypass the page cache.
    pub direct_io: bool,
    /// Alignment in bytes that caller memory needs to be used in place.
    pub memory_alignment_bytes: u64,
    /// Longest chunk this store takes.
    pub max_chunk_bytes: u64,
    /// Keys held.
    pub keys: u64,
    /// Payload bytes held.
    pub held_bytes: u64,
    /// Records of the index in use: one for each key, more for keys of over 168 bytes.
    pub records: u64,
    /// Pages of the index that the disk did not return since it was opened; what they held is missed.
    pub index_pages_lost: u64,
    /// Bytes of the data files that hold chunks, rounding to blocks included.
    pub allocated_bytes: u64,
    /// Configured capacity.
    pub capacity_bytes: u64,
    /// What data files and index take of it.
    pub used_bytes: u64,
    /// Number of data files.
    pub data_files: u64,
    /// Operations submitted and not yet completed.
    pub in_flight: u64,
    /// SETs that are not answered yet.
    pub set_queued_operations: u64,
    /// Their bytes.
    pub set_queued_bytes: u64,
    /// Threads that move bytes.
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
}
