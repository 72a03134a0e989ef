//! The search for room: which chunks to evict for a chunk of so many blocks, at the lowest cost that can be found.

use super::NodeId;
use super::eviction_index::EvictionIndex;
use super::neighbours::{Scan, Search, Victim};
use super::pool::{coldest, coldest_with};
use crate::store::FreeSpace;

/// Chunks that would go first, around each of which the cheapest run is looked for: a part of all, within bounds.
const SEEDS: std::ops::RangeInclusive<usize> = 8..=64;
const SEED_PART: usize = 16;
/// Neighbours that are looked at for a cheaper run once there is one.
const MOST_STEPS: usize = 16_384;

/// Searches for one room that begin anew before what is coldest counts no more, so that they end.
const MOST_ROUNDS: usize = 64;

/// A search for room. It can be left off, to let go of the lock, and gone on with.
#[derive(Debug, Default)]
pub(crate) struct RoomSearch {
    pub(crate) blocks: u32,
    /// The seeds that are left, and the scan that follows if there is no room around any of them.
    started: Option<(std::vec::IntoIter<NodeId>, Scan)>,
    steps: usize,
    /// The cheapest run so far: its cost and its chunks.
    best: Option<(u64, Vec<Victim>)>,
    /// What it finds comes from the scan: what lies next, however hot that is.
    scans: bool,
    /// Times that it began anew.
    rounds: usize,
}

#[derive(Debug)]
pub(crate) enum Room {
    /// There is room once these are evicted, if nothing else changes before.
    Found(Vec<Victim>),
    Unfinished,
    Nowhere,
}

impl RoomSearch {
    pub(crate) fn new(blocks: u32) -> Self {
        Self { blocks, ..Self::default() }
    }

    /// What it found must stay, or another thread has evicted it: looks at what goes first now. What a scan found was the
    /// last resort, and that goes on.
    pub(crate) fn begin_anew(&mut self) {
        if !self.scans && self.rounds < MOST_ROUNDS {
            *self = Self { rounds: self.rounds + 1, ..Self::new(self.blocks) };
        }
    }
}

impl EvictionIndex {
    /// Goes on with a search for chunks whose eviction makes room at the lowest cost: a run of neighbours, or the coldest
    /// where space need not be contiguous. One call looks at a bounded number of chunks.
    pub(crate) fn for_room(
        &mut self,
        search: &mut RoomSearch,
        free: &dyn FreeSpace,
        now_s: u32,
    ) -> Room {
        let came_back = self.reinsert(now_s);
        match self.search_on(search, free) {
            // The search has not seen those.
            Room::Nowhere if came_back => {
                *search = RoomSearch::new(search.blocks);
                Room::Unfinished
            }
            room => room,
        }
    }

    fn search_on(&mut self, search: &mut RoomSearch, free: &dyn FreeSpace) -> Room {
        if let Some(missing) = free.missing_blocks(search.blocks) {
            let enough = coldest_with(&self.pools, &self.nodes, missing.max(1));
            return match enough.is_empty() {
                true => Room::Nowhere,
                false => Room::Found(self.victims(&enough)),
            };
        }
        if search.started.is_none() {
            let wanted = (self.nodes.len() / SEED_PART).clamp(*SEEDS.start(), *SEEDS.end());
            let seeds = coldest(&self.pools, &self.nodes, wanted);
            let Some(&first) = seeds.first() else { return Room::Nowhere };
            search.started = Some((seeds.into_iter(), Scan::from(self.nodes[first].extent)));
        }
        let Some((seeds, scan)) = &mut search.started else { return Room::Unfinished };
        let (nodes, pools) = (&self.nodes, &self.pools);
        let rank = |id: NodeId| pools[usize::from(nodes[id].pool)].order.rank(nodes, id);
        let blocks = u64::from(search.blocks);
        let mut look =
            Search { extents: &self.extents, nodes, free, rank: &rank, blocks, steps: 0 };
        for seed in seeds {
            // Its number may be another chunk's by now, which is a seed as good.
            if nodes.is_ordered(seed)
                && let Some((cost, chunks)) = look.around(seed)
                && search.best.as_ref().is_none_or(|(least, _)| cost < *least)
            {
                search.best = Some((cost, self.victims(&chunks)));
            }
            if search.best.is_some() && search.steps + look.steps >= MOST_STEPS {
                break;
            }
            if look.is_over() {
                search.steps += look.steps;
                return Room::Unfinished;
            }
        }
        if let Some((_, victims)) = search.best.take() {
            return Room::Found(victims);
        }
        search.scans = true;
        match look.scan(scan) {
            Some(true) => Room::Found(scan.take_run()),
            Some(false) => Room::Nowhere,
            None => Room::Unfinished,
        }
    }
}

#[cfg(test)]
mod tests;
