//! The memory-mapped index file: fixed-size records in one file that the page cache keeps through the death of the process.
//!
//! A slot that `reserve` hands out belongs to the caller; a published one belongs to the shard of its digest, whose lock is held
//! for every access. Changes are written later (see [`changes`](super::changes)) and read there until then, so a record in the
//! mapping does not change while it is read, except for its first word, the uses, which is an atomic. The file grows before a
//! slot behind its old end is handed out, so no access goes past its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytesize::ByteSize;
use log::Level::{Error, Warn};

use super::changes::Changes;
use super::index_bytes::read_session;
use super::index_file::IndexFile;
use super::locked_index::LockedIndex;
use super::mapping::{MAX_HOLES, Mapping};
use super::slots::FreeSlots;
use crate::base::block::Extent;
use crate::base::buffer::Variant;
use crate::base::log_limit::LogLimit;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use crate::base::system::fork::ClosedOnFork;
use crate::error::{OpenError, StoreError};
use crate::format::header::{GROWTH_BYTES, HEADER_BYTES, Session};
use crate::format::record::{RECORD_BYTES, STATE_CHUNK, slots_for};
use crate::key::Digest;
use crate::space_account::SpaceAccount;
use crate::store::{FileUse, file_uses, index_share_bytes};

/// Slots for one chunk's record: one, and one more for each further part of a long key.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) slots: Vec<u32>,
    /// The record is on its way into the index file; the key does not find it yet.
    pub(crate) is_written: bool,
}

/// The fields of a record that tell of its chunk, without the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkFields {
    pub(crate) digest: Digest,
    pub(crate) namespace: u64,
    pub(crate) extent: Extent,
    pub(crate) length_bytes: u64,
    pub(crate) generation: u64,
    pub(crate) checksum: Option<u64>,
    pub(crate) variant: Variant,
    pub(crate) created_ms: u64,
}

pub(crate) struct IndexState {
    /// Session block of the last owner, if it is whole.
    pub(crate) session: Option<Session>,
    /// Why it was started anew, if it was. Empty if there was none, and not because the device of the store was formatted just now.
    pub(crate) reset: Option<String>,
    /// It is not as long as it was left.
    pub(crate) truncated: bool,
}

/// An index that takes more than one part in so many of the capacity is begun anew by an open.
pub(super) const OPENED_PART: u64 = 2;

/// What the log tells of failures, one for each reason.
pub(crate) struct TableLogs {
    holes: LogLimit,
    pub(crate) refusals: LogLimit,
    pub(crate) returns: LogLimit,
    pub(crate) unmarked: LogLimit,
}

impl Default for TableLogs {
    fn default() -> Self {
        Self {
            holes: LogLimit::new(Error, "pages of the index could not be read"),
            refusals: LogLimit::new(Error, "times the index could not be written"),
            returns: LogLimit::new(Warn, "times the index could be written again"),
            unmarked: LogLimit::new(Warn, "failed syncs may bring deleted chunks back"),
        }
    }
}

pub(crate) struct Table {
    pub(crate) index_file: IndexFile,
    /// The same for the syncs of the second reactor and those behind it; see [`Table::prepare_syncs`].
    pub(crate) sync_files: Mutex<Vec<ClosedOnFork>>,
    pub(crate) mapping: Mapping,
    pub(crate) changes: Changes,
    /// Never locked for long: giving slots back takes it.
    pub(crate) free: Mutex<FreeSlots>,
    /// Bytes on disk that are reserved, of which the file is a part.
    pub(crate) reserved: Mutex<u64>,
    /// After the file could not grow: when to try again, and why.
    pub(crate) refusal: Mutex<Option<(Instant, StoreError)>>,
    pub(crate) total: AtomicU32,
    holes_logged: AtomicUsize,
    pub(crate) logs: TableLogs,
    pub(crate) refuses_writes: AtomicBool,
    pub(crate) was_cut_short: AtomicBool,
    pub(crate) space: Arc<SpaceAccount>,
}

impl Table {
    /// Takes over what was found, and makes what is missing. A damaged one is started anew.
    pub(crate) fn open(
        found: LockedIndex,
        space: Arc<SpaceAccount>,
        now_ms: u64,
    ) -> Result<(Self, IndexState), OpenError> {
        let LockedIndex { place, index_file, length: found, mut reset, .. } = found;
        let (index_file, missing) = match index_file {
            Some(index_file) => (index_file, None),
            None => IndexFile::make(&place)?,
        };
        index_file.make_private();
        if let Some(bytes) = found.filter(|_| reset.is_none())
            && !space.reserve(bytes, space.capacity_bytes() / OPENED_PART)
        {
            reset = Some(format!(
                "its {} no longer fit the capacity of {}",
                ByteSize(bytes),
                ByteSize(space.capacity_bytes())
            ));
        }
        let session = if reset.is_some() {
            space.reserve(HEADER_BYTES, 0);
            index_file.start_anew(now_ms).map_err(index_file.error("write"))?;
            None
        } else {
            read_session(&index_file.file, index_file.offset)
        };
        let mut length = index_file.length()?.unwrap_or(HEADER_BYTES);
        let truncated = !(length - HEADER_BYTES).is_multiple_of(GROWTH_BYTES);
        if truncated {
            let repaired = index_file.repair_end(length, &space);
            length = repaired.map_err(index_file.error("truncate"))?;
        }
        let mapping = index_file.map(length, space.capacity_bytes())?;
        let reserve = index_file.take_reserve(length, &space);
        let reserved = length + reserve.map_err(index_file.error("truncate"))?;
        let total = ((length - HEADER_BYTES) / RECORD_BYTES as u64) as u32;
        let reset = missing.or(reset.filter(|reason| !reason.is_empty() || !place.is_new()));
        let table = Self {
            index_file,
            sync_files: Mutex::default(),
            mapping,
            changes: Changes::default(),
            free: Mutex::default(),
            reserved: Mutex::new(reserved),
            refusal: Mutex::default(),
            total: AtomicU32::new(total),
            holes_logged: AtomicUsize::new(0),
            logs: TableLogs::default(),
            refuses_writes: AtomicBool::new(false),
            was_cut_short: AtomicBool::new(false),
            space,
        };
        Ok((table, IndexState { session, reset, truncated }))
    }

    pub(crate) fn log_limits(&self) -> [&LogLimit; 4] {
        let TableLogs { holes, refusals, returns, unmarked } = &self.logs;
        [holes, refusals, returns, unmarked]
    }

    pub(crate) fn record_slots(&self) -> u32 {
        self.total.load(Ordering::Acquire)
    }

    /// How the chunks of each data file are used, by its number.
    pub(crate) fn file_uses(&self) -> HashMap<u32, FileUse> {
        let records = (0..self.record_slots()).map(|slot| self.read(slot));
        let chunks = records.filter(|record| record.state == STATE_CHUNK && record.is_intact());
        file_uses(chunks.map(|record| (record.extent(), record.last_used_ms())))
    }

    /// Slots that there are at least once the data files have taken what they may.
    pub(crate) fn assured_slots(&self) -> u64 {
        let assured_bytes = index_share_bytes(self.space.capacity_bytes());
        u64::from(self.record_slots()).max(assured_bytes / RECORD_BYTES as u64)
    }

    pub(crate) fn used_records(&self) -> u32 {
        let free = self.free.lock();
        self.record_slots() - free.count()
    }

    /// Declares which slots are used, and the others free; called once, by recovery. The lowest are handed out first.
    pub(crate) fn set_free(&self, is_used: impl Fn(usize) -> bool) {
        let mut free = self.free.lock();
        let unused = (0..self.record_slots() as usize).rev().filter(|slot| !is_used(*slot));
        unused.for_each(|slot| free.give_back(slot as u32));
    }

    /// Slots for a key of `key_length` bytes; does not block.
    ///
    /// # Errors
    /// `StoreError` when there are none: [`StoreError::Growing`] where [`Table::grow`] may make some.
    pub(crate) fn reserve_record(&self, key_length: usize) -> Result<Reservation, StoreError> {
        let needed = slots_for(key_length);
        let mut slots = Vec::with_capacity(needed);
        // Lowest first, so that the parts of a long key follow each other.
        while slots.len() < needed {
            // Past the limit each free slot would count as lost, and be gone.
            if let Some(error) = self.unreadable() {
                self.release(Reservation { slots, is_written: false });
                return Err(error);
            }
            let slot = self.free.lock().take();
            match slot {
                // It stays taken, like all slots of its page.
                Some(slot) if self.is_lost(slot) => {}
                Some(slot) => slots.push(slot),
                None => {
                    self.release(Reservation { slots, is_written: false });
                    return Err(self.why_full());
                }
            }
        }
        Ok(Reservation { slots, is_written: false })
    }

    /// Whether the page of `slot` was lost: nothing stored there reaches the disk. Reads it, so that an unreadable page is found
    /// now.
    pub(crate) fn is_lost(&self, slot: u32) -> bool {
        std::hint::black_box(self.use_word(slot));
        self.is_in_hole(slot)
    }

    pub(crate) fn is_in_hole(&self, slot: u32) -> bool {
        self.mapping.is_hole(HEADER_BYTES as usize + slot as usize * RECORD_BYTES)
    }

    /// Why no record is written any more: too many pages were lost. Neither growth nor the eviction of others helps.
    pub(crate) fn unreadable(&self) -> Option<StoreError> {
        let pages = self.mapping.hole_count();
        (pages > MAX_HOLES).then(|| StoreError::IndexUnreadable {
            path: self.index_file.path.clone(),
            pages,
            limit: MAX_HOLES,
        })
    }

    /// Pages of the index file that the disk did not return.
    pub(crate) fn lost_pages(&self) -> usize {
        let count = self.mapping.hole_count();
        let logged = self.holes_logged.swap(count, Ordering::Relaxed);
        if count > logged {
            let (path, new) = (&self.index_file.path, count - logged);
            self.logs.holes.log(path, new as u64, || {
                let path = path.display();
                format!(
                    "{new} pages of {path} cannot be read: chunks with records there are missed"
                )
            });
        }
        count
    }

    /// The record is not needed, or not any more.
    pub(crate) fn release(&self, reservation: Reservation) {
        if reservation.is_written {
            return self.clear(reservation.slots[0]);
        }
        let mut free = self.free.lock();
        reservation.slots.into_iter().rev().for_each(|slot| free.give_back(slot));
    }
}

#[cfg(test)]
mod tests;
