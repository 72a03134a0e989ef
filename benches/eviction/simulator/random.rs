//! Numbers that look random and are the same for the same seed, on every machine: whole numbers only.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `value` over all bits (the finalizer of `SplitMix64`).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed ^ STEP))
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        ((u128::from(mix(self.0)) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `least` to `most`.
    pub(crate) fn within(&mut self, (least, most): (u64, u64)) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `times`, on average.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Ranks from 0 on, each with a weight of 1 / (rank + 1): Zipf's law with exponent 1.
pub(crate) struct Zipf {
    sums: Vec<u64>,
}

impl Zipf {
    pub(crate) fn new(ranks: u64) -> Self {
        let weights = (1..=ranks).map(|rank| (1_u64 << 32) / rank);
        let sums = weights.scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    pub(crate) fn rank(&self, random: &mut Random) -> usize {
        let all = self.sums.last().copied().unwrap_or(1);
        let drawn = random.below(all);
        self.sums.partition_point(|sum| *sum <= drawn)
    }
}
