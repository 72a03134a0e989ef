//! A session of the random operations: the settings that its seed draws, and the lengths of its chunks.

use std::time::Duration;

use kvring::{Admission, BLOCK_BYTES, Config, Durability, Eviction};

use crate::common::MIB;
use crate::common::random::Random;
use crate::plan::End;

pub(crate) const SHORTEST: u64 = 1 << 10;
pub(crate) const LONGEST: u64 = 4 << 20;
pub(crate) const KEYS: u64 = 4096;
const QUOTAS: [(&str, u64); 2] = [("small", 12 * MIB), ("small@tenant", 5 * MIB)];

pub(crate) fn quota_bytes(namespace: &str) -> Option<u64> {
    QUOTAS.iter().find(|(name, _)| *name == namespace).map(|(_, bytes)| *bytes)
}

/// Which lengths the chunks of a session have.
#[derive(Clone, Copy, Debug)]
enum Mix {
    /// As many between 1 and 2 KiB as between 2 and 4 MiB.
    LogUniform,
    /// Eight lengths, of which others are frequent as time goes by.
    Drifting,
    /// Any number of blocks with the same likelihood.
    Blocks,
    /// Up to 16 KiB.
    Short,
}

const DRIFTING_BYTES: [u64; 8] =
    [1 << 10, 4 << 10, 12_345, 40 << 10, 100_000, 300 << 10, 1 << 20, 4 << 20];
/// SETs in which one length is the most frequent.
const DRIFT: u64 = 3_000;

/// A session as the seed has it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) seed: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) eviction: Eviction,
    pub(crate) durability: Durability,
    pub(crate) watermarks: (f64, f64),
    pub(crate) lease_s: u32,
    pub(crate) ttl: Option<Duration>,
    pub(crate) admission: Admission,
    /// Keys are pinned and leased.
    pub(crate) has_guards: bool,
    mix: Mix,
    pub(crate) operations: u64,
    pub(crate) end: End,
}

impl Session {
    /// Session `number` of a store whose usual capacity is this. The first one has guards and comes to its end,
    /// so that a short run has done everything, whenever the kills come.
    pub(crate) fn new(seed: u64, number: u64, capacity_bytes: u64) -> Self {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
        let mut random = Random::new(seed);
        // Where a SET may complete without storing, what was held of its key goes, whoever guards it.
        let is_first = number == 0;
        let may_refuse = random.one_of(6) && !is_first;
        let has_guards = is_first || (!may_refuse && !random.one_of(3));
        let admission = match may_refuse {
            true => random.choose(&[Admission::SecondUse, Admission::Adaptive]),
            false => Admission::Always,
        };
        let hour = Duration::from_secs(3600);
        Self {
            seed,
            capacity_bytes: random.choose(&[
                capacity_bytes,
                capacity_bytes,
                capacity_bytes / 2,
                capacity_bytes * 2,
            ]),
            eviction: random.choose(&Eviction::ALL),
            durability: random.choose(&[Durability::BestEffort, Durability::Persistent]),
            watermarks: random.choose(&[(0.96, 0.98), (1.0, 1.0), (0.8, 0.9)]),
            lease_s: if has_guards { random.choose(&[1, 10, 60]) } else { 0 },
            ttl: random.choose(&[None, Some(hour / 60), Some(hour), Some(hour * 24)]),
            admission,
            has_guards,
            mix: random.choose(&[
                Mix::LogUniform,
                Mix::LogUniform,
                Mix::Drifting,
                Mix::Drifting,
                Mix::Blocks,
                Mix::Short,
            ]),
            operations: 500 + random.below(8_000),
            end: if is_first { End::Close } else { random.choose(&[End::Close, End::Kill]) },
        }
    }

    pub(crate) fn apply(&self, config: &mut Config) {
        config.eviction = self.eviction;
        config.durability = self.durability;
        (config.tuning.low_watermark, config.tuning.high_watermark) = self.watermarks;
        config.lease_s = self.lease_s;
        config.ttl = self.ttl;
        config.quotas = QUOTAS.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec();
        config.admission = self.admission;
    }

    /// Length of the chunk of SET `version`.
    pub(crate) fn length(&self, random: &mut Random, version: u64) -> usize {
        let length = match self.mix {
            Mix::LogUniform => {
                let octave = SHORTEST << random.below(12);
                octave + random.below(octave + 1)
            }
            Mix::Drifting => {
                let favourite = version / DRIFT;
                let step = if random.one_of(3) { random.below(8) } else { random.below(2) };
                DRIFTING_BYTES[((favourite + step) % 8) as usize]
            }
            Mix::Blocks => (1 + random.below(LONGEST / BLOCK_BYTES)) * BLOCK_BYTES,
            Mix::Short => SHORTEST + random.below(15 << 10),
        };
        length as usize
    }
}
