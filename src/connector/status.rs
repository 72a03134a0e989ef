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
        let cache = &self.volumes.all[0].shared.cache;
        let bonus = cache.index.quotas.common_bonus();
        let share = if self.config.admits_by_share() { bonus.admitted_share() } else { 1.0 };
        Stats {
            open_s: cache.age_s().into(),
            eviction_bonus: bonus.levels().into(),
            admitted_share: share.into(),
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
        let (index, health) = (&shared.cache.index, &shared.health);
        let Limits { queue_depth, max_in_flight_bytes, .. } = shared.limits();
        let [would_hit_at_1_5x, would_hit_at_2x] = index.would_hit();
        let without_locks = PathStats {
            path: volume.path().to_owned(),
            in_use: is_live,
            engine: describe(&shared.engines()),
            geometry: shared.cache.store.geometry(),
            keys: index.keys(),
            stored_bytes: index.stored_bytes(),
            index_pages_lost: index.lost_pages() as u64,
            capacity_bytes: volume.space.capacity_bytes(),
            used_bytes: volume.space.used_bytes(),
            queue_depth: queue_depth as u64,
            max_in_flight_bytes,
            discarded_at_open: volume.recovery.discarded(),
            would_hit_at_1_5x,
            would_hit_at_2x,
            returned_keys: index.returned_keys(),
            written_bytes: shared.cache.counters.written_bytes.get(),
            write_streams: shared.cache.streams.uses(),
            unused: shared.cache.unused().is_some().into(),
            ..PathStats::default()
        };
        if !is_owner {
            return without_locks;
        }
        let usage = shared.cache.store.usage();
        let (leased_bytes, pinned_bytes) = index.leased_and_pinned_bytes();
        let kept = shared.cache.directory_watch.reason().or_else(|| index.changes.refusal());
        let reason = kept.map(|reason| reason.to_string()).or_else(|| health.reason());
        let silence = shared.responsiveness.silence();
        let stuck = silence.is_some();
        let trouble = reason
            .clone()
            .or(silence)
            .or_else(|| index.unreadable().map(|error| error.to_string()))
            .or_else(|| health.trouble());
        let note = shared.responsiveness.note(Instant::now()).or_else(|| shared.cache.unused());
        let since_1970 = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (last_error, last_error_ms) =
            health.last_error().map_or_else(Default::default, |error| {
                (error.text, since_1970(error.at).as_millis() as u64)
            });
        PathStats {
            reason: reason.unwrap_or_default(),
            trouble: trouble.unwrap_or_default(),
            stuck,
            note: note.unwrap_or_default(),
            last_error,
            last_error_ms,
            records: u64::from(index.used_records()),
            allocated_bytes: usage.allocated_bytes,
            data_files: usage.data_files,
            leased_bytes,
            pinned_bytes,
            ..without_locks
        }
    }
}
