//! Reading the index file once at open: what is whole and fits the data becomes the map; the rest becomes free space.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entries::Entry;
use super::found::FoundIndex;
use super::map::{Index, Rules};
use super::shard::Suspect;
use super::table::Table;
use crate::block::Extent;
use crate::budget::Budget;
use crate::error::OpenError;
use crate::format::header::{Marks, Owner, Session};
use crate::format::record::{GENERATIONS_END, Record, STATE_CHUNK, STATE_FREE, slots_for};
use crate::store::Store;

/// Generations set aside for one session: more than one can write.
const SESSION_GENERATIONS: u64 = 1 << 32;

/// How many entries ahead of the one being entered its place in the map is fetched.
const PREFETCHED: usize = 16;

/// What opening found, and what it threw out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the last owner had closed the store; true for a new one.
    pub clean_shutdown: bool,
    /// Why the whole index was given up, if it was.
    pub reset: Option<String>,
    /// Whether the index was shorter than kvring leaves it; records behind its end are lost.
    pub truncated: bool,
    /// Chunks kept.
    pub kept: u64,
    /// Of these, chunks that an owner who did not close wrote: they are read and verified in idle moments.
    pub to_verify: u64,
    /// Records whose checksum or fields are wrong, or of whose key a part is missing.
    pub torn: u64,
    /// Pages of the index that the disk did not return; what they held is missed.
    pub unreadable_pages: u64,
    /// Records whose place is not there: outside its data file, or without the file that is the chunk's own.
    pub out_of_range: u64,
    /// Records whose place a younger one has as well.
    pub overlapping: u64,
    /// Older records of a key that has a younger one.
    pub duplicate: u64,
    /// Chunks that were not used for longer than `ttl`.
    pub expired: u64,
    /// Chunks whose keys belong to another path since paths were added, removed, or changed in capacity.
    pub moved: u64,
    /// Chunks of a path that was away while the others went on, so that they may be replaced or deleted since.
    pub stale: u64,
    /// Files that are no chunk's, and were removed: of SETs that did not complete, and DELETEs that were answered.
    pub orphans: u64,
}

impl Recovery {
    /// Records that were thrown out, whatever for.
    pub fn discarded(&self) -> u64 {
        self.torn
            + self.out_of_range
            + self.overlapping
            + self.duplicate
            + self.expired
            + self.moved
            + self.stale
    }
}

impl Recovery {
    /// What opening found at several paths, as if they were one.
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
        for (name, count) in [
            ("torn", self.torn),
            ("out of range", self.out_of_range),
            ("overlapping", self.overlapping),
            ("duplicate", self.duplicate),
            ("expired", self.expired),
            ("moved to other paths", self.moved),
            ("stale", self.stale),
        ] {
            if count > 0 {
                write!(formatter, ", {count} {name}")?;
            }
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

/// The index, the data, what was found, and what is to be verified.
type Opened<I> = (I, Box<dyn Store>, Recovery, Vec<Suspect>);

impl<G, S> Index<G, S> {
    /// Takes over the index file, then the data with `open_store`, and brings both into agreement.
    pub(crate) fn open(
        found: FoundIndex,
        budget: &Arc<Budget>,
        rules: Rules,
        now_ms: u64,
        open_store: impl FnOnce(&dyn Fn() -> HashMap<u32, u64>) -> Result<Box<dyn Store>, OpenError>,
    ) -> Result<Opened<Self>, OpenError> {
        let (table, found) = Table::open(found, Arc::clone(budget), now_ms)?;
        let store = open_store(&|| table.mean_use_by_file())?;
        let mut recovery =
            Recovery { reset: found.reset, truncated: found.truncated, ..Recovery::default() };
        if found.made_now && store.usage().data_files > 0 {
            recovery.reset = Some("it was missing or empty, though there are data files".into());
        }
        let oldest_ms = rules.ttl_ms.map_or(0, |ttl_ms| now_ms.saturating_sub(ttl_ms));
        let (mut candidates, mut free) = read_records(&table, &*store, oldest_ms, &mut recovery);
        drop_overlapping(&mut candidates, &table, &mut free, &mut recovery);
        recovery.unreadable_pages = table.lost_pages() as u64;

        // A session block that cannot be read says nothing of how the store was left.
        recovery.clean_shutdown = match found.session {
            Some(session) => session.clean == 1,
            None => candidates.is_empty() && recovery.reset.is_none(),
        };
        let newest = candidates.iter().map(|candidate| candidate.generation).max();
        let last_session = found.session.map_or(0, |session| session.generation);
        // Far above whatever the last owner can have given out since it wrote its session block.
        let mut first =
            (newest.unwrap_or(0).max(last_session) / SESSION_GENERATIONS + 1) * SESSION_GENERATIONS;
        if first >= GENERATIONS_END {
            // Nobody has stored so much: what says so was made up.
            for Candidate { slot, .. } in candidates.drain(..) {
                release(&table, slot, &mut free);
            }
            recovery.reset = Some("its generations are used up".into());
            first = SESSION_GENERATIONS;
        }
        let mut index = Self::new(table, first, rules);
        let unverified = found.session.map_or(0, |session| session.verify_from);
        let verify_from =
            if recovery.clean_shutdown { unverified } else { unverified.min(last_session) };
        let suspects: Vec<Suspect> = candidates
            .iter()
            .filter(|Candidate { entry, generation, .. }| {
                *generation >= verify_from && entry.checksum().is_some()
            })
            .map(|Candidate { entry, generation, .. }| Suspect {
                digest: entry.digest,
                generation: *generation,
            })
            .collect();
        if !suspects.is_empty() {
            index.verify_from.store(verify_from, Ordering::Relaxed);
        }
        // The machine went down with the store open: any record may be one that was cleared, and its place another's.
        let went_down = !recovery.clean_shutdown
            && found.session.is_none_or(|session| session.boot != index.rules.boot);
        index.distrust_below = AtomicU64::new(match went_down {
            true => first,
            false => found.session.map_or(0, |session| session.distrust_below.min(first)),
        });
        recovery.to_verify = suspects.len() as u64;
        let mut held: Vec<Extent> =
            candidates.iter().map(|candidate| candidate.entry.extent()).collect();
        index.reserve(candidates.len());
        let mut older_slots = Vec::new();
        for (position, candidate) in candidates.iter().enumerate() {
            if let Some(soon) = candidates.get(position + PREFETCHED) {
                index.prefetch(soon.entry.digest);
            }
            let Candidate { entry, slot, .. } = candidate;
            if index.is_crowded(entry.digest) && !index.table.is_of_its_key(*slot) {
                recovery.torn += 1;
                older_slots.push(*slot);
                held[position].blocks = 0;
                continue;
            }
            if let Some((slot, extent)) = index.restore(*entry, *slot) {
                recovery.duplicate += 1;
                older_slots.push(slot);
                if let Ok(position) = held.binary_search(&extent) {
                    held[position].blocks = 0;
                }
            }
        }
        held.retain(|extent| extent.blocks > 0);
        index.eviction_index.all_restored();
        recovery.kept = held.len() as u64;
        if !older_slots.is_empty() {
            // The older chunk may be durable and the younger not yet: it must not go first.
            index.table.write_anew();
            let synced = store.sync().and_then(|()| index.table.sync());
            if let Err(error) = synced {
                log::error!("cannot make durable what the last owner wrote: {error}");
            }
        }
        older_slots.into_iter().for_each(|slot| release(&index.table, slot, &mut free));
        recovery.orphans = store.rebuild(&held).map_err(|source| OpenError::Io {
            action: "remove files without a record from",
            path: index.table.index_file.path().to_owned(),
            source,
        })?;
        free.sort_unstable_by(|left, right| right.cmp(left));
        index.table.set_free(free);
        Ok((index, store, recovery, suspects))
    }

    /// A sync failed that should have made everything durable: no chunk counts as that any more before it has been read, nor for
    /// the next owner once the session is written, and the next sync writes all of the index.
    pub(crate) fn distrust_all(&self) {
        self.distrust_below.store(self.next_generation(), Ordering::Relaxed);
        self.table.write_anew();
    }

    /// Notes in the index file who has the store open, and whether it is closed in order.
    pub(crate) fn write_session(&self, now_ms: u64, clean: bool) -> std::io::Result<()> {
        let marks = Marks {
            generation: self.next_generation(),
            verify_from: self.verify_from.load(Ordering::Relaxed),
            distrust_below: self.distrust_below.load(Ordering::Relaxed),
        };
        let session = Session::new(&Owner::current(), now_ms, self.rules.boot, &marks, clean);
        self.table.write_session(&session)
    }
}

/// A chunk that may be held.
#[derive(Clone, Copy)]
struct Candidate {
    entry: Entry,
    generation: u64,
    slot: u32,
}

/// All whole records whose place is there, and the slots that hold nothing.
fn read_records(
    table: &Table,
    store: &dyn Store,
    oldest_ms: u64,
    recovery: &mut Recovery,
) -> (Vec<Candidate>, Vec<u32>) {
    let total = table.slot_count();
    let mut candidates = Vec::new();
    let mut used = vec![false; total as usize];
    for slot in 0..total {
        let record = table.read(slot);
        if record.state == STATE_FREE {
            used[slot as usize] = false;
            continue;
        }
        if record.state != STATE_CHUNK {
            continue;
        }
        // A part of a key belongs to one record: a second head that leads to it is damage.
        let unshared = |slots: &Vec<u32>| slots.iter().all(|slot| !used[*slot as usize]);
        let Some(slots) = whole(table, slot, &record).filter(unshared) else {
            recovery.torn += 1;
            table.wipe(slot);
            continue;
        };
        if !store.contains(record.extent(), record.digest()) {
            recovery.out_of_range += 1;
            table.wipe(slot);
            continue;
        }
        if record.last_used_ms() < oldest_ms {
            recovery.expired += 1;
            table.wipe(slot);
            continue;
        }
        slots.into_iter().for_each(|slot| used[slot as usize] = true);
        candidates.push(Candidate {
            entry: entry_of(&record),
            generation: record.generation,
            slot,
        });
    }
    let free = (0..total).filter(|slot| !used[*slot as usize]).collect();
    (candidates, free)
}

/// All slots of a record that is intact and makes sense.
fn whole(table: &Table, slot: u32, record: &Record) -> Option<Vec<u32>> {
    if record.is_sensible() { table.key_slots(slot, record, |_| ()) } else { None }
}

fn entry_of(record: &Record) -> Entry {
    let mut entry =
        Entry::new(record.digest(), record.extent(), record.length_bytes, record.chunk_checksum());
    (entry.slots, entry.last_use) = (slots_for(record.key_length.into()) as u8, record.last_use);
    entry
}

/// Sorts by place; where two claim the same block, the younger keeps it.
fn drop_overlapping(
    candidates: &mut Vec<Candidate>,
    table: &Table,
    free: &mut Vec<u32>,
    recovery: &mut Recovery,
) {
    candidates.sort_unstable_by_key(|candidate| candidate.entry.extent());
    let mut kept = 0;
    for position in 0..candidates.len() {
        let candidate = candidates[position];
        let extent = candidate.entry.extent();
        let mut survives = true;
        while let Some(last) = candidates[..kept].last()
            && last.entry.data_file == extent.file
            && last.entry.extent().end_block() > u64::from(extent.first_block)
        {
            recovery.overlapping += 1;
            if last.generation > candidate.generation {
                survives = false;
                break;
            }
            release(table, last.slot, free);
            kept -= 1;
        }
        if survives {
            candidates[kept] = candidate;
            kept += 1;
        } else {
            release(table, candidate.slot, free);
        }
    }
    candidates.truncate(kept);
}

fn release(table: &Table, slot: u32, free: &mut Vec<u32>) {
    let record = table.read(slot);
    let slots = table.key_slots(slot, &record, |_| ()).unwrap_or_else(|| vec![slot]);
    slots.iter().for_each(|slot| table.wipe(*slot));
    free.extend(slots);
}
