//! Reading the index file at open: whole records that fit the data become the map, the rest becomes free space.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::entries::ChunkEntry;
use super::found::FoundIndex;
use super::map::Index;
use super::shard::ChunkVersion;
use super::table::{IndexState, Table};
use crate::block::Extent;
use crate::capacity::Budget;
use crate::config::Config;
use crate::error::OpenError;
use crate::evict::Quotas;
use crate::format::header::{Owner, Session};
use crate::format::record::{GENERATIONS_END, STATE_CHUNK};
use crate::format::sealed;
use crate::store::Store;

/// Generations of one session: more than it can use.
const SESSION_GENERATIONS: u64 = 1 << 32;

/// Chunks are prefetched into the processor's cache so many before they are entered.
const PREFETCHED: usize = 16;

/// What opening found and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the last owner had closed the store; true for a new one.
    pub clean_shutdown: bool,
    /// Why the index was started anew, if it was.
    pub reset: Option<String>,
    /// Whether the index was cut short; records behind its end are lost.
    pub truncated: bool,
    /// Chunks kept.
    pub kept: u64,
    /// Of these, chunks written by an owner that did not close the store: they are read and verified in idle moments.
    pub to_verify: u64,
    /// Records whose checksum or fields are wrong, or of whose key a part is missing.
    pub torn: u64,
    /// Pages of the index that could not be read; the chunks of their records are missed.
    pub unreadable_pages: u64,
    /// Records whose extent does not exist: outside its data file, or without its chunk file.
    pub out_of_range: u64,
    /// Records whose extent overlaps with that of a younger one.
    pub overlapping: u64,
    /// Older records of a key that has a younger one.
    pub duplicate: u64,
    /// Chunks that were not used for longer than `ttl`.
    pub expired: u64,
    /// Chunks whose keys belong to another path since paths were added, removed, or changed in capacity.
    pub moved: u64,
    /// Chunks of a path that was unavailable while the others went on: they may have been replaced or deleted since.
    pub stale: u64,
    /// Files without a record that were removed: of SETs that did not complete, and DELETEs that were answered.
    pub orphans: u64,
}

impl Recovery {
    /// Records that were dropped, for any reason.
    pub fn discarded(&self) -> u64 {
        self.dropped().iter().map(|(_, count)| count).sum()
    }

    fn dropped(&self) -> [(&'static str, u64); 7] {
        [
            ("torn", self.torn),
            ("out of range", self.out_of_range),
            ("overlapping", self.overlapping),
            ("duplicate", self.duplicate),
            ("expired", self.expired),
            ("moved to other paths", self.moved),
            ("stale", self.stale),
        ]
    }

    /// The sum over several paths.
    pub(crate) fn of_all<'all>(all: impl IntoIterator<Item = &'all Self>) -> Self {
        let mut sum = Self { clean_shutdown: true, ..Self::default() };
        for one in all {
            sum.clean_shutdown &= one.clean_shutdown;
            sum.reset = match (sum.reset.take(), &one.reset) {
                (Some(before), Some(reason)) => Some(format!("{before}; {reason}")),
                (before, reason) => before.or_else(|| reason.clone()),
            };
            sum.truncated |= one.truncated;
            sum.kept += one.kept;
            sum.to_verify += one.to_verify;
            sum.torn += one.torn;
            sum.unreadable_pages += one.unreadable_pages;
            sum.out_of_range += one.out_of_range;
            sum.overlapping += one.overlapping;
            sum.duplicate += one.duplicate;
            sum.expired += one.expired;
            sum.orphans += one.orphans;
            sum.moved += one.moved;
            sum.stale += one.stale;
        }
        sum
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shutdown = if self.clean_shutdown { "clean" } else { "unclean" };
        write!(formatter, "{} chunks after {shutdown} shutdown", self.kept)?;
        for (name, count) in self.dropped().iter().filter(|(_, count)| *count > 0) {
            write!(formatter, ", {count} {name}")?;
        }
        if self.orphans > 0 {
            write!(formatter, "; {} files without a record removed", self.orphans)?;
        }
        if self.unreadable_pages > 0 {
            write!(formatter, "; {} pages of the index cannot be read", self.unreadable_pages)?;
        }
        if self.truncated {
            write!(formatter, "; the index was cut short")?;
        }
        match &self.reset {
            Some(reason) => write!(formatter, "; the index was started anew: {reason}"),
            None => Ok(()),
        }
    }
}

/// The index, the data, what was found, and the chunks that are to be verified.
type OpenedIndex<I> = (I, Box<dyn Store>, Recovery, Vec<ChunkVersion>);

impl<G, S> Index<G, S> {
    /// Takes over the index file, then the data with `open_store`, and brings both into agreement.
    pub(crate) fn open(
        found: FoundIndex,
        budget: &Arc<Budget>,
        config: &Config,
        quotas: &Quotas,
        open_store: impl FnOnce(&Table) -> Result<Box<dyn Store>, OpenError>,
    ) -> Result<OpenedIndex<Self>, OpenError> {
        let now_ms = config.clock.now_ms();
        let (table, found) = Table::open(found, Arc::clone(budget), now_ms)?;
        let IndexState { session, reset, truncated } = found;
        let store = open_store(&table)?;
        let mut recovery = Recovery { reset, truncated, ..Recovery::default() };
        if recovery.reset.as_ref().is_some_and(String::is_empty) {
            let has_files = store.usage().data_files > 0;
            let reason = "it was missing or empty, though there are data files";
            recovery.reset = has_files.then(|| reason.into());
        }
        let oldest_ms = config.ttl.map_or(0, |ttl| now_ms.saturating_sub(ttl.as_millis() as u64));
        let mut used = vec![false; table.slot_count() as usize];
        let mut chunks = read_records(&table, &*store, oldest_ms, &mut used, &mut recovery);
        drop_overlapping(&mut chunks, &table, &mut used, &mut recovery);
        recovery.unreadable_pages = table.lost_pages() as u64;

        // An unreadable session block does not tell how the store was left.
        recovery.clean_shutdown = match &session {
            Some(session) => session.clean == 1,
            None => chunks.is_empty() && recovery.reset.is_none(),
        };
        let first = first_generation(&chunks, session.as_ref()).unwrap_or_else(|| {
            // No store has had so many: the number was made up.
            chunks.drain(..).for_each(|chunk| release(&table, chunk.slot, &mut used));
            recovery.reset = Some("its generations are used up".into());
            SESSION_GENERATIONS
        });
        let index = Self::new(table, first, config.clone(), quotas);
        let unverified = index.unverified(&chunks, session.as_ref(), recovery.clean_shutdown);
        recovery.to_verify = unverified.len() as u64;
        let (stored, older_slots) = index.restore_all(&chunks, &mut recovery);
        recovery.kept = stored.len() as u64;
        if !older_slots.is_empty() {
            // The older chunk may be durable and the younger not yet: it must not go first.
            index.table.write_anew();
            let synced = store.sync().and_then(|()| index.table.sync());
            if let Err(error) = synced {
                log::error!("cannot make durable what the last owner wrote: {error}");
            }
        }
        older_slots.into_iter().for_each(|slot| release(&index.table, slot, &mut used));
        let action = "remove files without a record from";
        recovery.orphans = store.rebuild(&stored).map_err(index.table.index_file.error(action))?;
        index.table.set_free(&used);
        Ok((index, store, recovery, unverified))
    }

    /// Sets which chunks are to be verified and which are untrusted. Returns the former.
    fn unverified(
        &self,
        chunks: &[RecoveredChunk],
        session: Option<&Session>,
        clean_shutdown: bool,
    ) -> Vec<ChunkVersion> {
        let (unverified, last) =
            session.map_or((0, 0), |session| (session.verify_from, session.generation));
        let verify_from = if clean_shutdown { unverified } else { unverified.min(last) };
        let unverified: Vec<ChunkVersion> = chunks
            .iter()
            .filter(|chunk| chunk.generation >= verify_from && chunk.entry.checksum().is_some())
            .map(|chunk| ChunkVersion { digest: chunk.entry.digest, generation: chunk.generation })
            .collect();
        if !unverified.is_empty() {
            self.verify_from.store(verify_from, Ordering::Relaxed);
        }
        // The machine went down with the store open: any record may be one that was cleared, and its extent another's.
        let went_down =
            !clean_shutdown && session.is_none_or(|session| session.boot != self.config.boot);
        let untrusted_before = match went_down {
            true => self.first_generation,
            false => {
                session.map_or(0, |session| session.untrusted_before.min(self.first_generation))
            }
        };
        self.untrusted_before.store(untrusted_before, Ordering::Relaxed);
        unverified
    }

    /// Enters the chunks, which are sorted by extent. Returns the extents of those that stay, and the slots of the others.
    fn restore_all(
        &self,
        chunks: &[RecoveredChunk],
        recovery: &mut Recovery,
    ) -> (Vec<Extent>, Vec<u32>) {
        let mut stored: Vec<Extent> = chunks.iter().map(|chunk| chunk.entry.extent()).collect();
        self.reserve(chunks.len());
        let mut older_slots = Vec::new();
        for (position, chunk) in chunks.iter().enumerate() {
            if let Some(soon) = chunks.get(position + PREFETCHED) {
                self.prefetch(soon.entry.digest);
            }
            if self.is_crowded(chunk.entry.digest) && !self.table.is_of_its_key(chunk.slot) {
                recovery.torn += 1;
                older_slots.push(chunk.slot);
                stored[position].blocks = 0;
            } else if let Some((slot, extent)) = self.restore(chunk.entry, chunk.slot) {
                recovery.duplicate += 1;
                older_slots.push(slot);
                if let Ok(position) = stored.binary_search(&extent) {
                    stored[position].blocks = 0;
                }
            }
        }
        stored.retain(|extent| extent.blocks > 0);
        self.eviction_index.lock().all_restored();
        (stored, older_slots)
    }

    /// A sync of everything failed: no chunk is trusted before it has been read, nor by the next owner once the session is
    /// written, and the next sync writes all of the index.
    pub(crate) fn trust_none(&self) {
        self.untrusted_before.store(self.next_generation(), Ordering::Relaxed);
        self.table.write_anew();
    }

    /// Writes who has the store open, and whether it is closed in order.
    pub(crate) fn write_session(&self, now_ms: u64, clean: bool) -> std::io::Result<()> {
        let session = Session {
            clean: clean.into(),
            generation: self.next_generation(),
            verify_from: self.verify_from.load(Ordering::Relaxed),
            untrusted_before: self.untrusted_before.load(Ordering::Relaxed),
            boot: self.config.boot,
            ..Session::of(&Owner::current(), now_ms)
        };
        self.table.write_session(&sealed(session))
    }
}

#[derive(Clone, Copy)]
struct RecoveredChunk {
    entry: ChunkEntry,
    generation: u64,
    slot: u32,
}

/// Far above whatever the last owner can have given out since it wrote its session block; `None` if there are none left.
fn first_generation(chunks: &[RecoveredChunk], session: Option<&Session>) -> Option<u64> {
    let newest = chunks.iter().map(|chunk| chunk.generation).max().unwrap_or(0);
    let last = session.map_or(0, |session| session.generation);
    let first = (newest.max(last) / SESSION_GENERATIONS + 1) * SESSION_GENERATIONS;
    (first < GENERATIONS_END).then_some(first)
}

/// All whole records whose extent is there. Their slots are `used`.
fn read_records(
    table: &Table,
    store: &dyn Store,
    oldest_ms: u64,
    used: &mut [bool],
    recovery: &mut Recovery,
) -> Vec<RecoveredChunk> {
    let mut chunks = Vec::new();
    for slot in 0..table.slot_count() {
        let record = table.read(slot);
        if record.state != STATE_CHUNK {
            continue;
        }
        let slots = if record.is_sensible() { table.slots_of(slot, &record) } else { None };
        // A part of a key belongs to one record: a second head that leads to it is damage.
        let slots = slots.filter(|slots| slots.iter().all(|slot| !used[*slot as usize]));
        let dropped = match slots {
            None => Some(&mut recovery.torn),
            _ if !store.contains(record.extent(), record.digest()) => {
                Some(&mut recovery.out_of_range)
            }
            _ if record.last_used_ms() < oldest_ms => Some(&mut recovery.expired),
            _ => None,
        };
        if let Some(count) = dropped {
            *count += 1;
            table.wipe(slot);
            continue;
        }
        slots.into_iter().flatten().for_each(|slot| used[slot as usize] = true);
        let (extent, checksum) = (record.extent(), record.chunk_checksum());
        let key_bytes = record.key_length.into();
        let mut entry =
            ChunkEntry::new(record.digest(), extent, record.length_bytes, checksum, key_bytes);
        entry.last_use = record.last_use;
        chunks.push(RecoveredChunk { entry, generation: record.generation, slot });
    }
    chunks
}

/// Sorts by extent; of two that overlap the younger stays.
fn drop_overlapping(
    chunks: &mut Vec<RecoveredChunk>,
    table: &Table,
    used: &mut [bool],
    recovery: &mut Recovery,
) {
    chunks.sort_unstable_by_key(|chunk| chunk.entry.extent());
    let mut kept = 0;
    for position in 0..chunks.len() {
        let chunk = chunks[position];
        let extent = chunk.entry.extent();
        let mut survives = true;
        while let Some(last) = chunks[..kept].last()
            && last.entry.extent().file == extent.file
            && last.entry.extent().end_block() > u64::from(extent.first_block)
        {
            recovery.overlapping += 1;
            if last.generation > chunk.generation {
                survives = false;
                break;
            }
            release(table, last.slot, used);
            kept -= 1;
        }
        if survives {
            chunks[kept] = chunk;
            kept += 1;
        } else {
            release(table, chunk.slot, used);
        }
    }
    chunks.truncate(kept);
}

fn release(table: &Table, slot: u32, used: &mut [bool]) {
    let record = table.read(slot);
    for slot in table.slots_of(slot, &record).unwrap_or_else(|| vec![slot]) {
        table.wipe(slot);
        used[slot as usize] = false;
    }
}
