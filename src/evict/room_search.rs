//! Which chunks have to go so that there is room for one of so many blocks, as cheaply as it can be found.

use super::NodeId;
use super::eviction_index::Inner;
use super::extent_map::{STEPS_AT_ONCE, Search, Victim, Way, victim};
use crate::store::FreeSpace;

/// Chunks of the cold end among which those are chosen that make room at the lowest price: a part of all, within bounds.
pub(super) const SEEDS: std::ops::RangeInclusive<usize> = 8..=64;
const SEED_PART: usize = 16;
/// Neighbours that are looked at for the cheapest run, where there is a choice.
const MOST_STEPS: usize = 16_384;

/// A chunk whose going makes no room is not looked at for so long.
const USELESS_FOR_S: u32 = 10;

/// A search for room, which goes on where it was when the lock was let go of.
#[derive(Debug)]
pub(crate) struct RoomSearch {
    pub(super) blocks: u32,
    /// Chunks that go first, to look around; none of them yet, at first.
    seeds: Option<std::vec::IntoIter<NodeId>>,
    steps: usize,
    /// The cheapest run so far: what it costs, and its chunks.
    best: Option<(u64, Vec<Victim>)>,
    /// Where it goes on by place, when the seeds had no room around them: from the first of them on.
    way: Option<Way>,
}

/// What a search for room has come to.
#[derive(Debug)]
pub(crate) enum Room {
    /// When these go there is room, if nothing else has happened meanwhile.
    Found(Vec<Victim>),
    /// It is to go on.
    Unfinished,
    /// There is none.
    Nowhere,
}

impl RoomSearch {
    /// For a chunk of `blocks`.
    pub(crate) fn new(blocks: u32) -> Self {
        Self { blocks, seeds: None, steps: 0, best: None, way: None }
    }
}

impl Inner {
    pub(super) fn for_room(
        &mut self,
        search: &mut RoomSearch,
        free: &(impl FreeSpace + ?Sized),
        now_s: u32,
    ) -> Room {
        if let Some(missing) = free.missing_blocks(search.blocks) {
            let enough = self.enough(missing.max(1));
            return match enough.is_empty() {
                true if self.ordered() > 0 => Room::Unfinished,
                true => Room::Nowhere,
                false => Room::Found(self.victims(&enough)),
            };
        }
        if search.seeds.is_none() {
            let wanted = (self.nodes.len() / SEED_PART).clamp(*SEEDS.start(), *SEEDS.end());
            let seeds = self.coldest(wanted);
            if self.exclude_useless(&seeds, free, now_s) {
                return Room::Unfinished;
            }
            let Some(&first) = seeds.first() else {
                return if self.ordered() > 0 { Room::Unfinished } else { Room::Nowhere };
            };
            search.way = Some(Way::from(self.nodes[first].extent));
            search.seeds = Some(seeds.into_iter());
        }
        let (nodes, pools) = (&self.nodes, &self.pools);
        let rank = |id: NodeId| pools[nodes[id].pool as usize].policy.rank(nodes, id);
        let blocks = u64::from(search.blocks);
        let mut look = Search { extents: &self.extents, nodes, free, blocks, steps: 0 };
        for seed in search.seeds.iter_mut().flatten() {
            // It may be another chunk's number by now, which is as good.
            if nodes.may_go(seed)
                && let Some(window) = look.around(seed, &rank)
                && search.best.as_ref().is_none_or(|(cost, _)| window.cost < *cost)
            {
                search.best = Some((window.cost, self.victims(&window.chunks)));
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
        let Some(way) = &mut search.way else { return Room::Nowhere };
        match look.go_along(way) {
            Some(true) => Room::Found(way.take_run()),
            Some(false) => Room::Nowhere,
            None => Room::Unfinished,
        }
    }

    /// Takes those of `chunks` out of the order of eviction, for a while, whose going makes no room. Says whether there were any.
    fn exclude_useless(
        &mut self,
        chunks: &[NodeId],
        free: &(impl FreeSpace + ?Sized),
        now_s: u32,
    ) -> bool {
        let before = self.ordered();
        for id in chunks {
            if !free.makes_room(self.nodes[*id].extent) {
                let pool = self.nodes[*id].pool as usize;
                self.pools[pool].exclude(&mut self.nodes, *id, now_s + USELESS_FOR_S);
            }
        }
        self.ordered() < before
    }

    /// Up to `count` chunks that go first, and a few more, of each pool as many as its share of all.
    pub(super) fn coldest(&mut self, count: usize) -> Vec<NodeId> {
        let all = self.ordered();
        let mut found = Vec::with_capacity(count.min(all));
        for pool in self.pools.iter_mut().filter(|pool| pool.ordered() > 0) {
            let share = (count * pool.ordered()).div_ceil(all);
            pool.policy.coldest(&mut self.nodes, share, &mut found);
        }
        found
    }

    /// The coldest chunks that have `blocks` together; those found so far if there are not so many, or it would take too long.
    fn enough(&mut self, blocks: u64) -> Vec<NodeId> {
        let mut wanted = *SEEDS.start();
        loop {
            let mut coldest = self.coldest(wanted);
            let mut freed = 0;
            let last = coldest.iter().position(|id| {
                freed += u64::from(self.nodes[*id].extent.blocks);
                freed >= blocks
            });
            let is_all = coldest.len() < wanted || coldest.len() >= self.ordered();
            match last {
                Some(last) => {
                    coldest.truncate(last + 1);
                    return coldest;
                }
                None if is_all || wanted >= STEPS_AT_ONCE / 2 => return coldest,
                None => wanted *= 2,
            }
        }
    }

    pub(super) fn victims(&self, chosen: &[NodeId]) -> Vec<Victim> {
        chosen.iter().map(|id| victim(&self.nodes, *id)).collect()
    }
}
