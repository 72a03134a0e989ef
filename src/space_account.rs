//! The one account of bytes on disk: data files and index draw on it before they grow.

use std::sync::Arc;

use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::directory::Directory;
use crate::error::StoreError;

/// The part of a file system that is left free, and the most it does.
const AUTO_FREE_PART: u64 = 20;
const AUTO_FREE_MOST_BYTES: u64 = 10 << 30;

/// Capacity of a store and what of it is taken.
#[derive(Debug)]
pub(crate) struct SpaceAccount {
    capacity_bytes: AtomicU64,
    used_bytes: AtomicU64,
    floor: Option<(Arc<Directory>, Option<u64>)>,
}

impl SpaceAccount {
    /// An account of `capacity_bytes`, nothing of it used.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let capacity_bytes = AtomicU64::new(capacity_bytes);
        Self { capacity_bytes, used_bytes: AtomicU64::new(0), floor: None }
    }

    /// The same with a floor under the free space of the file system of `directory`.
    pub(crate) fn with_floor(
        self,
        directory: &Arc<Directory>,
        min_free_bytes: Option<u64>,
    ) -> Self {
        Self { floor: Some((Arc::clone(directory), min_free_bytes)), ..self }
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    /// From here on nothing grows beyond `capacity_bytes`; what is taken beyond it stays taken until it is released.
    pub(crate) fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Ordering::Release);
    }

    pub(crate) fn is_over_capacity(&self) -> bool {
        self.used_bytes() > self.capacity_bytes()
    }

    /// Bytes reserved so far: what the files take on disk or are about to.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn left_bytes(&self) -> u64 {
        self.capacity_bytes().saturating_sub(self.used_bytes())
    }

    /// What the file system has free above the floor, for files to grow by; `u64::MAX` where it does not tell, or there is no
    /// floor.
    pub(crate) fn free_above_floor_bytes(&self) -> u64 {
        let free_and_floor = self.free_and_floor_bytes();
        free_and_floor.map_or(u64::MAX, |(free_bytes, floor)| free_bytes.saturating_sub(floor))
    }

    /// Whether the file system has less free than the floor.
    pub(crate) fn is_below_floor(&self) -> bool {
        self.free_and_floor_bytes().is_some_and(|(free_bytes, floor)| free_bytes < floor)
    }

    /// What the file system has free, and what of it is the floor; none where it does not tell, or there is no floor.
    fn free_and_floor_bytes(&self) -> Option<(u64, u64)> {
        let (directory, min_free) = self.floor.as_ref()?;
        let answer = directory.file_system().ok()?;
        let fragment_bytes = answer.fragment_size();
        // What it keeps for root is nobody's: not even root should live on it. A full XFS may tell a number below zero.
        let free_blocks = u64::try_from(answer.blocks_available().cast_signed()).unwrap_or(0);
        let free_bytes = free_blocks * fragment_bytes;
        let auto = || (answer.blocks() * fragment_bytes / AUTO_FREE_PART).min(AUTO_FREE_MOST_BYTES);
        Some((free_bytes, min_free.unwrap_or_else(auto)))
    }

    /// The floor, and what the file system has in all, where that is less: nothing can ever grow then.
    pub(crate) fn floor_above_all(&self) -> Option<(u64, u64)> {
        let Some((directory, Some(floor_bytes))) = &self.floor else { return None };
        let answer = directory.file_system().ok()?;
        let all_bytes = answer.blocks() * answer.fragment_size();
        (*floor_bytes > all_bytes).then_some((*floor_bytes, all_bytes))
    }

    /// Takes `bytes` for a file that is there already, if `bytes + spare_bytes` fit; `spare_bytes` stay free for others.
    pub(crate) fn reserve(&self, bytes: u64, spare_bytes: u64) -> bool {
        self.used_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                let after = used.checked_add(bytes)?;
                (after.checked_add(spare_bytes)? <= self.capacity_bytes()).then_some(after)
            })
            .is_ok()
    }

    /// Takes `bytes` that are on disk already, whether they fit or not.
    pub(crate) fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Takes `bytes` by which a file is to grow.
    ///
    /// # Errors
    /// `StoreError` when the capacity, or the floor, is in the way.
    pub(crate) fn reserve_growth(&self, bytes: u64) -> Result<(), StoreError> {
        let free_bytes = self.free_above_floor_bytes();
        if bytes > free_bytes {
            return Err(StoreError::Floor { needed_bytes: bytes, free_bytes });
        }
        match self.reserve(bytes, 0) {
            true => Ok(()),
            false => Err(self.full(bytes)),
        }
    }

    /// The error of one who finds no room for `needed_bytes` within it.
    pub(crate) fn full(&self, needed_bytes: u64) -> StoreError {
        StoreError::Full { needed_bytes, capacity_bytes: self.capacity_bytes() }
    }

    pub(crate) fn release(&self, bytes: u64) {
        let before = self.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "released {bytes} of {before} bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_over_capacity() {
        let space = SpaceAccount::new(100);
        assert!(space.reserve(60, 40));
        assert!(!space.reserve(41, 0) && !space.reserve(30, 11) && !space.reserve(u64::MAX, 1));
        assert!(space.reserve(40, 0));
        assert_eq!((space.used_bytes(), space.left_bytes()), (100, 0));
        space.release(60);
        assert!(space.reserve(60, 0));
    }

    #[test]
    fn growth_leaves_the_file_system_its_floor() {
        let directory = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open(directory.path()).unwrap());
        let free_bytes = |min_free| {
            SpaceAccount::new(1 << 50).with_floor(&directory, min_free).free_above_floor_bytes()
        };
        let all = free_bytes(Some(0));
        assert!(all > 0 && free_bytes(None) < all);
        let most = Some(all + (1 << 40));
        let space = SpaceAccount::new(1 << 50).with_floor(&directory, most);
        let error = space.reserve_growth(4096).unwrap_err().to_string();
        assert!(error.contains("min_free") && error.contains("4096"), "{error}");
        assert_eq!(space.used_bytes(), 0);
        // What is there already is no growth.
        assert!(space.reserve(4096, 0));
    }
}
