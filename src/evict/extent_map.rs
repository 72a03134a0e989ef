//! Which chunk lies where, and which neighbours have to go so that there is room for a long one.

use std::collections::BTreeMap;

use super::{ChunkNode, NodeId, Nodes};
use crate::block::Extent;
use crate::store::FreeSpace;

/// Where a chunk is found in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRef {
    pub(crate) shard: u32,
    pub(crate) entry: u32,
}

/// A chunk that may have to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) node: NodeId,
    pub(crate) chunk: ChunkRef,
}

/// Neighbours that are looked at while a lock is held, since others wait for it; and for one more chunk those around that.
pub(super) const STEPS_AT_ONCE: usize = 2048;

/// Neighbours on each side of a chunk among which the cheapest run is looked for. A longer one is found by place.
const MOST_BESIDE: usize = 1024;

/// What a chunk that is far from going weighs, besides its blocks, compared with one that goes first.
const RANK_WEIGHT: u64 = 3;

/// The chunks by place.
#[derive(Default)]
pub(super) struct ExtentMap {
    held: BTreeMap<(u32, u32), NodeId>,
}

/// A run of free blocks, or a chunk, beside the ones before it.
#[derive(Clone, Copy)]
struct Segment {
    blocks: u64,
    cost: u64,
    chunk: Option<NodeId>,
}

/// Chunks that make room together.
pub(super) struct Window {
    pub(super) chunks: Vec<NodeId>,
    pub(super) cost: u64,
}

/// A search by place from `first` on, around the end and back to there, which goes on where it was. What changed meanwhile is seen
/// when the chunks of its run are to go.
#[derive(Debug, Default)]
pub(super) struct Way {
    first: (u32, u32),
    has_wrapped: bool,
    /// The run so far: where its first chunk is, and where it ends.
    start: (u32, u32),
    end: (u32, u32),
    pub(super) run: Vec<Victim>,
    /// Of its chunks, and free ones before and between them.
    blocks: u64,
}

impl Way {
    pub(super) fn from(extent: Extent) -> Self {
        let first = (extent.file, extent.first_block);
        Self { first, start: first, end: first, ..Self::default() }
    }

    /// Its run. If something of that must stay it is to be looked at again.
    pub(super) fn take_run(&mut self) -> Vec<Victim> {
        (self.end, self.blocks) = (self.start, 0);
        std::mem::take(&mut self.run)
    }
}

/// A chunk as one that may have to go.
pub(super) fn victim(nodes: &Nodes, node: NodeId) -> Victim {
    let ChunkNode { shard, entry, .. } = nodes[node];
    Victim { node, chunk: ChunkRef { shard, entry } }
}

impl ExtentMap {
    pub(super) fn insert(&mut self, extent: Extent, id: NodeId) {
        self.held.insert((extent.file, extent.first_block), id);
    }

    pub(super) fn remove(&mut self, extent: Extent) {
        self.held.remove(&(extent.file, extent.first_block));
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn at(&self, extent: Extent) -> Option<NodeId> {
        self.held.get(&(extent.file, extent.first_block)).copied()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.held.values().copied()
    }

    fn ending_at(&self, nodes: &Nodes, file: u32, block: u32) -> Option<NodeId> {
        let (_, &id) = self.held.range((file, 0)..(file, block)).next_back()?;
        (nodes[id].extent.end_block() == u64::from(block)).then_some(id)
    }
}

/// A search for the chunks that are cheapest to give up for a run of `blocks`.
pub(super) struct Search<'data, F: ?Sized> {
    pub(super) extents: &'data ExtentMap,
    pub(super) nodes: &'data Nodes,
    pub(super) free: &'data F,
    pub(super) blocks: u64,
    pub(super) steps: usize,
}

impl<F: FreeSpace + ?Sized> Search<'_, F> {
    /// Whether it is time to let go of the lock.
    pub(super) fn is_over(&self) -> bool {
        self.steps >= STEPS_AT_ONCE
    }

    /// Goes on along `way`, up to a run that is long enough. Says whether it found one; `None` if that is not known yet.
    pub(super) fn go_along(&mut self, way: &mut Way) -> Option<bool> {
        while way.blocks < self.blocks {
            if self.is_over() {
                return None;
            }
            self.steps += 1;
            let (file, block) = way.end;
            // What lies before the first chunk is free, or no part of the run.
            let free = if way.run.is_empty() { 0 } else { self.free.free_from(file, block) };
            let next = self.extents.held.get(&way.end).copied();
            let next = next.filter(|id| !self.must_stay(*id));
            if free > 0 {
                way.blocks += u64::from(free);
                way.end.1 += free;
            } else if let Some(id) = next {
                if way.run.is_empty() {
                    way.blocks = self.free.free_before(file, block).into();
                    way.start = way.end;
                }
                let blocks = self.nodes[id].extent.blocks;
                way.blocks += u64::from(blocks);
                way.run.push(victim(self.nodes, id));
                way.end.1 += blocks;
            } else if !self.go_past_obstacle(way) {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Begins a new run behind what ended the last one; says whether there is anything.
    fn go_past_obstacle(&self, way: &mut Way) -> bool {
        (way.blocks, way.run) = (0, Vec::new());
        let behind = |place: (u32, u32)| {
            let (&(file, block), &id) = self.extents.held.range(place..).next()?;
            let stays = self.must_stay(id);
            let blocks = if stays { self.nodes[id].extent.blocks } else { 0 };
            Some((file, block + blocks))
        };
        let mut next = behind(way.end);
        if next.is_none() && !way.has_wrapped {
            way.has_wrapped = true;
            next = behind((0, 0));
        }
        let Some(next) = next.filter(|next| !way.has_wrapped || *next < way.first) else {
            return false;
        };
        way.end = next;
        true
    }

    /// The cheapest window that contains `seed`. `rank` tells how far a chunk is from going.
    pub(super) fn around(&mut self, seed: NodeId, rank: &impl Fn(NodeId) -> u8) -> Option<Window> {
        let extent = self.nodes[seed].extent;
        let own = self.segment(seed, rank);
        let missing = self.blocks.saturating_sub(own.blocks);
        let before = self.beside(extent, missing, rank, true);
        let after = self.beside(extent, missing, rank, false);
        let blocks = |side: &[Segment]| side.iter().map(|segment| segment.blocks).sum::<u64>();
        let cost = |side: &[Segment]| side.iter().map(|segment| segment.cost).sum::<u64>();
        // From all of one side on: as many as needed of the other, while the first gives way.
        let (mut left, mut right) = (before.len(), 0);
        let (mut have, mut price) = (own.blocks + blocks(&before), own.cost + cost(&before));
        let mut best: Option<(u64, usize, usize)> = None;
        loop {
            while have < self.blocks && right < after.len() {
                have += after[right].blocks;
                price += after[right].cost;
                right += 1;
            }
            if have < self.blocks {
                break;
            }
            if best.is_none_or(|(cost, ..)| price < cost) {
                best = Some((price, left, right));
            }
            let Some(outermost) = left.checked_sub(1) else { break };
            left = outermost;
            have -= before[left].blocks;
            price -= before[left].cost;
        }
        let (cost, left, right) = best?;
        let beside = before[..left].iter().chain(&after[..right]);
        let chunks = std::iter::once(seed).chain(beside.filter_map(|segment| segment.chunk));
        Some(Window { chunks: chunks.collect(), cost })
    }

    /// What lies before or after a place, nearest first, until it is `missing` blocks, too many, or something that must stay.
    fn beside(
        &mut self,
        extent: Extent,
        missing: u64,
        rank: &impl Fn(NodeId) -> u8,
        before: bool,
    ) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut found = 0;
        let file = extent.file;
        let mut block =
            if before { extent.first_block } else { extent.first_block + extent.blocks };
        // Each step finds a block at least.
        while found < missing && segments.len() < MOST_BESIDE {
            self.steps += 1;
            let free = match before {
                true => self.free.free_before(file, block),
                false => self.free.free_from(file, block),
            };
            let segment = if free > 0 {
                Segment { blocks: u64::from(free), cost: 0, chunk: None }
            } else {
                let neighbour = match before {
                    true => self.extents.ending_at(self.nodes, file, block),
                    false => self.extents.held.get(&(file, block)).copied(),
                };
                match neighbour.filter(|id| !self.must_stay(*id)) {
                    Some(id) => self.segment(id, rank),
                    None => break,
                }
            };
            found += segment.blocks;
            match before {
                true => block -= segment.blocks as u32,
                false => block += segment.blocks as u32,
            }
            segments.push(segment);
        }
        segments
    }

    fn must_stay(&self, id: NodeId) -> bool {
        self.nodes[id].excluded_until_s().is_some() || !self.free.makes_room(self.nodes[id].extent)
    }

    fn segment(&self, id: NodeId, rank: &impl Fn(NodeId) -> u8) -> Segment {
        let blocks = u64::from(self.nodes[id].extent.blocks);
        let weight = 255 + RANK_WEIGHT * u64::from(rank(id));
        Segment { blocks, cost: blocks * weight, chunk: Some(id) }
    }
}

#[cfg(test)]
mod tests;
