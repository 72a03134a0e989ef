//! The space of the index file: its share of what the store may take, and growing into it.
//!
//! The share is reserved on the file system before data files take the rest, behind the end of the file: opening reads the
//! file as a whole, and chunks of some MiB never need all of it. Growing takes from there first.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::table::{OPENED_PART, Table};
use crate::base::sync::atomic::Ordering;
use crate::error::StoreError;
use crate::format::header::{GROWTH_BYTES, HEADER_BYTES};
use crate::format::record::RECORD_BYTES;
use crate::store::{IndexShare, index_share_bytes};

/// Pause after the file could not grow: meanwhile records of other chunks go.
const GROWTH_PAUSE: Duration = Duration::from_secs(1);

/// It grows when less than this part of a step is free.
const AHEAD_PART: u64 = 2;

/// Most of the data that it takes beside it, one in so many: that is what is mapped.
const MOST_PART: u64 = 8;

impl Table {
    /// Most bytes that the store may take at this path.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.space.capacity_bytes()
    }

    pub(crate) fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.space.set_capacity_bytes(capacity_bytes);
    }

    pub(crate) fn is_over_capacity(&self) -> bool {
        self.space.is_over_capacity()
    }

    /// Its part of the space of the store.
    pub(crate) fn space(&self) -> &dyn IndexShare {
        self
    }

    pub(crate) fn why_full(&self) -> StoreError {
        match &*self.refusal.lock() {
            Some((again, error)) if Instant::now() < *again => error.clone(),
            _ => StoreError::Growing { needed_bytes: RECORD_BYTES as u64 },
        }
    }

    /// Whether it is to grow: soon there will not be many free slots.
    pub(crate) fn is_growth_due(&self) -> bool {
        let ahead = self.step_bytes() / RECORD_BYTES as u64 / AHEAD_PART;
        let free = u64::from(self.free.lock().count());
        free < ahead
            && self.unreadable().is_none()
            && self.refusal.lock().as_ref().is_none_or(|(again, _)| Instant::now() >= *again)
    }

    fn length_bytes(&self) -> u64 {
        HEADER_BYTES + u64::from(self.record_slots()) * RECORD_BYTES as u64
    }

    fn step_bytes(&self) -> u64 {
        (self.length_bytes() / 8 / GROWTH_BYTES * GROWTH_BYTES)
            .clamp(GROWTH_BYTES, self.index_file.longest_step_bytes())
    }

    /// Lengthens the file by a step. It waits for the file system; slots are taken and given back meanwhile.
    ///
    /// # Errors
    /// `StoreError` when the capacity or the file system refuses.
    pub(crate) fn grow(&self) -> Result<(), StoreError> {
        let outcome = self.try_to_grow();
        *self.refusal.lock() =
            outcome.as_ref().err().map(|error| (Instant::now() + GROWTH_PAUSE, error.clone()));
        outcome
    }

    fn try_to_grow(&self) -> Result<(), StoreError> {
        let mut reserved = self.reserved.lock();
        let (before, length) = (self.record_slots(), self.length_bytes());
        let spare = |reserved: u64| (reserved - length) / GROWTH_BYTES * GROWTH_BYTES;
        let room = (self.mapping.length_bytes() as u64 - length) / GROWTH_BYTES * GROWTH_BYTES;
        let wanted = self.step_bytes().min(room);
        if wanted == 0 {
            return Err(self.full(length));
        }
        // A whole step, or what is reserved, or the least.
        let mut added = wanted;
        let missing = wanted.saturating_sub(spare(*reserved));
        if let Err(error) = self.extend_reserve(&mut reserved, missing) {
            // The refusal may have cost what was reserved.
            let spare = spare(*reserved);
            added = wanted.min(spare.max(GROWTH_BYTES));
            self.extend_reserve(&mut reserved, added.saturating_sub(spare)).map_err(|_| error)?;
        }
        if let Err(source) = self.index_file.grow(length, added) {
            // It gave back all that was reserved behind the end.
            self.space.release(*reserved - length);
            *reserved = length;
            return Err(self.refused(added, source));
        }
        let total = before + (added / RECORD_BYTES as u64) as u32;
        let mut free = self.free.lock();
        self.total.store(total, Ordering::Release);
        free.add_fresh(before..total);
        Ok(())
    }

    /// Maps the pages that were added since there were so many slots. It may wait for the disk.
    pub(crate) fn populate_from(&self, record_slots: u32) {
        let start = HEADER_BYTES + u64::from(record_slots) * RECORD_BYTES as u64;
        self.mapping.populate(start as usize, (self.length_bytes() - start) as usize);
    }

    /// Reserves `bytes` more, if the file system has them above its floor.
    fn extend_reserve(&self, reserved: &mut u64, bytes: u64) -> Result<(), StoreError> {
        let free_bytes = self.space.free_above_floor_bytes();
        match bytes > free_bytes {
            true => Err(StoreError::Floor { needed_bytes: bytes, free_bytes }),
            false => self.reserve_behind(reserved, bytes),
        }
    }

    fn reserve_behind(&self, reserved: &mut u64, bytes: u64) -> Result<(), StoreError> {
        if bytes == 0 {
            return Ok(());
        }
        if !self.space.reserve(bytes, 0) {
            return Err(self.full(*reserved));
        }
        let length = self.length_bytes();
        if let Err((source, kept)) = self.index_file.preallocate(length, *reserved, bytes) {
            self.space.release(*reserved + bytes - (length + kept));
            *reserved = length + kept;
            return Err(self.refused(bytes, source));
        }
        *reserved += bytes;
        Ok(())
    }

    /// Gives back what is reserved behind the end of the file, if a smaller capacity leaves less to the index. It waits for the file
    /// system.
    pub(crate) fn fit_reserve(&self) {
        let mut reserved = self.reserved.lock();
        let length = self.length_bytes();
        let share_bytes = HEADER_BYTES + index_share_bytes(self.capacity_bytes());
        if *reserved > share_bytes.max(length) && self.index_file.release_reserve(length).is_ok() {
            self.space.release(*reserved - length);
            *reserved = length;
        }
    }

    /// Least capacity at which the next open takes the index over.
    pub(crate) fn least_capacity_bytes(&self) -> u64 {
        self.length_bytes() * OPENED_PART
    }

    fn full(&self, index_bytes: u64) -> StoreError {
        StoreError::IndexFull { index_bytes, capacity_bytes: self.space.capacity_bytes() }
    }

    fn refused(&self, bytes: u64, source: io::Error) -> StoreError {
        let path = self.index_file.path.clone();
        StoreError::Grow { path, bytes, source: Arc::new(source) }
    }
}

impl IndexShare for Table {
    /// As many chunks as now in the rest as well, in proportion, or of 16 KiB on average if that is more.
    fn missing_bytes(&self, data_bytes: u64, allocated_bytes: u64) -> u64 {
        let used_bytes = u64::from(self.used_records()) * RECORD_BYTES as u64;
        let in_proportion = match allocated_bytes {
            0 => 0,
            _ => {
                (u128::from(used_bytes) * u128::from(data_bytes) / u128::from(allocated_bytes))
                    as u64
            }
        };
        let share_bytes = in_proportion.min(data_bytes / MOST_PART) / GROWTH_BYTES * GROWTH_BYTES;
        let share_bytes = share_bytes.max(index_share_bytes(data_bytes));
        (HEADER_BYTES + share_bytes).saturating_sub(*self.reserved.lock())
    }

    fn preallocate(&self, bytes: u64) -> Result<(), StoreError> {
        self.reserve_behind(&mut self.reserved.lock(), bytes)
    }
}
