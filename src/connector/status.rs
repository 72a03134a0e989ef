//! What a store tells of itself.

use std::sync::atomic::Ordering;

use super::Connector;
use crate::backlog::Amount;
use crate::config::Config;
use crate::index::Recovery;
use crate::stats::Stats;
use crate::store::StoreUsage;

impl Connector {
    /// What opening found and threw out.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Options in force.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// State and counters now; in a fork of the owner without `records`, `allocated_bytes` and `data_files`.
    pub fn stats(&self) -> Stats {
        let geometry = self.shared.store.geometry();
        // In a fork, a lock that another thread held at that moment is held for ever: none is taken there.
        let is_owner = self.process_id == std::process::id();
        let usage = if is_owner { self.shared.store.usage() } else { StoreUsage::default() };
        let queued = if is_owner { self.backlog.queued() } else { Amount::default() };
        let (leased_bytes, pinned_bytes) = match is_owner {
            true => self.shared.index.guarded_bytes(self.shared.config.clock.now_ms()),
            false => (0, 0),
        };
        let (would_hit_at_1_5x, would_hit_at_2x) = self.shared.index.would_hit();
        let records = if is_owner { self.shared.index.table().used_slots() } else { 0 };
        Stats {
            engine: self.engine.clone(),
            direct_io: geometry.direct,
            memory_alignment_bytes: geometry.memory_alignment_bytes as u64,
            geometry,
            max_chunk_bytes: self.shared.store.max_chunk_bytes(),
            keys: self.shared.index.keys(),
            held_bytes: self.shared.index.held_bytes(),
            records: u64::from(records),
            index_pages_lost: self.shared.index.table().lost_pages() as u64,
            allocated_bytes: usage.allocated_bytes,
            capacity_bytes: self.budget.capacity_bytes(),
            used_bytes: self.budget.used_bytes(),
            data_files: usage.data_files,
            discarded_at_open: self.recovery.discarded(),
            leased_bytes,
            pinned_bytes,
            would_hit_at_1_5x,
            would_hit_at_2x,
            in_flight: self.completions.unanswered(),
            shutdown_clean: self
                .shutdown
                .try_lock()
                .is_some_and(|done| done.is_some_and(|done| done.clean)),
            partial_flush: self
                .shutdown
                .try_lock()
                .is_some_and(|done| done.is_some_and(|done| done.partial_flush)),
            set_queued_operations: queued.operations,
            set_queued_bytes: queued.bytes,
            io_threads: self.shared.config.io_threads as u64,
            latencies: if is_owner { self.shared.latencies() } else { Vec::new() },
            counters: self.shared.counters.snapshot(),
        }
    }
}
