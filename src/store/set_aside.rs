//! Places that could not be written. They are not given out again before the store is opened anew: being the tightest fit
//! for the next chunk of that length, each of them would fail one SET after the other. If it was the whole device that could not
//! be written, they come back as soon as it can.

use std::collections::VecDeque;

use super::allocator::Allocator;
use crate::block::Extent;

/// Most of all blocks that may be set aside; past it those come back that were set aside first.
const SHARE: u64 = 64;

/// Free places that are not given out.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    places: VecDeque<Extent>,
    blocks: u64,
}

impl SetAside {
    /// Sets a place aside, which is free.
    pub(super) fn add(&mut self, allocator: &mut Allocator, extent: Extent) {
        for place in allocator.take_free_within(extent) {
            self.blocks += u64::from(place.blocks);
            self.places.push_back(place);
        }
        while self.blocks > allocator.total() / SHARE
            && let Some(place) = self.places.pop_front()
        {
            self.blocks -= u64::from(place.blocks);
            allocator.put_back(place);
        }
    }

    /// Gives all of them back.
    pub(super) fn put_back(&mut self, allocator: &mut Allocator) {
        self.places.drain(..).for_each(|place| allocator.put_back(place));
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
        let mut aside = SetAside::default();
        let places: Vec<Extent> = (0..3).map(|_| allocator.allocate(4).unwrap()).collect();
        for place in &places {
            allocator.free(*place);
            aside.add(&mut allocator, *place);
        }
        assert_eq!(allocator.allocated(), 0);
        // Ten blocks may be set aside: the first place came back.
        assert_eq!(allocator.allocate(4), Some(places[0]));
        let next = allocator.allocate(4).unwrap();
        assert!(!places.contains(&next), "{next:?}");
        aside.put_back(&mut allocator);
        assert!(places.contains(&allocator.allocate(4).unwrap()), "they are back");
    }
}
