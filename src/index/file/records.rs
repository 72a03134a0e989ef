//! Records of the index: writing them, and reading them back.

#![allow(unsafe_code, reason = "records are in a mapping")]

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Zeroable;

use super::changes::Change;
use super::table::{ChunkFields, Reservation, Table};
use crate::base::system::prefetch_line;
use crate::format::header::HEADER_BYTES;
use crate::format::record::{
    KEY_PART_BYTES, NO_SLOT, RECORD_BYTES, Record, STATE_CHUNK, STATE_FREE, STATE_KEY_PART,
    slots_for, use_word,
};
use crate::key::Digest;

const CACHE_LINE_BYTES: usize = 64;

impl Table {
    /// Writes the record of a chunk, and returns its slot. Once it is in the file, the next open finds it.
    pub(crate) fn publish(
        &self,
        reservation: &Reservation,
        content: &ChunkFields,
        key: &str,
    ) -> u32 {
        let slots = &reservation.slots;
        // The further parts first: a record that can be found is complete.
        for number in (0..slots.len()).rev() {
            let mut record = Record::zeroed();
            record.state = STATE_KEY_PART;
            record.digest = content.digest.0;
            record.generation = content.generation;
            record.length_bytes = number as u64;
            if number == 0 {
                record.last_use = use_word(content.created_ms, 0);
                record.state = STATE_CHUNK;
                record.key_length = key.len() as u16;
                record.length_bytes = content.length_bytes;
                record.created_ms = content.created_ms;
                record.data_file = content.extent.file;
                record.first_block = content.extent.first_block;
                record.set_chunk_checksum(content.checksum);
                record.namespace = content.namespace;
                record.variant = content.variant;
            }
            record.next_slot = slots.get(number + 1).copied().unwrap_or(NO_SLOT);
            let part = key.as_bytes().chunks(KEY_PART_BYTES).nth(number).unwrap_or_default();
            record.key[..part.len()].copy_from_slice(part);
            record.checksum = record.computed_checksum();
            self.change(Change::Write(slots[number], Arc::new(record)));
        }
        slots[0]
    }

    /// Frees the record in `slot`, and the further parts of its key.
    pub(crate) fn clear(&self, slot: u32) {
        let head = self.read(slot);
        let mut next = slot;
        for _ in 0..=crate::key::MAX_KEY_BYTES / KEY_PART_BYTES {
            if next >= self.record_slots() {
                break;
            }
            let record = self.read(next);
            // Only what belongs to this record: a damaged link must not free another's.
            let belongs = record.digest == head.digest && record.generation == head.generation;
            if next != slot && !(belongs && record.state == STATE_KEY_PART) {
                break;
            }
            // Before the slot is free: changes of its next record are queued behind this one.
            self.change(Change::Invalidate(next));
            self.free.lock().give_back(next);
            next = record.next_slot;
        }
    }

    /// Makes the record in `slot` one that the next open does not find; its key can still be compared, and the slot stays taken.
    pub(crate) fn invalidate(&self, slot: u32) {
        let mut record = self.read(slot);
        (record.state, record.checksum) = (STATE_FREE, 0);
        // The whole record, as it is still read.
        self.change(Change::Write(slot, Arc::new(record)));
    }

    /// Marks the record in `slot` as free, but not the slot: for recovery, which collects free slots itself.
    pub(crate) fn wipe(&self, slot: u32) {
        // SAFETY: inside the file; recovery runs alone.
        unsafe { self.record(slot).write(Record::zeroed()) };
    }

    /// Prefetches what [`Table::holds`] reads into the processor's cache.
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

    pub(crate) fn digest(&self, slot: u32) -> Digest {
        if let Some(record) = self.changes.unwritten.get(slot) {
            return record.digest();
        }
        // SAFETY: inside the file; the caller holds the lock of the shard that owns this record.
        Digest(unsafe { (&raw const (*self.record(slot)).digest).read() })
    }

    /// Whether the record in `slot` has exactly this key.
    pub(crate) fn key_is(&self, slot: u32, key: &str) -> bool {
        let unwritten = self.changes.unwritten.get(slot);
        let (key_length, first_part) = match &unwritten {
            Some(record) => (record.key_length, &record.key),
            None => {
                let record = self.record(slot);
                // SAFETY: inside the file; the caller holds the lock of the shard that owns this record, and nothing of it is
                // unwritten, so nobody writes these fields while the reference lives.
                unsafe { ((*record).key_length, &(*record).key) }
            }
        };
        if usize::from(key_length) != key.len() {
            return false;
        }
        if key.len() <= KEY_PART_BYTES {
            return first_part[..key.len()] == *key.as_bytes();
        }
        self.key(&self.read(slot)).is_some_and(|stored| stored == key)
    }

    /// The exact key of `record`; `None` if a part of it is missing or damaged.
    pub(crate) fn key(&self, record: &Record) -> Option<String> {
        record.read_key(|slot| self.read_if_there(slot))
    }

    /// Whether all parts of the key of the record in `slot` are there.
    pub(crate) fn has_whole_key(&self, slot: u32) -> bool {
        let record = self.read(slot);
        record.visit_key(slot, |slot| self.read_if_there(slot), |_, _| ())
    }

    /// Whether the digest in the record in `slot` is that of its key.
    pub(crate) fn is_of_its_key(&self, slot: u32) -> bool {
        let record = self.read(slot);
        self.key(&record).is_some_and(|key| Digest::of(&key) == record.digest())
    }

    /// All slots of `record`, `slot` first; `None` if a part of its key is missing or damaged.
    pub(crate) fn slots_of(&self, slot: u32, record: &Record) -> Option<Vec<u32>> {
        let mut slots = Vec::with_capacity(slots_for(record.key_length.into()));
        let read = |slot| self.read_if_there(slot);
        record.visit_key(slot, read, |slot, _| slots.push(slot)).then_some(slots)
    }

    /// Reads records from `slot` on, while no change of them is on its way. Those of pages that cannot be read are zeros; nothing
    /// is stored there any more.
    pub(crate) fn read_from(&self, slot: u32, records: &mut [Record]) {
        let start = HEADER_BYTES as usize + slot as usize * RECORD_BYTES;
        let file = &self.index_file;
        self.mapping.read(&file.file, file.offset, start, bytemuck::cast_slice_mut(records));
    }

    fn read_if_there(&self, slot: u32) -> Option<Record> {
        (slot < self.record_slots()).then(|| self.read(slot))
    }

    /// A copy of the record in `slot`.
    pub(crate) fn read(&self, slot: u32) -> Record {
        if let Some(record) = self.changes.unwritten.get(slot) {
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

    /// The uses of a chunk as the file has them, which may have to come from the disk; needs no lock.
    pub(crate) fn use_word(&self, slot: u32) -> u64 {
        // SAFETY: inside the file, aligned to 8 bytes as every record is; while the store is open the word is only ever accessed
        // through this atomic.
        let word = unsafe { AtomicU64::from_ptr(&raw mut (*self.record(slot)).last_use) };
        word.load(Ordering::Relaxed)
    }

    fn record(&self, slot: u32) -> *mut Record {
        let offset = HEADER_BYTES as usize + slot as usize * RECORD_BYTES;
        debug_assert!(offset + RECORD_BYTES <= self.mapping.length_bytes());
        // SAFETY: the offset is inside the mapping: slots are handed out only up to its end.
        unsafe { self.mapping.as_mut_ptr().add(offset).cast() }
    }
}
