//! What a seed stands for: the life of a store in which two or three mechanisms meet, in several sessions.

use std::time::Duration;

use clap::ValueEnum;
use kvring::{Admission, Config, Durability, Eviction, Layout};

use crate::common::MIB;
use crate::common::random::Random;
use crate::plan::{Chunk, namespace};

/// What meets. Batches of SETs, GETs, EXISTS and DELETEs are in every life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Mechanism {
    /// ENOSPC, EDQUOT, EIO, EMFILE, EINTR and short transfers.
    Faults,
    Pins,
    Leases,
    Quotas,
    SecondUse,
    WriteBudget,
    Purge,
    Expiry,
    /// Data files that come, with `stats()` and `check()` beside it.
    Growth,
    Resize,
    /// Sessions end as the death of the process leaves them.
    Kill,
    FailedSyncs,
    /// Of several paths one goes for good.
    GonePath,
    ReadOnly,
    /// Threads stop for a moment, wherever they are.
    Pauses,
    /// Transfers are done, and the store hears of it late.
    Delays,
    LateSyncs,
    /// The device of the only path goes, and is back a round later.
    AwayPath,
    /// Memory of SETs and GETs is registered, and given back while they are under way.
    Registered,
    /// The store is closed with batches under way.
    BusyClose,
}

impl Mechanism {
    /// Whether two can be in one life. Of several paths one that takes no writes goes as well, or one of which too many fail.
    fn meets(self, other: Self) -> bool {
        let fails =
            |one| matches!(one, Self::Faults | Self::ReadOnly | Self::FailedSyncs | Self::AwayPath);
        let loses_path = |one| one == Self::GonePath;
        self != other && !(fails(self) && loses_path(other) || loses_path(self) && fails(other))
    }
}

/// Namespaces of keys. The second one has a quota, if there are quotas.
pub(crate) const NAMESPACES: [&str; 2] = ["large/model", "small"];
const KEYS_PER_NAMESPACE: usize = 60;

/// The keys of a namespace.
pub(crate) fn keys_of(number: usize) -> Vec<u64> {
    let is_of = |key: &u64| namespace(*key) == NAMESPACES[number];
    (0..).filter(is_of).take(KEYS_PER_NAMESPACE).collect()
}

/// The life of one store.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) mechanisms: Vec<Mechanism>,
    pub(crate) layout: Layout,
    pub(crate) durability: Durability,
    pub(crate) eviction: Eviction,
    pub(crate) capacity_bytes: u64,
    pub(crate) paths: usize,
    /// Most bytes of the second namespace, or 0.
    pub(crate) quota_bytes: u64,
    /// Lengths of chunks: one, or several.
    pub(crate) lengths: Vec<usize>,
    pub(crate) lease_s: u32,
    pub(crate) ttl: Option<Duration>,
    pub(crate) sessions: usize,
    pub(crate) rounds: usize,
}

impl Plan {
    /// A life in which these meet, and what `seed` draws: two or three, if none is given.
    pub(crate) fn drawn(seed: u64, given: &[Mechanism]) -> Self {
        let mut random = Random::new(seed);
        let mut mechanisms = given.to_vec();
        let count = 2 + random.below(2) as usize;
        while mechanisms.len() < count {
            let one = random.choose(Mechanism::value_variants());
            if mechanisms.iter().all(|other| one.meets(*other)) {
                mechanisms.push(one);
            }
        }
        let layout = random.choose(&[Layout::Extents, Layout::Files]);
        let durability = random.choose(&[Durability::BestEffort, Durability::Persistent]);
        Self::of(seed, mechanisms, layout, durability)
    }

    pub(crate) fn of(
        seed: u64,
        mechanisms: Vec<Mechanism>,
        layout: Layout,
        durability: Durability,
    ) -> Self {
        let mut random = Random::new(!seed);
        let has = |one| mechanisms.contains(&one);
        let grows = has(Mechanism::Growth);
        let short = random.choose(&[4096, 20_000, 100_001]);
        Self {
            seed,
            layout: if grows { Layout::Extents } else { layout },
            durability,
            // What comes last goes last: an acknowledged chunk is a hit at once.
            eviction: random.choose(&[Eviction::Adaptive, Eviction::Lru, Eviction::Fifo]),
            capacity_bytes: if grows { MIB << 23 } else { random.choose(&[16, 32]) * MIB },
            paths: if has(Mechanism::GonePath) { 2 + random.below(2) as usize } else { 1 },
            // Of chunks of 4 MiB, as of shorter ones: room for some.
            quota_bytes: match (has(Mechanism::Quotas), random.choose(&[2, 4]) * MIB) {
                (false, _) => 0,
                (true, bytes) => bytes * if grows { 8 } else { 1 },
            },
            lengths: match grows {
                true => vec![short, MIB as usize],
                // Such that the keys of the namespace are more than the quota.
                false if has(Mechanism::Quotas) && has(Mechanism::Leases) => vec![100_001],
                false if random.one_of(2) => vec![short],
                false => vec![1, 5000, 300_001, short],
            },
            lease_s: if has(Mechanism::Leases) { random.choose(&[5, 60]) } else { 0 },
            ttl: has(Mechanism::Expiry).then(|| Duration::from_secs(60)),
            sessions: if grows { 1 } else { 3 },
            rounds: if grows { 4 } else { 10 },
            mechanisms,
        }
    }

    pub(crate) fn has(&self, mechanism: Mechanism) -> bool {
        self.mechanisms.contains(&mechanism)
    }

    /// Whether SETs that are acknowledged may store nothing.
    pub(crate) fn may_refuse(&self) -> bool {
        self.has(Mechanism::SecondUse)
            || self.has(Mechanism::WriteBudget)
            || self.eviction == Eviction::Adaptive
    }

    /// Whether room for a chunk never is a run of neighbours.
    pub(crate) fn has_one_length(&self) -> bool {
        self.lengths.len() == 1
    }

    pub(crate) fn chunk(&self, version: u64) -> Chunk {
        Chunk { version, length: self.lengths[version as usize % self.lengths.len()] }
    }

    /// One in so many transfers is late, and in so many syncs; 0 for none.
    pub(crate) fn late_one_in(&self) -> (u64, u64) {
        let of = |has, one_in| if has { one_in } else { 0 };
        (of(self.has(Mechanism::Delays), 8), of(self.has(Mechanism::LateSyncs), 2))
    }

    pub(crate) fn apply(&self, config: &mut Config) {
        (config.layout, config.durability, config.eviction) =
            (self.layout, self.durability, self.eviction);
        (config.lease_s, config.ttl, config.min_free_bytes) = (self.lease_s, self.ttl, Some(0));
        if self.quota_bytes > 0 {
            config.quotas = vec![(NAMESPACES[1].to_owned(), self.quota_bytes)];
        }
        if self.has(Mechanism::SecondUse) {
            config.admission = Admission::SecondUse;
        }
        if self.has(Mechanism::WriteBudget) {
            // An hour's worth may come at once.
            config.write_budget_bytes = Some(24 * self.capacity_bytes / 4);
        }
    }
}
