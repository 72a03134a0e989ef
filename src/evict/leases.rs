//! How much must stay: EXISTS leases the chunks it found for a few seconds, so that the GET that follows hits, and users pin
//! chunks. Bounded, in bytes of data files and in slots of the index file, so that neither can stop the store.

use std::ops::{AddAssign, SubAssign};

/// Space that chunks take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Of the data files.
    pub(crate) bytes: u64,
    /// Of the index file.
    pub(crate) slots: u64,
}

impl Footprint {
    pub(crate) fn without(self, taken: Self) -> Self {
        let bytes = self.bytes.saturating_sub(taken.bytes);
        Self { bytes, slots: self.slots.saturating_sub(taken.slots) }
    }

    /// Whether `wanted` fits into it.
    pub(crate) fn fits(&self, wanted: Self) -> bool {
        wanted.bytes <= self.bytes && wanted.slots <= self.slots
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.slots += other.slots;
    }
}

impl SubAssign for Footprint {
    fn sub_assign(&mut self, other: Self) {
        *self = self.without(other);
    }
}

/// Sums of leased chunks by the second in which the lease ends.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    ends: Vec<(u32, Footprint)>,
}

impl Leases {
    /// For leases that end at most `longest_s` seconds later.
    pub(crate) fn new(longest_s: u32) -> Self {
        // One second more, as an end is rounded up, and one for the current.
        Self { ends: vec![(0, Footprint::default()); longest_s as usize + 2] }
    }

    /// Leases a chunk until `end_s` instead of until `before_s`. If it is not leased then, it has to fit into `limit` beside the others;
    /// says whether it does.
    pub(crate) fn lease(
        &mut self,
        chunk: Footprint,
        (before_s, end_s): (u32, u32),
        now_s: u32,
        limit: Footprint,
    ) -> bool {
        match before_s > now_s {
            true => self.remove(before_s, chunk),
            false if !limit.without(self.sum(now_s)).fits(chunk) => return false,
            false => {}
        }
        self.add(end_s, chunk);
        true
    }

    /// Leases that have not ended.
    pub(crate) fn sum(&self, now_s: u32) -> Footprint {
        let mut sum = Footprint::default();
        self.ends.iter().filter(|(end_s, _)| *end_s > now_s).for_each(|(_, one)| sum += *one);
        sum
    }

    /// Chunks are leased until `end_s`, which is in the future.
    pub(crate) fn add(&mut self, end_s: u32, leased: Footprint) {
        let cell = end_s as usize % self.ends.len();
        let (of_s, sum) = &mut self.ends[cell];
        if *of_s != end_s {
            (*of_s, *sum) = (end_s, Footprint::default());
        }
        *sum += leased;
    }

    /// Chunks are not leased until `end_s` any more: leased anew, or gone.
    pub(crate) fn remove(&mut self, end_s: u32, leased: Footprint) {
        let count = self.ends.len().max(1);
        let Some((of_s, sum)) = self.ends.get_mut(end_s as usize % count) else { return };
        if *of_s == end_s {
            *sum -= leased;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: u64) -> Footprint {
        Footprint { bytes, slots: 2 * bytes }
    }

    #[test]
    fn leases_end_by_themselves() {
        let mut leases = Leases::new(10);
        leases.add(110, of(5));
        leases.add(111, of(7));
        leases.add(111, of(1));
        assert_eq!([100, 109, 110, 111].map(|now_s| leases.sum(now_s)), [13, 13, 8, 0].map(of));
        leases.remove(111, of(1));
        assert_eq!(leases.sum(100), of(12));
        // What ended long ago leaves its place to another second, and cannot be taken back from that.
        leases.add(122, of(3));
        leases.remove(110, of(5));
        assert_eq!(leases.sum(121), of(3));
    }
}
