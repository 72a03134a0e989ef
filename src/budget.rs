//! The one account of bytes on disk: data files and index draw on it before they grow.

use std::sync::atomic::{AtomicU64, Ordering};

/// Capacity of a store and what of it is taken.
#[derive(Debug)]
pub(crate) struct Budget {
    capacity_bytes: u64,
    used_bytes: AtomicU64,
}

impl Budget {
    /// An account of `capacity_bytes`, nothing of it used.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, used_bytes: AtomicU64::new(0) }
    }

    /// The configured capacity.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes reserved so far: what the files take on disk or are about to.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// What can still be reserved.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    /// Takes `bytes` if `bytes + spare_bytes` fit; `spare_bytes` stay free for others.
    pub(crate) fn reserve(&self, bytes: u64, spare_bytes: u64) -> bool {
        self.used_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                let after = used.checked_add(bytes)?;
                (after.checked_add(spare_bytes)? <= self.capacity_bytes).then_some(after)
            })
            .is_ok()
    }

    /// Gives `bytes` back.
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
        let budget = Budget::new(100);
        assert!(budget.reserve(60, 40));
        assert!(!budget.reserve(41, 0) && !budget.reserve(30, 11) && !budget.reserve(u64::MAX, 1));
        assert!(budget.reserve(40, 0));
        assert_eq!((budget.used_bytes(), budget.left_bytes()), (100, 0));
        budget.release(60);
        assert!(budget.reserve(60, 0));
    }
}
