//! From records that were read at open to chunks that are found: of two that overlap, or have one key, the younger stays.

use super::recovery_scan::{Heads, Placed};
use super::report::Recovery;
use crate::base::block::Extent;
use crate::base::parallel::{OPENING, merged, on_threads};
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::config::Eviction;
use crate::evict::{ChunkRef, NodeId};
use crate::format::record::use_parts;
use crate::index::file::table::Table;
use crate::index::memory::map::Index;
use crate::index::memory::shard::lookup::Located;
use crate::index::memory::shard::{ChunkVersion, Shard};

/// Chunks ahead of which memory is brought into the processor's cache.
const PREFETCHED: usize = 16;

/// What linking the entries of shards brought.
#[derive(Default)]
pub(crate) struct Linked {
    /// Slots of records that are not needed any more.
    pub(crate) dropped: Vec<u32>,
    forged: u64,
    duplicate: u64,
    keys: u64,
    bytes: u64,
    pub(crate) unverified: Vec<(Extent, ChunkVersion)>,
}

/// Of two chunks that overlap the younger stays. Returns those that stay, in the order of their extents.
pub(crate) fn drop_overlapping(
    parts: &[Vec<Placed>],
    table: &Table,
    heads: &mut Heads,
    recovery: &mut Recovery,
) -> Vec<Placed> {
    let mut kept: Vec<Placed> = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    for placed in merged(parts.iter().map(Vec::as_slice).collect()) {
        let extent = placed.extent();
        let mut survives = true;
        while let Some(last) = kept.last()
            && last.extent().file == extent.file
            && last.extent().end_block() > u64::from(extent.first_block)
        {
            recovery.overlapping += 1;
            if heads.generation(last.slot()) > heads.generation(placed.slot()) {
                survives = false;
                break;
            }
            release(table, last.slot(), heads);
            kept.pop();
        }
        match survives {
            true => kept.push(placed),
            false => release(table, placed.slot(), heads),
        }
    }
    kept
}

/// Frees a record, and the parts of its key.
pub(crate) fn release(table: &Table, slot: u32, heads: &mut Heads) {
    let record = table.read(slot);
    for slot in table.slots_of(slot, &record).unwrap_or_else(|| vec![slot]) {
        table.wipe(slot);
        heads.free(slot);
    }
}

impl<S: Send> Index<S> {
    /// Makes the entries whose records are used found by their digests, on several threads, and removes the others. Those of
    /// `verify_from` on are to be verified.
    pub(crate) fn link_all(
        &self,
        heads: &Heads,
        verify_from: u64,
        threads: usize,
        recovery: &mut Recovery,
    ) -> Linked {
        let next = AtomicUsize::new(0);
        let all = on_threads(OPENING, threads, || {
            let mut linked = Linked::default();
            while let Some(shard) = self.shards.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.link_shard(&mut shard.0.lock(), heads, verify_from, &mut linked);
            }
            linked
        });
        let mut sum = Linked::default();
        for mut linked in all {
            sum.dropped.append(&mut linked.dropped);
            sum.unverified.append(&mut linked.unverified);
            recovery.torn += linked.forged;
            recovery.duplicate += linked.duplicate;
            self.count(linked.keys as i64, linked.bytes as i64);
        }
        // As they lie on the device.
        sum.unverified.sort_unstable_by_key(|(extent, _)| *extent);
        sum
    }

    fn link_shard(
        &self,
        shard: &mut Shard<S>,
        heads: &Heads,
        verify_from: u64,
        linked: &mut Linked,
    ) {
        // In the order of slots, whichever thread came first with its entries.
        let entries = &mut shard.entries;
        let mut order: Vec<(u32, u32)> =
            (0..entries.end()).map(|number| (entries[number].take_slot(), number)).collect();
        order.sort_unstable();
        shard.lookup.reserve(order.len());
        for (at, &(record, entry)) in order.iter().enumerate() {
            if let Some((soon, _)) = order.get(at + PREFETCHED) {
                heads.prefetch(*soon);
            }
            let Some(generation) = heads.generation(record) else {
                shard.entries.remove(entry);
                continue;
            };
            let digest = shard.entries[entry].digest;
            if shard.lookup.is_crowded(digest.tag()) && !self.table.is_of_its_key(record) {
                linked.forged += 1;
                linked.dropped.push(record);
                shard.entries.remove(entry);
                continue;
            }
            if let Some(other) = shard.find(digest) {
                linked.duplicate += 1;
                if heads.generation(other.record) >= Some(generation) {
                    linked.dropped.push(record);
                    shard.entries.remove(entry);
                    continue;
                }
                linked.dropped.push(other.record);
                shard.unlink(other.entry);
                shard.entries.remove(other.entry);
            }
            shard.link(Located { entry, record });
        }
        for found in shard.lookup.iter() {
            let entry = &shard.entries[found.entry];
            linked.keys += 1;
            linked.bytes += u64::from(entry.length_bytes);
            let generation = heads.generation(found.record).unwrap_or_default();
            if generation >= verify_from && entry.checksum().is_some() {
                let version = ChunkVersion { digest: entry.digest, generation };
                linked.unverified.push((entry.extent(), version));
            }
        }
    }

    /// Enters all chunks that are found into the eviction index. `kept` has them in the order of their extents, among others.
    /// Returns their extents.
    pub(crate) fn restore_order(&self, kept: &[Placed], heads: &Heads) -> Vec<Extent> {
        let mut eviction_index = self.eviction_index.lock();
        let mut nodes: Vec<Option<NodeId>> = vec![None; self.table.record_slots() as usize];
        let mut by_use: Vec<(u64, u32, NodeId)> = Vec::with_capacity(kept.len());
        for (number, shard) in (0..).zip(&self.shards) {
            let Shard { lookup, entries, .. } = &mut *shard.0.lock();
            for Located { entry, record } in lookup.iter() {
                let chunk = ChunkRef { shard: number, entry };
                let entry = &mut entries[entry];
                let (used_ms, uses) = use_parts(entry.last_use);
                let moment = match self.config.eviction {
                    Eviction::Fifo => heads.generation(record).unwrap_or_default(),
                    _ => used_ms,
                };
                let node = eviction_index.add(chunk, entry.extent(), entry.namespace, uses);
                (entry.node, nodes[record as usize]) = (Some(node), Some(node));
                by_use.push((moment, record, node));
            }
        }
        by_use.sort_unstable();
        let chunk = |placed: &Placed| Some((nodes[placed.slot() as usize]?, placed.extent()));
        let by_extent = kept.iter().filter_map(chunk);
        eviction_index.order_restored(by_use.iter().map(|(.., node)| *node), by_extent.clone());
        by_extent.map(|(_, extent)| extent).collect()
    }
}
