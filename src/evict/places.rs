//! Which chunk lies where, and which neighbours have to go so that there is room for a long one.

use std::collections::BTreeMap;

use super::{NodeId, Nodes};
use crate::store::{Extent, FreeSpace};

/// Neighbours that are looked at while a lock is held: others wait for it. At least those of one run, however many.
pub(super) const STEPS_AT_ONCE: usize = 2048;

/// What a chunk that is far from going weighs, besides its blocks, compared with one that goes first.
const HEAT_WEIGHT: u64 = 3;

/// The chunks by place.
#[derive(Default)]
pub(super) struct Places {
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

impl Places {
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
    pub(super) places: &'data Places,
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

    /// The first window by place from `from` on, and where to go on, if anything is left.
    pub(super) fn next_by_place(
        &mut self,
        from: (u32, u32),
        heat: impl Fn(NodeId) -> u8,
    ) -> (Option<Window>, Option<(u32, u32)>) {
        let mut from = from;
        while let Some((&place, &id)) = self.places.held.range(from..).next() {
            if self.is_over() {
                return (None, Some(place));
            }
            self.steps += 1;
            let extent = self.nodes[id].extent;
            let behind = (extent.file, extent.first_block + extent.blocks);
            if self.nodes[id].excluded_until_s().is_some() {
                from = behind;
                continue;
            }
            let own = self.segment(id, &heat);
            let before = self.free.free_before(extent.file, extent.first_block);
            let missing = self.blocks.saturating_sub(own.blocks + u64::from(before));
            let after = self.beside(extent, missing, &heat, false);
            let found: u64 = after.iter().map(|segment| segment.blocks).sum();
            if found >= missing {
                let cost = own.cost + after.iter().map(|segment| segment.cost).sum::<u64>();
                let others = after.iter().filter_map(|segment| segment.chunk);
                let chunks = std::iter::once(id).chain(others).collect();
                return (Some(Window { chunks, cost }), Some(place));
            }
            // Whatever begins in between ends at the same obstacle.
            from = (behind.0, behind.1 + found as u32);
        }
        (None, None)
    }

    /// The cheapest window that contains `seed`. `heat` tells how far a chunk is from going.
    pub(super) fn around(&mut self, seed: NodeId, heat: &impl Fn(NodeId) -> u8) -> Option<Window> {
        let extent = self.nodes[seed].extent;
        let own = self.segment(seed, heat);
        let missing = self.blocks.saturating_sub(own.blocks);
        let before = self.beside(extent, missing, heat, true);
        let after = self.beside(extent, missing, heat, false);
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

    /// What lies before or after a place, nearest first, until it is `missing` blocks, or something that must stay.
    fn beside(
        &mut self,
        extent: Extent,
        missing: u64,
        heat: &impl Fn(NodeId) -> u8,
        before: bool,
    ) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut found = 0;
        let file = extent.file;
        let mut block =
            if before { extent.first_block } else { extent.first_block + extent.blocks };
        // Each step finds a block at least.
        while found < missing {
            self.steps += 1;
            let free = match before {
                true => self.free.free_before(file, block),
                false => self.free.free_from(file, block),
            };
            let segment = if free > 0 {
                Segment { blocks: u64::from(free), cost: 0, chunk: None }
            } else {
                let neighbour = match before {
                    true => self.places.ending_at(self.nodes, file, block),
                    false => self.places.held.get(&(file, block)).copied(),
                };
                match neighbour.filter(|id| self.nodes[*id].excluded_until_s().is_none()) {
                    Some(id) => self.segment(id, heat),
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

    fn segment(&self, id: NodeId, heat: &impl Fn(NodeId) -> u8) -> Segment {
        let blocks = u64::from(self.nodes[id].extent.blocks);
        let weight = 255 + HEAT_WEIGHT * u64::from(heat(id));
        Segment { blocks, cost: blocks * weight, chunk: Some(id) }
    }
}

#[cfg(test)]
mod tests;
