//! Chunks in bounded room, and the keys of those that are not there any more.

use std::collections::{BTreeMap, HashMap};

use kvring::Eviction;
use kvring::bench::{EvictionProbe, Held};

use crate::trace::Trace;

/// A cache, with kvring's order of eviction.
pub(crate) struct Level {
    pub(crate) order: EvictionProbe,
    /// By chunk.
    held: Vec<Option<Held>>,
    room: usize,
    /// Chunks that are held.
    pub(crate) len: usize,
}

impl Level {
    pub(crate) fn new(eviction: Eviction, trace: &Trace, room: usize) -> Self {
        let held = vec![None; trace.chunks as usize];
        Self { order: EvictionProbe::new(eviction), held, room, len: 0 }
    }

    pub(crate) fn holds(&self, chunk: u32) -> bool {
        self.held[chunk as usize].is_some()
    }

    /// Uses a chunk if it is held.
    pub(crate) fn touch(&mut self, chunk: u32) -> bool {
        let held = self.held[chunk as usize];
        held.into_iter().for_each(|held| self.order.touch(held));
        held.is_some()
    }

    /// Stores a chunk, as one that was used so often. Returns the one that went for it, with its uses.
    pub(crate) fn store(&mut self, chunk: u32, uses: u16) -> Option<(u32, u16)> {
        let is_full = self.len == self.room;
        let victim = if is_full { self.order.evict() } else { None };
        match victim {
            Some((victim, _)) => self.held[victim as usize] = None,
            None => self.len += 1,
        }
        self.held[chunk as usize] = Some(self.order.insert(chunk, 1, uses));
        victim
    }
}

/// More uses than these are not remembered: kvring has four bits for them.
const MOST_USES: u16 = 15;

/// Chunks that were evicted, or not admitted, with the uses that they had.
#[derive(Default)]
pub(crate) struct Ghosts {
    /// The oldest first.
    by_age: BTreeMap<u64, u32>,
    /// The age, and the uses.
    by_chunk: HashMap<u32, (u64, u16)>,
    remembered: u64,
    used: u64,
}

impl Ghosts {
    /// Remembers a chunk, and forgets the oldest ones beyond so many.
    pub(crate) fn remember(&mut self, chunk: u32, uses: u16, most: usize) {
        self.remembered += 1;
        self.by_age.insert(self.remembered, chunk);
        self.by_chunk.insert(chunk, (self.remembered, uses.min(MOST_USES)));
        self.used += u64::from(uses > 0);
        while self.by_chunk.len() > most
            && let Some((_, oldest)) = self.by_age.first_key_value()
        {
            self.forget(*oldest);
        }
    }

    pub(crate) fn uses(&self, chunk: u32) -> Option<u16> {
        self.by_chunk.get(&chunk).map(|(_, uses)| *uses)
    }

    pub(crate) fn forget(&mut self, chunk: u32) {
        if let Some((age, uses)) = self.by_chunk.remove(&chunk) {
            self.by_age.remove(&age);
            self.used -= u64::from(uses > 0);
        }
    }

    /// How many were used, and how many were not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.used, self.by_chunk.len() as u64 - self.used)
    }
}
