//! How many bytes are leased: EXISTS promises for a few seconds that what it found is there, so that the load that follows
//! finds it. Bounded, so that promises cannot stop the store.

/// Bytes by the second in which their lease ends.
#[derive(Default)]
pub(super) struct Leases {
    ends: Vec<(u32, u64)>,
}

impl Leases {
    /// For leases that end at most `longest_s` seconds later.
    pub(super) fn new(longest_s: u32) -> Self {
        // One second more, as an end is rounded up, and one for the current.
        Self { ends: vec![(0, 0); longest_s as usize + 2] }
    }

    /// Bytes whose lease has not ended.
    pub(super) fn bytes(&self, now_s: u32) -> u64 {
        let current = self.ends.iter().filter(|(end_s, _)| *end_s > now_s);
        current.map(|(_, bytes)| bytes).sum()
    }

    /// Bytes are leased until `end_s`, which has not come yet.
    pub(super) fn add(&mut self, end_s: u32, bytes: u64) {
        let place = end_s as usize % self.ends.len();
        let (of_s, sum) = &mut self.ends[place];
        if *of_s < end_s {
            (*of_s, *sum) = (end_s, 0);
        }
        // A later second, from before the clock was set back, counts it for too long rather than not at all.
        *sum += bytes;
    }

    /// Bytes are not leased until `end_s` any more: leased anew, or gone.
    pub(super) fn remove(&mut self, end_s: u32, bytes: u64) {
        let place = end_s as usize % self.ends.len();
        let (of_s, sum) = &mut self.ends[place];
        if *of_s == end_s {
            *sum = sum.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_by_themselves() {
        let mut leases = Leases::new(10);
        leases.add(110, 5);
        leases.add(111, 7);
        leases.add(111, 1);
        assert_eq!([100, 109, 110, 111].map(|now_s| leases.bytes(now_s)), [13, 13, 8, 0]);
        leases.remove(111, 1);
        assert_eq!(leases.bytes(100), 12);
        // What ended long ago leaves its place to another second, and cannot be taken back from that.
        leases.add(122, 3);
        leases.remove(110, 5);
        assert_eq!(leases.bytes(121), 3);
    }

    #[test]
    fn a_clock_that_is_set_back_hides_no_lease() {
        let mut leases = Leases::new(10);
        leases.add(1000, 5);
        for end_s in 100..112 {
            leases.add(end_s, 1);
        }
        assert_eq!(leases.bytes(99), 5 + 12);
        assert_eq!(leases.bytes(1000), 0);
    }
}
