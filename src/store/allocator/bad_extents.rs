//! Bad extents: free ones that could not be written. Each would be the tightest fit for the next chunk of its length, and
//! fail one SET after the other. So they are not given out before the next open, or before the device can be written again.

use super::Allocator;
use crate::base::block::Extent;

/// One block in so many may be bad. Past that the oldest bad extents are given out again.
const SHARE: u64 = 64;

impl Allocator {
    /// Takes an extent back that could not be written.
    pub(crate) fn free_bad(&mut self, extent: Extent) {
        self.free(extent);
        for part in self.take_free_within(extent) {
            self.bad_blocks += u64::from(part.blocks);
            self.bad.push_back(part);
        }
        while self.bad_blocks > self.total() / SHARE
            && let Some(oldest) = self.bad.pop_front()
        {
            self.bad_blocks -= u64::from(oldest.blocks);
            self.put_back(oldest);
        }
    }

    /// Gives out bad extents again.
    pub(crate) fn retry_bad(&mut self) {
        std::mem::take(&mut self.bad).into_iter().for_each(|extent| self.put_back(extent));
        self.bad_blocks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_given_out_until_there_are_too_many() {
        let mut allocator = Allocator::default();
        allocator.add_file(0, 640);
        let extents: Vec<Extent> = (0..3).map(|_| allocator.allocate(4).unwrap()).collect();
        for extent in &extents {
            allocator.free_bad(*extent);
        }
        assert_eq!(allocator.allocated, 0);
        // Ten blocks may be bad: the first extent came back.
        assert_eq!(allocator.allocate(4), Some(extents[0]));
        let next = allocator.allocate(4).unwrap();
        assert!(!extents.contains(&next), "{next:?}");
        allocator.retry_bad();
        assert!(extents.contains(&allocator.allocate(4).unwrap()), "they are back");
    }
}
