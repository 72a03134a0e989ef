//! Numbers that look random and are the same for the same seed.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `value` over all bits (the finalizer of SplitMix64); a bijection.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: mix(seed ^ STEP) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// A random order of the numbers below `count` that takes no memory: a Feistel network over the next power of four,
/// walked until it comes out below `count`.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    count: u64,
    half_bits: u32,
    round_keys: [u64; 4],
}

impl Permutation {
    /// `count` is at least 1 and at most 2^62.
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - (count - 1).leading_zeros();
        let mut random = Random::new(seed);
        let round_keys = std::array::from_fn(|_| random.next());
        Self { count, half_bits: bits.div_ceil(2).max(1), round_keys }
    }

    /// The number at place `position`, both below `count`.
    pub(crate) fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.count);
        let mut value = position;
        loop {
            value = self.scramble(value);
            if value < self.count {
                return value;
            }
        }
    }

    fn scramble(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_every_number_once() {
        for count in [1, 2, 3, 4, 5, 64, 1000, 4097] {
            let order = Permutation::new(count, 7);
            let mut numbers: Vec<u64> = (0..count).map(|position| order.at(position)).collect();
            let ordered = count > 64 && numbers.is_sorted();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count), "{count}");
            assert!(!ordered, "{count}");
        }
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((0..10).all(|number| draw(1).contains(&number)));
    }
}
