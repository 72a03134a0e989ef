//! Reading the records of an index at open, on several threads: each takes a piece of the file at a time. The file is not changed
//! meanwhile, and what depends on order is decided afterwards, so the number of threads changes nothing.

use std::collections::HashMap;

use bytemuck::Zeroable;

use super::ghost_records::GhostRecords;
use super::report::Recovery;
use crate::base::block::Extent;
use crate::base::parallel::{OPENING, on_threads};
use crate::base::sync::Mutex;
use crate::base::system::prefetch_line;
use crate::evict::NamespaceId;
use crate::format::ghost_record::GhostRecord;
use crate::format::record::{NO_SLOT, Record, STATE_CHUNK, STATE_FREE, slots_for};
use crate::index::memory::map::Index;
use crate::index::memory::shard::entries::ChunkEntry;
use crate::key::{Digest, Namespace};
use crate::store::Store;

/// Records of a piece: a MiB.
const PIECE: usize = 4096;
/// Pieces for each thread, at least: fewer are read sooner than a thread starts.
const PIECES_FOR_THREAD: usize = 4;
const MOST_THREADS: usize = 16;

/// Threads that open an index of so many slots.
pub(crate) fn threads_for(slots: u32) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = slots as usize / (PIECE * PIECES_FOR_THREAD);
    wanted.clamp(1, processors.min(MOST_THREADS))
}

/// Which slots are used. The first one of a chunk has the chunk's generation.
pub(crate) struct Heads(Vec<u64>);

const USED: u64 = 1 << 63;

impl Heads {
    pub(crate) fn new(slots: u32) -> Self {
        Self(vec![0; slots as usize])
    }

    pub(crate) fn is_used(&self, slot: u32) -> bool {
        self.0[slot as usize] != 0
    }

    /// The generation of the chunk whose record is in `slot`; `None` if it was dropped.
    pub(crate) fn generation(&self, slot: u32) -> Option<u64> {
        Some(self.0[slot as usize]).filter(|head| *head != 0).map(|head| head & !USED)
    }

    pub(crate) fn prefetch(&self, slot: u32) {
        prefetch_line((&raw const self.0[slot as usize]).cast());
    }

    pub(crate) fn free(&mut self, slot: u32) {
        self.0[slot as usize] = 0;
    }
}

/// Where a chunk lies, and the slot of its record, in one number: its order is that of extents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Placed(u128);

impl Placed {
    fn new(Extent { file, first_block, blocks }: Extent, slot: u32) -> Self {
        let parts = [file, first_block, blocks, slot];
        Self(parts.iter().fold(0, |all, part| (all << 32) | u128::from(*part)))
    }

    pub(crate) fn extent(self) -> Extent {
        let part = |shift: u32| (self.0 >> shift) as u32;
        Extent { file: part(96), first_block: part(64), blocks: part(32) }
    }

    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// What one thread has read.
#[derive(Default)]
struct Read {
    placed: Vec<Placed>,
    newest: u64,
    /// Whole records whose key goes on in further slots.
    long: Vec<u32>,
    torn: Vec<u32>,
    out_of_range: Vec<u32>,
    expired: Vec<u32>,
    ghosts: GhostRecords,
    namespaces: HashMap<u64, NamespaceId>,
    last_namespace: Option<(u64, NamespaceId)>,
}

impl<S: Send> Index<S> {
    /// Reads all records. The entries of whole ones whose extent is there are in their shards then, and nothing leads to them
    /// yet. Returns where these chunks lie, sorted for each thread, the highest generation, and the ghosts. The other records are
    /// gone.
    pub(crate) fn read_records(
        &self,
        store: &dyn Store,
        oldest_ms: u64,
        threads: usize,
        heads: &mut Heads,
        recovery: &mut Recovery,
    ) -> (Vec<Vec<Placed>>, u64, GhostRecords) {
        let pieces = Mutex::new((0_u32..).step_by(PIECE).zip(heads.0.chunks_mut(PIECE)));
        let expected = self.table.record_slots() as usize / threads;
        let mut all = on_threads(OPENING, threads, || {
            let (mut read, mut records) = (Read::default(), vec![Record::zeroed(); PIECE]);
            read.placed.reserve(expected);
            while let Some((first, heads)) = { pieces.lock().next() } {
                let records = &mut records[..heads.len()];
                self.table.read_from(first, records);
                self.read_piece((first, records, heads), store, oldest_ms, &mut read);
            }
            read.placed.sort_unstable();
            read
        });
        let mut long: Vec<u32> = all.iter_mut().flat_map(|read| read.long.drain(..)).collect();
        long.sort_unstable();
        let mut late = Read::default();
        long.into_iter().for_each(|slot| self.enter_long(slot, heads, &mut late));
        late.placed.sort_unstable();
        all.push(late);
        for read in &all {
            let lists = [&read.torn, &read.out_of_range, &read.expired];
            recovery.torn += read.torn.len() as u64;
            recovery.out_of_range += read.out_of_range.len() as u64;
            recovery.expired += read.expired.len() as u64;
            lists.into_iter().flatten().for_each(|slot| self.table.wipe(*slot));
        }
        let newest = all.iter().map(|read| read.newest).max().unwrap_or(0);
        let mut ghosts = GhostRecords::default();
        all.iter_mut().for_each(|read| ghosts.merge(std::mem::take(&mut read.ghosts)));
        (all.into_iter().map(|read| read.placed).collect(), newest, ghosts)
    }

    fn read_piece(
        &self,
        (first, records, heads): (u32, &[Record], &mut [u64]),
        store: &dyn Store,
        oldest_ms: u64,
        read: &mut Read,
    ) {
        let (mut whole, slots) = (Vec::new(), (first..).zip(records));
        for (slot, record) in slots.filter(|(_, record)| record.state != STATE_FREE) {
            let is_chunk = record.state == STATE_CHUNK;
            match record.is_torn() || is_chunk && !self.has_key(slot, record) {
                true => read.torn.push(slot),
                false if is_chunk => whole.push((slot, record)),
                false => GhostRecord::of(record).iter().for_each(|one| read.ghosts.add(one)),
            }
        }
        let extents: Vec<(Extent, Digest)> =
            whole.iter().map(|(_, record)| (record.extent(), record.digest())).collect();
        for ((slot, record), is_there) in whole.into_iter().zip(store.contains_each(&extents)) {
            match is_there {
                false => read.out_of_range.push(slot),
                true if record.last_used_ms() < oldest_ms => read.expired.push(slot),
                true if slots_for(record.key_length.into()) > 1 => read.long.push(slot),
                true => {
                    heads[(slot - first) as usize] = USED | record.generation;
                    self.enter_entry(slot, record, read);
                }
            }
        }
    }

    /// Whether all parts of the key of a whole record are there.
    fn has_key(&self, slot: u32, record: &Record) -> bool {
        match slots_for(record.key_length.into()) {
            1 => record.next_slot == NO_SLOT,
            _ => self.table.slots_of(slot, record).is_some(),
        }
    }

    /// A part of a key belongs to one record: a second one that leads to it is damage.
    fn enter_long(&self, slot: u32, heads: &mut Heads, read: &mut Read) {
        let record = self.table.read(slot);
        let slots = self.table.slots_of(slot, &record);
        let free = |slots: &Vec<u32>| slots.iter().all(|slot| !heads.is_used(*slot));
        let Some(slots) = slots.filter(free) else { return read.torn.push(slot) };
        slots.into_iter().for_each(|part| heads.0[part as usize] = USED);
        heads.0[slot as usize] = USED | record.generation;
        self.enter_entry(slot, &record, read);
    }

    fn enter_entry(&self, slot: u32, record: &Record, read: &mut Read) {
        let (digest, extent) = (record.digest(), record.extent());
        let content = (record.chunk_checksum(), record.variant);
        let key_bytes = record.key_length.into();
        let mut entry = ChunkEntry::new(digest, extent, record.length_bytes, content, key_bytes);
        entry.last_use = record.last_use;
        entry.namespace = self.namespace_of(record, read);
        entry.note_slot(slot);
        self.shard(digest).1.entries.insert(entry);
        read.placed.push(Placed::new(extent, slot));
        read.newest = read.newest.max(record.generation);
    }

    fn namespace_of(&self, record: &Record, read: &mut Read) -> NamespaceId {
        if let Some((fingerprint, id)) = read.last_namespace
            && fingerprint == record.namespace
        {
            return id;
        }
        let name = || {
            let key = self.table.key(record).unwrap_or_default();
            Namespace::of(&key).name()
        };
        let add = || self.eviction_index.lock().namespace((record.namespace, name));
        let id = *read.namespaces.entry(record.namespace).or_insert_with(add);
        read.last_namespace = Some((record.namespace, id));
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_indexes_are_read_by_one_thread_and_large_ones_by_some() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let share = (PIECE * PIECES_FOR_THREAD) as u32;
        assert_eq!(threads_for(0), 1);
        assert_eq!(threads_for(2 * share - 1), 1);
        assert_eq!(threads_for(2 * share), processors.min(2));
        assert_eq!(threads_for(u32::MAX), processors.min(MOST_THREADS));
    }

    #[test]
    fn a_slot_is_used_from_its_chunk_on_until_it_is_freed() {
        let mut heads = Heads::new(3);
        (heads.0[0], heads.0[1]) = (USED, USED | 7);
        assert_eq!([0, 1, 2].map(|slot| heads.is_used(slot)), [true, true, false]);
        assert_eq!([0, 1, 2].map(|slot| heads.generation(slot)), [Some(0), Some(7), None]);
        heads.free(1);
        assert_eq!((heads.is_used(1), heads.generation(1)), (false, None));
    }

    #[test]
    fn chunks_are_ordered_by_where_they_lie() {
        let placed = |file, first_block, blocks, slot| {
            let extent = Extent { file, first_block, blocks };
            let placed = Placed::new(extent, slot);
            assert_eq!((placed.extent(), placed.slot()), (extent, slot));
            placed
        };
        let most = u32::MAX;
        let sorted = [
            placed(0, 0, 1, 2),
            placed(0, 0, most, 1),
            placed(0, 1, 1, 0),
            placed(0, most, most, most),
            placed(1, 0, 0, 0),
            placed(most, 3, 5, 9),
        ];
        assert!(sorted.is_sorted());
    }
}
