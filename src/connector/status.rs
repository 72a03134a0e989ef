//! The state of a store: `stats()`, its configuration, what recovery found.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Connector;
use super::engines::describe;
use super::volume::Volume;
use crate::batch::backlog::Amount;
use crate::config::Config;
use crate::index::Recovery;
use crate::reactor::Latencies;
use crate::schedule::Limits;
use crate::stats::{Counters, LatencyHistogram, PathStats, Stats};
use crate::store::StoreUsage;

impl Connector {
    /// What opening found and threw out, all paths together.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Options in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// State and counters now; in a fork of the owner without `records`, `allocated_bytes` and `data_files`.
    pub fn stats(&self) -> Stats {
        // In a fork, a lock that another thread held at that moment is held for ever: none is taken there.
        let is_owner = self.process_id == std::process::id();
        let queued = if is_owner { self.backlog.queued() } else { Amount::default() };
        let mut latencies = Latencies::new();
        let mut counters = Counters::default().snapshot();
        let mut paths = Vec::new();
        for (number, volume) in self.volumes.all.iter().enumerate() {
            paths.push(self.path_stats(volume, self.volumes.is_live(number), is_owner));
            if is_owner {
                volume.shared.add_latencies(&mut latencies);
            }
            let own = volume.shared.cache.counters.snapshot();
            counters.iter_mut().zip(own).for_each(|((_, sum), (_, own))| *sum += own);
        }
        let unavailable = self.volumes.unavailable.iter();
        paths.extend(unavailable.map(|one| PathStats::unavailable(&one.path, &one.reason)));
        let named = &self.config.paths;
        paths.sort_by_cached_key(|one| named.iter().position(|path| *path == one.path));
        let shutdown = self.shutdown.try_lock().and_then(|shutdown| *shutdown).unwrap_or_default();
        Stats {
            max_chunk_bytes: self.max_chunk_bytes(),
            in_flight: self.completions.unanswered(),
            shutdown_clean: shutdown.clean,
            partial_flush: shutdown.partial_flush,
            set_queued_operations: queued.operations,
            set_queued_bytes: queued.bytes,
            registered_bytes: self.memory.bytes(),
            transfers_fixed: self.memory.fixed_transfers(),
            io_threads: self.volumes.all.iter().map(|one| one.shared.running_count()).sum(),
            latencies: if is_owner { latencies.snapshot() } else { Vec::new() },
            counters,
            total: PathStats::of_all(&paths),
            paths,
        }
    }

    /// Latencies in buckets; none in a fork of the owner.
    pub fn latency_histograms(&self) -> Vec<LatencyHistogram> {
        let mut latencies = Latencies::new();
        if self.process_id == std::process::id() {
            let volumes = self.volumes.all.iter();
            volumes.for_each(|volume| volume.shared.add_latencies(&mut latencies));
        }
        latencies.histograms()
    }

    fn path_stats(&self, volume: &Volume, is_live: bool, is_owner: bool) -> PathStats {
        let shared = &volume.shared;
        let (index, geometry) = (&shared.cache.index, shared.cache.store.geometry());
        let Limits { queue_depth, max_in_flight_bytes, .. } = shared.limits();
        let [would_hit_at_1_5x, would_hit_at_2x] = index.would_hit();
        let (mut usage, mut records, mut reason) = (StoreUsage::default(), 0, None);
        let (mut leased_bytes, mut pinned_bytes) = (0, 0);
        if is_owner {
            usage = shared.cache.store.usage();
            records = u64::from(index.used_records());
            (leased_bytes, pinned_bytes) = index.leased_and_pinned_bytes();
            let kept = shared
                .cache
                .directory_watch
                .reason()
                .or_else(|| shared.cache.index.write_refusal());
            reason = kept.map(|reason| reason.to_string()).or_else(|| shared.health.reason());
        }
        let unreadable = || index.unreadable().map(|error| error.to_string());
        let last_error = is_owner.then(|| shared.health.last_error()).flatten();
        let since_1970 = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let trouble = is_owner.then(|| unreadable().or_else(|| shared.health.trouble())).flatten();
        let silence = is_owner.then(|| shared.responsiveness.silence()).flatten();
        let note = is_owner.then(|| shared.responsiveness.note(Instant::now())).flatten();
        PathStats {
            trouble: reason.clone().or(silence).or(trouble).unwrap_or_default(),
            note: note.unwrap_or_default(),
            last_error_ms: last_error
                .as_ref()
                .map_or(0, |error| since_1970(error.at).as_millis() as u64),
            last_error: last_error.map_or_else(String::new, |error| error.text),
            path: volume.path().to_owned(),
            in_use: is_live,
            reason: reason.unwrap_or_default(),
            engine: describe(&shared.engines()),
            geometry,
            keys: index.keys(),
            stored_bytes: index.stored_bytes(),
            records,
            index_pages_lost: index.lost_pages() as u64,
            allocated_bytes: usage.allocated_bytes,
            capacity_bytes: volume.space.capacity_bytes,
            used_bytes: volume.space.used_bytes(),
            data_files: usage.data_files,
            queue_depth: queue_depth as u64,
            max_in_flight_bytes,
            discarded_at_open: volume.recovery.discarded(),
            leased_bytes,
            pinned_bytes,
            would_hit_at_1_5x,
            would_hit_at_2x,
        }
    }
}
