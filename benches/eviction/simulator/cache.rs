//! A cache of bounded size before a trace, and what it found.

use std::collections::{HashMap, VecDeque};

use kvring::Eviction;
use kvring::bench::{EvictionProbe, Held};

use crate::trace::{Sizes, Trace};

/// The cache in memory has one block in so many of kvring's.
const MEMORY_SHARE: u64 = 8;

/// In which order the chunks of a request are used and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// From the first one on.
    Forward,
    /// From the last one on, so that the end of a prefix is older than its beginning, which is of use without it.
    Backward,
}

impl Order {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// What is tried of S3-FIFO beside what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// As it is.
    None,
    /// Nothing that was evicted is remembered.
    WithoutGhost,
    /// A small queue of one block in so many.
    SmallQueue(u64),
}

impl Variant {
    pub(crate) fn name(self) -> String {
        match self {
            Self::None => String::new(),
            Self::WithoutGhost => "without ghost".to_owned(),
            Self::SmallQueue(share) => format!("small queue of 1/{share}"),
        }
    }
}

/// What a cache is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) eviction: Eviction,
    pub(crate) sizes: Sizes,
    /// The cache has one block in so many of the trace's.
    pub(crate) fraction: u64,
    pub(crate) order: Order,
    pub(crate) variant: Variant,
    /// Whether LMCache's cache in memory is in front of it, with LRU and `MEMORY_SHARE`.
    pub(crate) behind_memory: bool,
}

/// What was found, in chunks or in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Asked for.
    pub(crate) lookups: u64,
    /// Held when they were asked for.
    pub(crate) hits: u64,
    /// Held, and all before them in their request as well.
    pub(crate) prefix_hits: u64,
}

impl Found {
    fn count(&mut self, amount: u64, is_held: bool, is_prefix: bool) {
        self.lookups += amount;
        self.hits += if is_held { amount } else { 0 };
        self.prefix_hits += if is_prefix { amount } else { 0 };
    }
}

/// What a cache found in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) chunks: Found,
    pub(crate) blocks: Found,
    pub(crate) stores: u64,
    /// Stores of chunks that it remembered.
    pub(crate) returns: u64,
}

/// Chunks evicted not long ago: as many blocks of them as the cache has.
struct Ghost {
    remembered: HashMap<u32, u64>,
    /// Chunks with the number of their eviction, which tells whether they returned and went again since.
    order: VecDeque<(u32, u64)>,
    evictions: u64,
    room_blocks: u64,
    blocks: u64,
}

impl Ghost {
    fn new(room_blocks: u64) -> Self {
        let (remembered, order) = (HashMap::new(), VecDeque::new());
        Self { remembered, order, evictions: 0, room_blocks, blocks: 0 }
    }

    fn remember(&mut self, chunk: u32, sizes: Sizes) {
        self.evictions += 1;
        self.remembered.insert(chunk, self.evictions);
        self.order.push_back((chunk, self.evictions));
        self.blocks += u64::from(sizes.blocks(chunk));
        while self.blocks > self.room_blocks {
            let Some((oldest, eviction)) = self.order.pop_front() else { break };
            if self.remembered.get(&oldest) == Some(&eviction) {
                self.forget(oldest, sizes);
            }
        }
    }

    /// Whether it was remembered.
    fn forget(&mut self, chunk: u32, sizes: Sizes) -> bool {
        let was_there = self.remembered.remove(&chunk).is_some();
        self.blocks -= if was_there { u64::from(sizes.blocks(chunk)) } else { 0 };
        was_there
    }
}

/// Chunks in bounded room.
struct Level {
    policy: EvictionProbe,
    sizes: Sizes,
    /// By chunk.
    held: Vec<Option<Held>>,
    room_blocks: u64,
    blocks: u64,
}

impl Level {
    fn new(policy: EvictionProbe, sizes: Sizes, chunks: u32, room_blocks: u64) -> Self {
        Self { policy, sizes, held: vec![None; chunks as usize], room_blocks, blocks: 0 }
    }

    fn holds(&self, chunk: u32) -> bool {
        self.held[chunk as usize].is_some()
    }

    /// Uses a chunk if it is held.
    fn touch(&mut self, chunk: u32) -> bool {
        let held = self.held[chunk as usize];
        held.into_iter().for_each(|held| self.policy.touch(held));
        held.is_some()
    }

    /// Stores a chunk that fits. Returns who went for it.
    fn store(&mut self, chunk: u32, returns: bool) -> Vec<u32> {
        let blocks = self.sizes.blocks(chunk);
        let mut victims = Vec::new();
        while self.blocks + u64::from(blocks) > self.room_blocks {
            let Some(victim) = self.policy.evict() else { break };
            self.held[victim as usize] = None;
            self.blocks -= u64::from(self.sizes.blocks(victim));
            victims.push(victim);
        }
        self.held[chunk as usize] = Some(self.policy.insert(chunk, blocks, returns));
        self.blocks += u64::from(blocks);
        victims
    }

    fn fits(&self, chunk: u32) -> bool {
        u64::from(self.sizes.blocks(chunk)) <= self.room_blocks
    }
}

struct Cache {
    /// LMCache's own cache in memory, in front of kvring.
    memory: Option<Level>,
    disk: Level,
    ghost: Ghost,
    outcome: Outcome,
}

impl Cache {
    fn new(setting: Setting, chunks: u32, room_blocks: u64) -> Self {
        let (policy, ghost_blocks) = match setting.variant {
            Variant::None => (EvictionProbe::new(setting.eviction), room_blocks),
            Variant::WithoutGhost => (EvictionProbe::new(setting.eviction), 0),
            Variant::SmallQueue(share) => (EvictionProbe::s3fifo(share), room_blocks),
        };
        let sizes = setting.sizes;
        let level = |policy, room_blocks| Level::new(policy, sizes, chunks, room_blocks);
        let lru = || EvictionProbe::new(Eviction::Lru);
        Self {
            memory: setting.behind_memory.then(|| level(lru(), room_blocks / MEMORY_SHARE)),
            disk: level(policy, room_blocks),
            ghost: Ghost::new(ghost_blocks),
            outcome: Outcome::default(),
        }
    }

    /// Looks a request up. Returns how many chunks are found before the first one that is not.
    fn look_up(&mut self, request: &[u32]) -> usize {
        let mut found = 0;
        for (place, chunk) in request.iter().enumerate() {
            let is_in_memory = self.memory.as_ref().is_some_and(|memory| memory.holds(*chunk));
            let is_held = is_in_memory || self.disk.holds(*chunk);
            found += usize::from(is_held && found == place);
            self.outcome.chunks.count(1, is_held, found > place);
            let blocks = u64::from(self.disk.sizes.blocks(*chunk));
            self.outcome.blocks.count(blocks, is_held, found > place);
        }
        found
    }

    /// Loads or stores a chunk. One that is held, but was not loaded since one before it is missing, is stored again,
    /// which is a use. What is in memory does not ask the disk.
    fn use_or_store(&mut self, chunk: u32) {
        if let Some(memory) = &mut self.memory {
            if memory.touch(chunk) {
                return;
            }
            if memory.fits(chunk) {
                memory.store(chunk, false);
            }
        }
        if self.disk.touch(chunk) || !self.disk.fits(chunk) {
            return;
        }
        let sizes = self.disk.sizes;
        let returns = self.ghost.forget(chunk, sizes);
        for victim in self.disk.store(chunk, returns) {
            self.ghost.remember(victim, sizes);
        }
        self.outcome.stores += 1;
        self.outcome.returns += u64::from(returns);
    }
}

/// Blocks that a cache has for a trace: at least one.
pub(crate) fn room_blocks(trace: &Trace, setting: Setting) -> u64 {
    (trace.footprint_blocks(setting.sizes) / setting.fraction).max(1)
}

/// Plays a trace to a cache. A request looks all of its chunks up, loads those before the first one that is missing, and
/// stores that one and the rest.
pub(crate) fn simulate(trace: &Trace, setting: Setting) -> Outcome {
    let mut cache = Cache::new(setting, trace.chunks, room_blocks(trace, setting));
    for request in &trace.requests {
        let found = cache.look_up(request);
        let (loaded, stored) = request.split_at(found);
        for part in [loaded, stored] {
            match setting.order {
                Order::Forward => part.iter().for_each(|chunk| cache.use_or_store(*chunk)),
                Order::Backward => part.iter().rev().for_each(|chunk| cache.use_or_store(*chunk)),
            }
        }
    }
    cache.outcome
}
