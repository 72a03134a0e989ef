//! The memory-mapped sidecar: fixed-size records in one file that the page cache keeps through the death of the process.
//!
//! Who may touch a record: a slot that is handed out by `reserve` belongs to its holder; a published one belongs to the
//! shard of the map that its digest falls into, whose lock is held for every access. What they change is written behind them
//! (see [`changes`](super::changes)), and until then read there, so a record in the mapping does not change under who reads it, but for
//! its first word, its uses, which is an atomic. The file is grown before a slot
//! behind its old end is handed out, so no access goes past the end of the file.

use std::collections::HashMap;
use std::fs::File;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytemuck::Zeroable;

use super::backing::Backing;
use super::changes::{Change, Changes};
use super::first_page::start_anew;
use super::found::FoundIndex;
use super::lookup::prefetch_line;
use super::mapping::Mapping;
use super::session::read_session;
use super::slots::FreeSlots;
use super::space::take_reserve;
use crate::block::Extent;
use crate::budget::Budget;
use crate::checksum::PayloadChecksum;
use crate::error::{OpenError, StoreError};
use crate::fork::ClosedOnFork;
use crate::format::header::{GROWTH_BYTES, HEADER_BYTES, Session};
use crate::format::record::{
    KEY_PART_BYTES, NO_SLOT, RECORD_BYTES, Record, STATE_CHUNK, STATE_FREE, STATE_KEY_PART,
    slots_for, use_word,
};
use crate::key::Digest;
use crate::store::index_share_bytes;
use crate::sync::Mutex;

const CACHE_LINE_BYTES: usize = 64;

/// Slots for one chunk's record: one, and one more for each further part of a long key.
#[derive(Debug)]
pub(crate) struct Reservation {
    slots: Vec<u32>,
}

/// What a record says of its chunk, besides its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) digest: Digest,
    pub(crate) namespace: u64,
    pub(crate) extent: Extent,
    pub(crate) length_bytes: u64,
    pub(crate) generation: u64,
    pub(crate) checksum: Option<PayloadChecksum>,
    pub(crate) created_ms: u64,
}

/// How the sidecar was found when it was opened.
#[derive(Debug)]
pub(crate) struct Found {
    /// Session block of the last owner, if it is whole.
    pub(crate) session: Option<Session>,
    /// Why everything in it was given up, if it was.
    pub(crate) reset: Option<String>,
    /// It was missing or empty, and not because the device of the store was formatted just now.
    pub(crate) made_now: bool,
    /// It is not as long as it was left.
    pub(crate) truncated: bool,
}

/// The sidecar.
pub(crate) struct Table {
    pub(super) backing: Backing,
    /// The same for the syncs of the second reactor and those behind it; see [`Table::prepare_syncs`].
    pub(super) sync_files: OnceLock<Vec<(ClosedOnFork, File)>>,
    pub(super) mapping: Mapping,
    pub(super) changes: Changes,
    /// Taken by whoever gives slots back, so never held for long.
    pub(super) free: Mutex<FreeSlots>,
    /// Bytes on disk that are reserved, of which the file is a part; changes only while it is held.
    pub(super) reserved: Mutex<u64>,
    /// After the file could not grow: when to try again, and why.
    pub(super) refusal: Mutex<Option<(Instant, StoreError)>>,
    /// Slots of the file, used or free.
    pub(super) total: AtomicU32,
    holes_told: AtomicUsize,
    pub(super) lacks_blocks: AtomicBool,
    /// The last change of a record could not be written.
    pub(super) refuses_writes: AtomicBool,
    pub(super) budget: Arc<Budget>,
}

impl Table {
    /// Takes over what was found, and makes what is missing. A damaged one is started anew.
    pub(crate) fn open(
        found: FoundIndex,
        budget: Arc<Budget>,
        now_ms: u64,
    ) -> Result<(Self, Found), OpenError> {
        let FoundIndex { place, backing, length: found, mut reset, .. } = found;
        let backing = match backing {
            Some(backing) => {
                backing.make_private();
                backing
            }
            None => Backing::make(&place)?,
        };
        let io_error = |action| {
            let path = backing.path().to_owned();
            move |source| OpenError::Io { action, path, source }
        };
        if let Some(bytes) = found.filter(|_| reset.is_none())
            && !budget.reserve(bytes, budget.capacity_bytes() / 2)
        {
            reset = Some(format!(
                "its {bytes} bytes no longer fit the capacity of {}",
                budget.capacity_bytes()
            ));
        }
        let fresh = reset.is_some();
        if fresh {
            budget.reserve(HEADER_BYTES, 0);
            start_anew(&backing, now_ms).map_err(io_error("write"))?;
        }
        let length = backing.length().map_err(io_error("read the length of"))?;
        let length = length.unwrap_or(HEADER_BYTES);
        let mapping = backing.map(length, budget.capacity_bytes())?;
        let session = match fresh {
            true => None,
            false => read_session(backing.file(), backing.offset()),
        };
        let reserved = length + take_reserve(&backing, length, &budget).map_err(io_error("cut"))?;
        let total = ((length - HEADER_BYTES) / RECORD_BYTES as u64) as u32;
        let made_now = reset.as_ref().is_some_and(String::is_empty) && !place.is_new();
        let reset = backing.missing.clone().or(reset.filter(|reason| !reason.is_empty()));
        let truncated = !(length - HEADER_BYTES).is_multiple_of(GROWTH_BYTES);
        let table = Self {
            backing,
            sync_files: OnceLock::new(),
            mapping,
            changes: Changes::default(),
            free: Mutex::default(),
            reserved: Mutex::new(reserved),
            refusal: Mutex::default(),
            total: AtomicU32::new(total),
            holes_told: AtomicUsize::new(0),
            refuses_writes: AtomicBool::new(false),
            lacks_blocks: AtomicBool::new(false),
            budget,
        };
        table.unshare();
        Ok((table, Found { session, reset, made_now, truncated }))
    }

    /// Slots of the file, used or free.
    pub(crate) fn slot_count(&self) -> u32 {
        self.total.load(Ordering::Acquire)
    }

    /// Unix time in ms at which the chunks of each data file were used on average, by its number.
    pub(crate) fn mean_use_by_file(&self) -> HashMap<u32, u64> {
        let mut sums: HashMap<u32, (u128, u128)> = HashMap::new();
        let records = (0..self.slot_count()).map(|slot| self.read(slot));
        for record in records.filter(|record| record.state == STATE_CHUNK && record.is_intact()) {
            let sum = sums.entry(record.data_file).or_default();
            *sum = (sum.0 + u128::from(record.last_used_ms()), sum.1 + 1);
        }
        sums.into_iter().map(|(file, (sum, count))| (file, (sum / count) as u64)).collect()
    }

    /// Slots that there are at least once the data files have taken what they may.
    pub(crate) fn assured_slots(&self) -> u64 {
        let assured_bytes = index_share_bytes(self.budget.capacity_bytes());
        u64::from(self.slot_count()).max(assured_bytes / RECORD_BYTES as u64)
    }

    /// Slots that are taken.
    pub(crate) fn used_slots(&self) -> u32 {
        let free = self.free.lock();
        self.slot_count() - free.count()
    }

    /// Declares which slots are free; called once, by recovery. They are handed out from the end.
    pub(crate) fn set_free(&self, slots: Vec<u32>) {
        let mut free = self.free.lock();
        slots.into_iter().for_each(|slot| free.give_back(slot));
    }

    /// Slots for a key of `key_length` bytes. It waits for nothing.
    ///
    /// # Errors
    /// `StoreError` when there are none: [`StoreError::Growing`] where [`Table::grow`] may make some.
    pub(crate) fn reserve(&self, key_length: usize) -> Result<Reservation, StoreError> {
        let needed = slots_for(key_length);
        let mut slots = Vec::with_capacity(needed);
        // Lowest first, so that the parts of a long key follow each other.
        while slots.len() < needed {
            let slot = self.free.lock().take();
            match slot {
                // It is taken for good, like everything in its page.
                Some(slot) if self.is_lost(slot) => {}
                Some(slot) => slots.push(slot),
                None => {
                    self.release(Reservation { slots });
                    return Err(self.why_full());
                }
            }
        }
        Ok(Reservation { slots })
    }

    /// Whether the page of `slot` was lost: nothing stored there reaches the disk. It is read, so that a page which cannot be
    /// read is found now.
    pub(super) fn is_lost(&self, slot: u32) -> bool {
        std::hint::black_box(self.use_word(slot));
        self.is_in_hole(slot)
    }

    /// Whether the page of `slot` is known to be lost.
    pub(super) fn is_in_hole(&self, slot: u32) -> bool {
        self.mapping.is_hole(HEADER_BYTES as usize + slot as usize * RECORD_BYTES)
    }

    /// Pages of the sidecar that the disk did not return.
    pub(crate) fn lost_pages(&self) -> usize {
        let count = self.mapping.hole_count();
        let told = self.holes_told.swap(count, Ordering::Relaxed);
        if count > told {
            log::error!(
                "{} pages of {} cannot be read: what they held is missed",
                count - told,
                self.backing.path().display()
            );
        }
        count
    }

    /// Takes unused slots back.
    pub(crate) fn release(&self, reservation: Reservation) {
        let mut free = self.free.lock();
        reservation.slots.into_iter().rev().for_each(|slot| free.give_back(slot));
    }

    /// Writes the record of a chunk. When it is in the file, a process that reads that finds it.
    pub(crate) fn publish(&self, reservation: &Reservation, content: &Content, key: &str) -> u32 {
        let parts: Vec<&[u8]> = key.as_bytes().chunks(KEY_PART_BYTES).collect();
        // The further parts first: a record that can be found is complete.
        for number in (1..reservation.slots.len()).rev() {
            let mut part = Record::zeroed();
            part.state = STATE_KEY_PART;
            part.digest = content.digest.0;
            part.generation = content.generation;
            part.length_bytes = number as u64;
            self.write(reservation.slots[number], part, &reservation.slots, number, parts[number]);
        }
        let mut record = Record::zeroed();
        record.last_use = use_word(content.created_ms, 0);
        record.state = STATE_CHUNK;
        record.key_length = key.len() as u16;
        record.digest = content.digest.0;
        record.generation = content.generation;
        record.length_bytes = content.length_bytes;
        record.created_ms = content.created_ms;
        record.data_file = content.extent.file;
        record.first_block = content.extent.first_block;
        record.set_chunk_checksum(content.checksum);
        record.namespace = content.namespace;
        self.write(
            reservation.slots[0],
            record,
            &reservation.slots,
            0,
            parts.first().copied().unwrap_or_default(),
        );
        reservation.slots[0]
    }

    fn write(&self, slot: u32, mut record: Record, slots: &[u32], number: usize, key_part: &[u8]) {
        record.next_slot = slots.get(number + 1).copied().unwrap_or(NO_SLOT);
        record.key[..key_part.len()].copy_from_slice(key_part);
        record.checksum = record.computed_checksum();
        self.change(Change::Write(slot, Arc::new(record)));
    }

    /// Frees the record in `slot`, and the further parts of its key.
    pub(crate) fn clear(&self, slot: u32) {
        let head = self.read(slot);
        let mut next = slot;
        for _ in 0..=crate::key::MAX_KEY_BYTES / KEY_PART_BYTES {
            if next >= self.slot_count() {
                break;
            }
            let record = self.read(next);
            // Only what belongs to this record: a damaged link must not free another's.
            let belongs = record.digest == head.digest && record.generation == head.generation;
            if next != slot && !(belongs && record.state == STATE_KEY_PART) {
                break;
            }
            // Before it is anybody else's, whose changes come behind it.
            self.change(Change::Invalidate(next));
            self.free.lock().give_back(next);
            next = record.next_slot;
        }
    }

    /// Makes the record in `slot` one that no start will find; its key can still be compared, and the slot stays taken.
    pub(crate) fn invalidate(&self, slot: u32) {
        let mut record = self.read(slot);
        (record.state, record.checksum) = (STATE_FREE, 0);
        // Whole, as it is still read.
        self.change(Change::Write(slot, Arc::new(record)));
    }

    /// Marks the record in `slot` as free without giving the slot out: for recovery, which collects free slots itself.
    pub(crate) fn wipe(&self, slot: u32) {
        // SAFETY: inside the file; recovery runs alone.
        unsafe { self.record(slot).write(Record::zeroed()) };
    }

    /// Brings what [`Table::holds`] looks at into the processor's cache, without waiting for it.
    pub(crate) fn prefetch(&self, slot: u32, key_length: usize) {
        let key_end = offset_of!(Record, key) + key_length.min(KEY_PART_BYTES);
        for line in (0..key_end).step_by(CACHE_LINE_BYTES) {
            prefetch_line(self.record(slot).cast::<u8>().wrapping_add(line));
        }
    }

    /// Whether the record in `slot` has this digest and exactly this key.
    pub(crate) fn holds(&self, slot: u32, digest: Digest, key: &str) -> bool {
        self.digest(slot) == digest && self.key_is(slot, key)
    }

    /// Digest in the record in `slot`.
    pub(crate) fn digest(&self, slot: u32) -> Digest {
        if let Some(record) = self.changes.unwritten(slot) {
            return record.digest();
        }
        // SAFETY: inside the file; the caller holds the lock of the shard that owns this record.
        Digest(unsafe { (&raw const (*self.record(slot)).digest).read() })
    }

    /// Whether the record in `slot` has exactly this key.
    pub(crate) fn key_is(&self, slot: u32, key: &str) -> bool {
        let unwritten = self.changes.unwritten(slot);
        let (key_length, first_part) = match &unwritten {
            Some(record) => (record.key_length, &record.key),
            None => {
                let record = self.record(slot);
                // SAFETY: inside the file; the caller holds the lock of the shard that owns this record, and nothing of it is
                // unwritten, so nobody writes these fields while the reference lives.
                unsafe { ((*record).key_length, &(*record).key) }
            }
        };
        let key = key.as_bytes();
        if usize::from(key_length) != key.len() {
            return false;
        }
        if key.len() <= KEY_PART_BYTES {
            return first_part[..key.len()] == *key;
        }
        self.key(slot, &self.read(slot)).is_some_and(|stored| stored == key)
    }

    /// The exact key of `record`, which lies in `slot`; `None` if a part of it is missing or damaged.
    pub(crate) fn key(&self, slot: u32, record: &Record) -> Option<Vec<u8>> {
        let length = usize::from(record.key_length);
        let mut key = Vec::with_capacity(length);
        self.key_slots(slot, record, |part| {
            let missing = length - key.len();
            key.extend_from_slice(&part.key[..missing.min(KEY_PART_BYTES)]);
        })?;
        (key.len() == length).then_some(key)
    }

    /// Whether the digest in the record in `slot` is that of its key.
    pub(crate) fn is_of_its_key(&self, slot: u32) -> bool {
        let record = self.read(slot);
        let key = self.key(slot, &record);
        let key = key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
        key.is_some_and(|key| Digest::of(key) == record.digest())
    }

    /// All slots of `record`'s key, `slot` first; `None` if a part is missing or damaged.
    pub(crate) fn key_slots(
        &self,
        slot: u32,
        record: &Record,
        mut visit: impl FnMut(&Record),
    ) -> Option<Vec<u32>> {
        let parts = slots_for(usize::from(record.key_length));
        let total = self.slot_count();
        let mut slots = vec![slot];
        visit(record);
        let mut next = record.next_slot;
        for number in 1..parts {
            if next >= total {
                return None;
            }
            let part = self.read(next);
            let belongs = part.state == STATE_KEY_PART
                && part.is_intact()
                && part.digest == record.digest
                && part.generation == record.generation
                && part.length_bytes == number as u64;
            if !belongs {
                return None;
            }
            visit(&part);
            slots.push(next);
            next = part.next_slot;
        }
        (next == NO_SLOT).then_some(slots)
    }

    /// A copy of the record in `slot`.
    pub(crate) fn read(&self, slot: u32) -> Record {
        if let Some(record) = self.changes.unwritten(slot) {
            return *record;
        }
        let mut record = Record::zeroed();
        let rest = &mut bytemuck::bytes_of_mut(&mut record)[size_of::<u64>()..];
        // SAFETY: inside the file; the caller holds the lock of the shard that owns this record, or runs alone, and nothing of it
        // is unwritten, so that nobody writes anything of it but its first word.
        unsafe {
            let source = self.record(slot).cast::<u8>().add(size_of::<u64>());
            source.copy_to_nonoverlapping(rest.as_mut_ptr(), rest.len());
        }
        record.last_use = self.use_word(slot);
        record
    }

    /// What the file says of the uses of a chunk, which may have to come from the disk; needs no lock.
    pub(super) fn use_word(&self, slot: u32) -> u64 {
        self.last_use(slot).load(Ordering::Relaxed)
    }

    fn last_use(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: inside the file, aligned to 8 bytes as every record is; while the store is open the word is only ever accessed
        // through this atomic.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.record(slot)).last_use) }
    }

    fn record(&self, slot: u32) -> *mut Record {
        let offset = HEADER_BYTES as usize + slot as usize * RECORD_BYTES;
        debug_assert!(offset + RECORD_BYTES <= self.mapping.length_bytes());
        // SAFETY: the offset is inside the mapping: slots are handed out only up to its end.
        unsafe { self.mapping.as_mut_ptr().add(offset).cast() }
    }
}
