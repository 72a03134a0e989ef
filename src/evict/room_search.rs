//! Which chunks have to go so that there is room for one of so many blocks, as cheaply as it can be found.

use super::places::Search;
use super::residents::{ChunkRef, Inner, Victim};
use super::{ChunkNode, NodeId};
use crate::store::FreeSpace;

/// Chunks of the cold end among which those are chosen that make room at the lowest price: a part of all, within bounds.
pub(super) const SEEDS: std::ops::RangeInclusive<usize> = 8..=64;
const SEED_PART: usize = 16;
/// Neighbours that are looked at for the cheapest run, where there is a choice.
const MOST_STEPS: usize = 16_384;

/// A search for room, which goes on where it was when the lock was let go of.
#[derive(Debug)]
pub(crate) struct RoomSearch {
    pub(super) blocks: u32,
    /// Chunks that go first, to look around; none of them yet, at first.
    seeds: Option<std::vec::IntoIter<NodeId>>,
    steps: usize,
    /// The cheapest run so far: what it costs, and its chunks.
    best: Option<(u64, Vec<Victim>)>,
    /// Where it goes on by place, when the seeds had no room around them.
    from: (u32, u32),
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
        Self { blocks, seeds: None, steps: 0, best: None, from: (0, 0) }
    }
}

impl Inner {
    pub(super) fn for_room(
        &mut self,
        search: &mut RoomSearch,
        free: &(impl FreeSpace + ?Sized),
    ) -> Room {
        if let Some(missing) = free.missing_blocks(search.blocks) {
            let enough = self.enough(missing.max(1));
            return match enough.is_empty() {
                true => Room::Nowhere,
                false => Room::Found(self.victims(&enough)),
            };
        }
        if search.seeds.is_none() {
            let wanted = (self.nodes.len() / SEED_PART).clamp(*SEEDS.start(), *SEEDS.end());
            search.seeds = Some(self.coldest(wanted).into_iter());
        }
        let (nodes, pools) = (&self.nodes, &self.pools);
        let heat = |id: NodeId| pools[nodes[id].pool as usize].policy.heat(nodes, id);
        let blocks = u64::from(search.blocks);
        let mut look = Search { places: &self.places, nodes, free, blocks, steps: 0 };
        for seed in search.seeds.iter_mut().flatten() {
            // It may be another chunk's number by now, which is as good.
            if nodes.may_go(seed)
                && let Some(window) = look.around(seed, &heat)
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
        let (window, next) = look.next_by_place(search.from, heat);
        if let Some(next) = next {
            search.from = next;
        }
        match (window, next) {
            (Some(window), _) => Room::Found(self.victims(&window.chunks)),
            (None, Some(_)) => Room::Unfinished,
            (None, None) => Room::Nowhere,
        }
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

    /// The coldest chunks that have `blocks` together, all that may go if those have less.
    fn enough(&mut self, blocks: u64) -> Vec<NodeId> {
        let mut wanted = *SEEDS.start();
        loop {
            let mut coldest = self.coldest(wanted);
            let mut freed = 0;
            let last = coldest.iter().position(|id| {
                freed += u64::from(self.nodes[*id].extent.blocks);
                freed >= blocks
            });
            match last {
                Some(last) => {
                    coldest.truncate(last + 1);
                    return coldest;
                }
                None if coldest.len() >= self.ordered() => return coldest,
                None => wanted *= 2,
            }
        }
    }

    pub(super) fn victims(&self, chosen: &[NodeId]) -> Vec<Victim> {
        let victim = |&node: &NodeId| {
            let ChunkNode { shard, entry, .. } = self.nodes[node];
            Victim { node, chunk: ChunkRef { shard, entry } }
        };
        chosen.iter().map(victim).collect()
    }
}
