//! The bonus of chunks without uses in the order of eviction, learnt from keys that return after their eviction, and the admission
//! that follows from it. docs/explanation/eviction.md has the rule, and what it was measured with.

use std::sync::Arc;

use crate::base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// In levels, of which a chunk has one more with each doubling of its uses.
const FIRST: f32 = 1.0;
const LEAST: f32 = 1.0 / 32.0;
const MOST: f32 = 3.0;
/// Bound of the weight of a key whose kind is rarer among the ghosts.
const MOST_RATIO: f32 = 50.0;

/// Batches of one window of 2^14 ms are admitted or refused together: several store one prompt, and its end is of no use without its
/// beginning.
const WINDOW_SHIFT: u32 = 14;

/// Keys of a pool that are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GhostCounts {
    /// They were used while they were stored.
    pub(crate) used: u64,
    pub(crate) unused: u64,
}

impl GhostCounts {
    pub(crate) fn add(&mut self, is_used: bool) {
        *if is_used { &mut self.used } else { &mut self.unused } += 1;
    }

    pub(super) fn remove(&mut self, other: Self) {
        self.used -= other.used;
        self.unused -= other.unused;
    }

    pub(crate) fn all(self) -> u64 {
        self.used + self.unused
    }
}

/// Of one pool, at all paths of the store together: the chunks of a request lie at all of them.
#[derive(Debug)]
pub(crate) struct Bonus {
    /// An f32.
    bits: AtomicU32,
    /// The last window (upper half) and the share of it, an f32.
    window: AtomicU64,
    paths: usize,
}

impl Default for Bonus {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Bonus {
    pub(crate) fn new(paths: usize) -> Self {
        Self { bits: AtomicU32::new(FIRST.to_bits()), window: AtomicU64::new(u64::MAX), paths }
    }

    pub(crate) fn shared(paths: usize) -> Arc<Self> {
        Arc::new(Self::new(paths))
    }

    pub(crate) fn levels(&self) -> f32 {
        f32::from_bits(self.bits.load(Ordering::Relaxed))
    }

    /// What an earlier owner has learnt.
    pub(crate) fn restore(&self, levels: f32) {
        if (LEAST..=MOST).contains(&levels) {
            self.bits.store(levels.to_bits(), Ordering::Relaxed);
        }
    }

    /// A remembered key returns to a path with so many `chunks`. An unused one raises the bonus, a used one lowers it: by one level per
    /// as many keys as there are chunks.
    pub(super) fn teach(&self, was_used: bool, ghosts: GhostCounts, chunks: usize) {
        let step = 1.0 / (chunks.max(1) * self.paths) as f32;
        let (used, unused) = (ghosts.used.max(1) as f32, ghosts.unused.max(1) as f32);
        let ratio = if was_used { unused / used } else { used / unused }.clamp(1.0, MOST_RATIO);
        let change = if was_used { -step * ratio } else { step * ratio };
        let learnt = |bits| Some((f32::from_bits(bits) + change).clamp(LEAST, MOST).to_bits());
        let _ = self.bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learnt);
    }

    /// The share of requests whose new chunks are stored.
    pub(crate) fn admitted_share(&self) -> f32 {
        self.levels().min(1.0)
    }

    /// Whether new chunks of a batch that was submitted at `now_ms` are stored. The share is that of the window's first batch, whatever
    /// is learnt since.
    pub(crate) fn admits(&self, now_ms: u64) -> bool {
        let number = (now_ms >> WINDOW_SHIFT) as u32;
        let word = u64::from(number) << 32 | u64::from(self.admitted_share().to_bits());
        let is_new = |last: u64| ((last >> 32) as u32 != number).then_some(word);
        let last = self.window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_new);
        let share = f32::from_bits(last.map_or_else(|word| word as u32, |_| word as u32));
        coin(now_ms) < share
    }
}

/// The coin of a batch that was submitted at `now_ms`, from 0 to 1: it is admitted where that is below the share.
pub fn coin(now_ms: u64) -> f32 {
    // The finalizer of SplitMix64.
    let mix = |value: u64, shift: u32, factor: u64| (value ^ (value >> shift)).wrapping_mul(factor);
    let window = (now_ms >> WINDOW_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = mix(mix(window, 30, 0xbf58_476d_1ce4_e5b9), 27, 0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_unused_raises_it_and_what_was_used_lowers_it() {
        let bonus = Bonus::new(1);
        let ghosts = GhostCounts { used: 100, unused: 100 };
        (0..50).for_each(|_| bonus.teach(false, ghosts, 100));
        assert!((bonus.levels() - 1.5).abs() < 1e-3);
        (0..100).for_each(|_| bonus.teach(true, ghosts, 100));
        assert!((bonus.levels() - 0.5).abs() < 1e-3);
        // A hundred times as many of the other kind are remembered: it counts 50 times.
        bonus.teach(false, GhostCounts { used: 10_000, unused: 100 }, 100);
        assert!((bonus.levels() - 1.0).abs() < 1e-3);
        bonus.teach(false, GhostCounts { used: 100, unused: 10_000 }, 100);
        assert!((bonus.levels() - 1.01).abs() < 1e-3);
        (0..1000).for_each(|_| bonus.teach(true, ghosts, 100));
        assert_eq!((bonus.levels(), bonus.admitted_share()), (LEAST, LEAST));
        (0..1000).for_each(|_| bonus.teach(false, ghosts, 100));
        assert_eq!((bonus.levels(), bonus.admitted_share()), (MOST, 1.0));
    }

    #[test]
    fn the_share_of_a_window_is_that_of_its_first_batch() {
        let bonus = Bonus::new(1);
        let window = |number: u64| number << WINDOW_SHIFT;
        let refused = (1..).map(window).find(|now_ms| coin(*now_ms) > 0.1).unwrap();
        assert!(bonus.admits(refused));
        bonus.restore(LEAST);
        assert!(bonus.admits(refused + (1 << WINDOW_SHIFT) - 1), "a prompt gets a hole");
        let next = (refused >> WINDOW_SHIFT) + 1;
        let refused = (next..).map(window).find(|now_ms| coin(*now_ms) > 0.1).unwrap();
        assert!(!bonus.admits(refused));
        bonus.restore(MOST);
        assert!(!bonus.admits(refused + 1));
    }

    #[test]
    fn paths_learn_together_as_one_would() {
        let (one, four) = (Bonus::new(1), Bonus::new(4));
        let ghosts = GhostCounts { used: 10, unused: 10 };
        (0..40).for_each(|_| one.teach(false, ghosts, 400));
        (0..40).for_each(|_| four.teach(false, ghosts, 100));
        assert!((one.levels() - four.levels()).abs() < 1e-3);
    }

    #[test]
    fn only_what_can_be_learnt_is_restored() {
        let bonus = Bonus::new(1);
        for wrong in [f32::NAN, f32::INFINITY, -1.0, 0.0, 3.5] {
            bonus.restore(wrong);
            assert_eq!(bonus.levels(), FIRST);
        }
        bonus.restore(0.25);
        assert_eq!(bonus.levels(), 0.25);
    }

    #[test]
    fn a_coin_is_for_some_seconds_and_each_share_comes_as_often() {
        let first = 1_700_000_000_000 >> WINDOW_SHIFT << WINDOW_SHIFT;
        assert_eq!(coin(first), coin(first + (1 << WINDOW_SHIFT) - 1));
        let coins: Vec<f32> =
            (0..10_000).map(|window| coin(first + (window << WINDOW_SHIFT))).collect();
        assert!(coins.iter().all(|coin| (0.0..1.0).contains(coin)));
        for share in [0.03, 0.25, 0.5, 0.9] {
            let below = coins.iter().filter(|coin| **coin < share).count() as f32 / 10_000.0;
            assert!((below - share).abs() < 0.02, "{below} of {share}");
        }
    }
}
