//! Which of several volumes a key belongs to: weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted
//! Distributed Hash Tables", SPAA 2005, the logarithmic method).
//!
//! Every key has a score on every volume, from the two alone, and belongs to the live volume with the best one. So a
//! volume that goes gives up its own keys and no other moves; one that comes takes its share, from all others alike.

use crate::format::membership::MAX_VOLUMES;
use crate::key::Digest;

/// A set of volumes, a bit for each by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeSet(pub(crate) u32);

impl VolumeSet {
    /// The first `count` volumes.
    pub(crate) fn first(count: usize) -> Self {
        Self(((1_u64 << count) - 1) as u32)
    }

    pub(crate) fn contains(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    pub(crate) fn without(self, number: usize) -> Self {
        Self(self.0 & !(1 << number))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_VOLUMES).filter(move |number| self.contains(*number))
    }
}

struct Candidate {
    seed: u64,
    weight: f64,
}

/// What volumes there are, live or not.
pub(crate) struct Placement {
    candidates: Vec<Candidate>,
}

impl Placement {
    /// Volumes by id and weight (their capacity): each gets keys in proportion to it.
    pub(crate) fn new(volumes: impl IntoIterator<Item = ([u8; 16], u64)>) -> Self {
        let candidate = |(id, weight): ([u8; 16], u64)| {
            let [low, high]: [u64; 2] = bytemuck::cast(id);
            Candidate { seed: mix(low ^ high.rotate_left(32)), weight: weight.max(1) as f64 }
        };
        Self { candidates: volumes.into_iter().map(candidate).collect() }
    }

    /// Number of the volume that a key belongs to, out of those that are live.
    pub(crate) fn volume_of(&self, digest: Digest, live: VolumeSet) -> usize {
        if self.candidates.len() == 1 {
            return 0;
        }
        let known = live.iter().take_while(|number| *number < self.candidates.len());
        let scores = known.map(|number| (self.candidates[number].score(digest), number));
        scores.min_by(|one, other| one.0.total_cmp(&other.0)).map_or(0, |(_, number)| number)
    }
}

impl Candidate {
    /// Lower is better: exponentially distributed, with the weight as its rate.
    fn score(&self, digest: Digest) -> f64 {
        let hash = mix(mix(digest.0[0] ^ self.seed) ^ digest.0[1]);
        // 53 bits, never 0, whose logarithm is infinite.
        let uniform = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -uniform.ln() / self.weight
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: usize = 40_000;

    fn placement(weights: &[u64]) -> Placement {
        Placement::new(weights.iter().enumerate().map(|(number, weight)| {
            let mut id = [0x5a; 16];
            id[0] = number as u8;
            (id, *weight)
        }))
    }

    fn digests() -> impl Iterator<Item = Digest> {
        (0..KEYS).map(|number| Digest::of(&format!("model@0@0@{number:x}")))
    }

    fn shares(placement: &Placement, live: VolumeSet, count: usize) -> Vec<f64> {
        let mut keys = vec![0_usize; count];
        digests().for_each(|digest| keys[placement.volume_of(digest, live)] += 1);
        keys.iter().map(|keys| *keys as f64 / KEYS as f64).collect()
    }

    #[test]
    fn shares_follow_the_weights() {
        // Four standard deviations of a share of 40,000 keys are 0.01 at most.
        for (weights, expected) in
            [(vec![1, 1], vec![0.5, 0.5]), (vec![1, 3, 4], vec![0.125, 0.375, 0.5])]
        {
            let shares =
                shares(&placement(&weights), VolumeSet::first(weights.len()), weights.len());
            for (share, expected) in shares.iter().zip(expected) {
                assert!((share - expected).abs() < 0.01, "{shares:?}");
            }
        }
    }

    #[test]
    fn only_keys_of_the_volume_that_goes_move() {
        let placement = placement(&[2, 1, 1, 4]);
        let all = VolumeSet::first(4);
        for gone in 0..4 {
            let rest = all.without(gone);
            for digest in digests().take(4000) {
                let before = placement.volume_of(digest, all);
                let after = placement.volume_of(digest, rest);
                assert!(after != gone && (before == gone || before == after));
            }
        }
    }

    #[test]
    fn a_volume_that_comes_takes_its_share_and_nothing_else_moves() {
        let (three, four) = (placement(&[1, 1, 1]), placement(&[1, 1, 1, 1]));
        let mut moved = 0;
        for digest in digests() {
            let before = three.volume_of(digest, VolumeSet::first(3));
            let after = four.volume_of(digest, VolumeSet::first(4));
            assert!(after == before || after == 3);
            moved += usize::from(after == 3);
        }
        let share = moved as f64 / KEYS as f64;
        assert!((share - 0.25).abs() < 0.01, "{share}");
    }

    #[test]
    fn one_volume_has_everything_and_sets_are_sets() {
        assert_eq!(shares(&placement(&[7]), VolumeSet::first(1), 1), [1.0]);
        assert_eq!(VolumeSet::first(MAX_VOLUMES).iter().count(), MAX_VOLUMES);
        let set = VolumeSet::first(3).without(1);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 2]);
        assert!(!set.is_empty() && set.without(0).without(2).is_empty());
    }
}
