//! Bad extents: free ones that could not be written. Each would be the tightest fit for the next chunk of its length, and
//! fail one SET after the other. So they are not given out before the next open, or before the device can be written again.

use std::collections::VecDeque;

use super::Allocator;
use crate::block::Extent;

/// One block in so many may be bad. Past that the oldest bad extents are free again.
const SHARE: u64 = 64;

/// The bad extents of a store.
#[derive(Debug, Default)]
pub(crate) struct BadExtents {
    extents: VecDeque<Extent>,
    blocks: u64,
}

impl BadExtents {
    /// Takes a free extent from the allocator.
    pub(crate) fn add(&mut self, allocator: &mut Allocator, extent: Extent) {
        for part in allocator.take_free_within(extent) {
            self.blocks += u64::from(part.blocks);
            self.extents.push_back(part);
        }
        while self.blocks > allocator.total() / SHARE
            && let Some(oldest) = self.extents.pop_front()
        {
            self.blocks -= u64::from(oldest.blocks);
            allocator.put_back(oldest);
        }
    }

    /// Gives all of them back to the allocator.
    pub(crate) fn retry(&mut self, allocator: &mut Allocator) {
        self.extents.drain(..).for_each(|extent| allocator.put_back(extent));
        self.blocks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_given_out_until_there_are_too_many() {
        let mut allocator = Allocator::default();
        allocator.add_file(640);
        let mut bad = BadExtents::default();
        let extents: Vec<Extent> = (0..3).map(|_| allocator.allocate(4).unwrap()).collect();
        for extent in &extents {
            allocator.free(*extent);
            bad.add(&mut allocator, *extent);
        }
        assert_eq!(allocator.allocated(), 0);
        // Ten blocks may be bad: the first extent came back.
        assert_eq!(allocator.allocate(4), Some(extents[0]));
        let next = allocator.allocate(4).unwrap();
        assert!(!extents.contains(&next), "{next:?}");
        bad.retry(&mut allocator);
        assert!(extents.contains(&allocator.allocate(4).unwrap()), "they are back");
    }
}
