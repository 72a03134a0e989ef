//! A cache of bounded size before a trace, and what it found.

use kvring::Eviction;

use crate::level::{Ghosts, Level};
use crate::random::Random;
use crate::trace::Trace;

/// Coins are whole numbers below this one.
const COINS: u64 = 1 << 24;

/// What decides which chunks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// All chunks are stored.
    Evict(Eviction),
    /// Adaptive, where chunks are stored for the share of requests that it has learnt.
    Admit,
    /// Knowledge of all requests to come.
    Min,
}

impl Policy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Evict(eviction) => eviction.name(),
            Self::Admit => "adaptive+admit",
            Self::Min => "min",
        }
    }

    fn eviction(self) -> Eviction {
        match self {
            Self::Evict(eviction) => eviction,
            Self::Admit | Self::Min => Eviction::Adaptive,
        }
    }
}

/// What a cache is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) policy: Policy,
    /// Chunks that it has room for.
    pub(crate) room: usize,
    /// A cache in memory with LRU, as LMCache has it, is in front of it and has room for so many.
    pub(crate) memory: Option<usize>,
}

/// What a cache found in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Chunks that were held when they were asked for, and all before them in their request as well.
    pub(crate) prefix_hits: usize,
    /// Those of each quarter of the requests.
    pub(crate) quarters: [usize; 4],
    /// Chunks written.
    pub(crate) stores: u64,
    /// The bonus at the end.
    pub(crate) bonus: f32,
}

impl Outcome {
    /// Request `number` found so many.
    pub(crate) fn count(&mut self, trace: &Trace, number: usize, found: usize) {
        self.prefix_hits += found;
        self.quarters[number * 4 / trace.requests.len()] += found;
    }
}

/// A coin for each request: seeded, so that each run has the same.
pub(crate) fn coins() -> impl FnMut(usize) -> f32 {
    let mut random = Random::new(4);
    move |_| random.below(COINS) as f32 / COINS as f32
}

/// Chunks on disk.
struct Disk {
    level: Level,
    ghosts: Ghosts,
    is_adaptive: bool,
    stores: u64,
}

impl Disk {
    /// Stores a chunk that is not there, unless nothing is known of it and its request is not admitted.
    fn store(&mut self, chunk: u32, is_admitted: bool) {
        let ghost = self.ghosts.uses(chunk);
        if let Some(uses) = ghost {
            let (used, unused) = self.ghosts.counts();
            self.level.order.learn(uses > 0, used, unused);
            self.ghosts.forget(chunk);
        } else if !is_admitted {
            return self.ghosts.remember(chunk, 0, 2 * self.level.len);
        }
        let uses = ghost.filter(|_| self.is_adaptive).map_or(0, |uses| uses.saturating_add(1));
        self.stores += 1;
        if let Some((victim, uses)) = self.level.store(chunk, uses) {
            self.ghosts.remember(victim, uses, 2 * self.level.len);
        }
    }
}

/// Plays a trace to a cache. A request looks all of its chunks up, loads those before the first one that is missing, and stores that one
/// and the rest: with the adaptive policy each time the last one first, as kvring does.
///
/// A chunk that is stored already is used once more. So is one that is in memory, which is not stored again if the disk has lost it.
/// Memory takes the last one first, as LMCache does, so that it has the same chunks with each policy.
pub(crate) fn simulate(
    trace: &Trace,
    setting: Setting,
    mut coins: impl FnMut(usize) -> f32,
) -> Outcome {
    let Setting { policy, room, memory } = setting;
    let mut memory = memory.map(|room| Level::new(Eviction::Lru, trace, room));
    let mut disk = Disk {
        level: Level::new(policy.eviction(), trace, room),
        ghosts: Ghosts::default(),
        is_adaptive: policy.eviction() == Eviction::Adaptive,
        stores: 0,
    };
    let mut outcome = Outcome::default();
    for (number, request) in trace.requests.iter().enumerate() {
        let is_in_memory = |chunk: &u32| memory.as_ref().is_some_and(|memory| memory.holds(*chunk));
        let in_memory: Vec<bool> = request.iter().map(is_in_memory).collect();
        let is_missing = |place: &usize| !in_memory[*place] && !disk.level.holds(request[*place]);
        let found = (0..request.len()).find(is_missing).unwrap_or(request.len());
        outcome.count(trace, number, found);
        if let Some(memory) = &mut memory {
            for chunk in request.iter().rev() {
                if !memory.touch(*chunk) {
                    memory.store(*chunk, 0);
                }
            }
        }
        let is_admitted =
            policy != Policy::Admit || coins(number) < disk.level.order.admitted_share();
        for part in [0..found, found..request.len()] {
            let mut places: Vec<usize> = part.collect();
            if disk.is_adaptive {
                places.reverse();
            }
            for place in places {
                if !disk.level.touch(request[place]) && !in_memory[place] {
                    disk.store(request[place], is_admitted);
                }
            }
        }
    }
    Outcome { stores: disk.stores, bonus: disk.level.order.bonus(), ..outcome }
}
