//! How full a store gets, and how much has to go for what comes.

use std::collections::VecDeque;

use super::*;

/// GETs beside each SET: they bring the order of eviction apart from that of places.
const GETS_PER_SET: u64 = 2;
const SIZES: [u64; 8] = [1, 3, 9, 20, 65, 130, 300, 1024];

/// A small generator of our own: the choices are to be the same for a seed on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// What came of a workload.
struct Outcome {
    /// Share of the capacity that is given out, after each SET.
    live: Vec<f64>,
    /// What had to go for SETs that found no room, and ahead of need.
    in_the_way: Vec<Thrown>,
    ahead: Vec<Thrown>,
    evicted: u64,
    stored: u64,
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(((values.len() - 1) as f64 * share) as usize).copied().unwrap()
}

fn ratios(thrown: &[Thrown]) -> Vec<f64> {
    thrown.iter().map(|thrown| thrown.evicted as f64 / thrown.wanted as f64).collect()
}

impl Outcome {
    fn print(&mut self, name: &str) -> (f64, f64, f64, f64, f64) {
        let mut all = ratios(&self.in_the_way);
        all.extend(ratios(&self.ahead));
        let lowest = quantile(&mut self.live, 0.0);
        let live = quantile(&mut self.live, 0.5);
        let (median, p99) = (quantile(&mut all, 0.5), quantile(&mut all, 0.99));
        let mut puts = ratios(&self.in_the_way);
        let (put_median, put_p99) = match puts.is_empty() {
            true => (0.0, 0.0),
            false => (quantile(&mut puts, 0.5), quantile(&mut puts, 0.99)),
        };
        println!(
            "{name}: live {live:.3}, at least {lowest:.3}; {} SETs evicted {put_median:.2} times what they need (p99 \
             {put_p99:.2}), with {} ahead of need {median:.2} (p99 {p99:.2}); {:.3} evicted for each block stored",
            puts.len(),
            self.ahead.len(),
            self.evicted as f64 / self.stored as f64
        );
        (live, put_median, put_p99, median, p99)
    }
}

/// SETs of new keys until the store has been filled `rounds` times over, and GETs of keys that were set not long ago.
fn run(
    eviction: Eviction,
    watermarks: (f64, f64),
    seed: u64,
    mut size: impl FnMut(&mut Random, u64) -> u64,
) -> Outcome {
    const WARM_UP: u64 = 2;
    const ROUNDS: u64 = 6;
    let capacity = CAPACITY / BLOCK_BYTES;
    let (mut still, mut random) = (Still::new(eviction, watermarks), Random(seed));
    let mut outcome = Outcome {
        live: Vec::new(),
        in_the_way: Vec::new(),
        ahead: Vec::new(),
        evicted: 0,
        stored: 0,
    };
    let mut known: VecDeque<(u64, u64)> = VecDeque::new();
    let (mut stored, mut known_blocks, mut number) = (0, 0, 0);
    let mut evicted_before = 0;
    while stored < ROUNDS * capacity {
        let blocks = size(&mut random, stored);
        let thrown = still.put(number, blocks);
        known.push_back((number, blocks));
        known_blocks += blocks;
        while known_blocks > capacity {
            known_blocks -= known.pop_front().unwrap().1;
        }
        stored += blocks;
        number += 1;
        for _ in 0..GETS_PER_SET {
            // Some more often than others.
            let count = known.len() as u64;
            let place = random.below(count).min(random.below(count));
            let (number, blocks) = known[place as usize];
            still.get(number, blocks);
        }
        let is_warm = stored > WARM_UP * capacity;
        let mut ahead = Vec::new();
        still.cache.evict_ahead(|wanted, evicted| {
            ahead.push(Thrown { wanted: wanted.into(), evicted: evicted / BLOCK_BYTES });
        });
        if is_warm {
            outcome.live.push(still.allocated());
            outcome.ahead.extend(ahead);
            outcome.in_the_way.extend(Some(thrown).filter(|thrown| thrown.evicted > 0));
            outcome.stored += blocks;
        } else {
            evicted_before = still.cache.counters.evicted_bytes.get();
        }
    }
    outcome.evicted = (still.cache.counters.evicted_bytes.get() - evicted_before) / BLOCK_BYTES;
    let check = still.cache.index.check(|| still.cache.store.usage().allocated_bytes);
    assert_eq!((check.problems, check.moving_bytes, check.reserved_bytes), (Vec::new(), 0, 0));
    outcome
}

/// Eight sizes: for a while some of them are frequent, then others.
fn drifting(random: &mut Random, stored: u64) -> u64 {
    let phase = stored * 2 / (CAPACITY / BLOCK_BYTES);
    let step = if random.below(4) == 0 { random.below(8) } else { random.below(3) };
    SIZES[((phase * 3 + step) % 8) as usize]
}

fn uniform(random: &mut Random, _: u64) -> u64 {
    1 + random.below(1024)
}

/// The defaults, and without going ahead of need.
const SETTINGS: [(Eviction, (f64, f64)); 3] = [
    (Eviction::Lru, (0.96, 0.98)),
    (Eviction::Lru, (1.0, 1.0)),
    (Eviction::Adaptive, (0.96, 0.98)),
];

fn check(least_live: f64, size: fn(&mut Random, u64) -> u64) {
    for (eviction, watermarks) in SETTINGS {
        let seed = 77;
        let mut outcome = run(eviction, watermarks, seed, size);
        let name = format!("{} {watermarks:?} seed {seed}", eviction.name());
        let (live, put_median, put_p99, median, p99) = outcome.print(&name);
        assert!(live >= least_live, "{name}: {live}");
        assert!(put_median <= 2.0 && median <= 2.0, "{name}: {put_median}, {median}");
        // Where nothing goes ahead of need, a short chunk may find none but long ones that are cold.
        let is_ahead = watermarks.0 < 1.0;
        assert!(!is_ahead || (put_p99 <= 4.0 && p99 <= 4.0), "{name}: {put_p99}, {p99}");
    }
}

#[test]
fn eight_sizes_that_drift_fill_nine_tenths() {
    check(0.90, drifting);
}

#[test]
fn random_sizes_fill_seventeen_twentieths() {
    check(0.85, uniform);
}
