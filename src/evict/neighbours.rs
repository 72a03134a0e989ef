//! Which neighbours to evict so that there is room for a long chunk.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{ChunkRef, NodeId, Nodes};
use crate::base::block::Extent;
use crate::store::FreeSpace;

/// The stored chunks by where their extents begin.
pub(super) type ExtentMap = BTreeMap<(u32, u32), NodeId>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) node: NodeId,
    pub(crate) chunk: ChunkRef,
}

/// Neighbours that are looked at while the lock is held, as others wait for it; the last seed may add some.
pub(super) const STEPS_AT_ONCE: usize = 2048;

/// Neighbours on each side of a chunk among which the cheapest run is looked for. Longer runs are found by a scan.
const MOST_BESIDE: usize = 1024;

/// How much more a block of the chunk that goes last costs than one of the chunk that goes first.
const RANK_WEIGHT: u64 = 3;

#[derive(Clone, Copy)]
struct Segment {
    blocks: u64,
    cost: u64,
    chunk: Option<NodeId>,
}

/// A search through all extents in order, from `first` to the end and from the start to `first`. It can be left off and gone
/// on with; what changes in between is noticed when its run is evicted.
#[derive(Debug, Default)]
pub(super) struct Scan {
    first: (u32, u32),
    has_wrapped: bool,
    /// The run so far: where its first chunk is, and where it ends.
    start: (u32, u32),
    end: (u32, u32),
    pub(super) run: Vec<Victim>,
    /// Of its chunks, and free ones before and between them.
    blocks: u64,
}

impl Scan {
    pub(super) fn from(extent: Extent) -> Self {
        let first = extent.start();
        Self { first, end: first, ..Self::default() }
    }

    /// The run that was found. The scan would find it again, as a chunk of it may turn out to be in use.
    pub(super) fn take_run(&mut self) -> Vec<Victim> {
        (self.end, self.blocks) = (self.start, 0);
        std::mem::take(&mut self.run)
    }
}

pub(super) fn victim(nodes: &Nodes, node: NodeId) -> Victim {
    Victim { node, chunk: nodes[node].chunk() }
}

pub(super) struct Search<'data> {
    pub(super) extents: &'data ExtentMap,
    pub(super) nodes: &'data Nodes,
    pub(super) free: &'data dyn FreeSpace,
    pub(super) rank: &'data dyn Fn(NodeId) -> u8,
    pub(super) blocks: u64,
    pub(super) steps: usize,
}

impl Search<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.steps >= STEPS_AT_ONCE
    }

    /// Goes on with a scan, up to a run that is long enough. Returns whether there is one; `None` if that is not known yet.
    pub(super) fn scan(&mut self, scan: &mut Scan) -> Option<bool> {
        while scan.blocks < self.blocks {
            if self.is_over() {
                return None;
            }
            self.steps += 1;
            let (file, block) = scan.end;
            // Free blocks before the first chunk are counted when that comes.
            let free = if scan.run.is_empty() { 0 } else { self.free.free_from(file, block) };
            let next = self.extents.get(&scan.end).copied();
            let next = next.filter(|id| !self.is_obstacle(*id));
            if free > 0 {
                scan.blocks += u64::from(free);
                scan.end.1 += free;
            } else if let Some(id) = next {
                if scan.run.is_empty() {
                    scan.blocks = self.free.free_before(file, block).into();
                    scan.start = scan.end;
                }
                let blocks = self.nodes[id].extent.blocks;
                scan.blocks += u64::from(blocks);
                scan.run.push(victim(self.nodes, id));
                scan.end.1 += blocks;
            } else if !self.go_past_obstacle(scan) {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Begins a new run behind what ended the last one. Returns whether there is anything.
    fn go_past_obstacle(&self, scan: &mut Scan) -> bool {
        (scan.blocks, scan.run) = (0, Vec::new());
        let behind = |start: (u32, u32)| {
            let (_, &id) = self.extents.range(start..).next()?;
            let Extent { file, first_block, blocks } = self.nodes[id].extent;
            Some((file, first_block + if self.is_obstacle(id) { blocks } else { 0 }))
        };
        let mut next = behind(scan.end);
        if next.is_none() && !scan.has_wrapped {
            scan.has_wrapped = true;
            next = behind((0, 0));
        }
        let Some(next) = next.filter(|next| !scan.has_wrapped || *next < scan.first) else {
            return false;
        };
        scan.end = next;
        true
    }

    /// The cheapest run around a chunk that is long enough: what it costs, and its chunks.
    pub(super) fn around(&mut self, seed: NodeId) -> Option<(u64, Vec<NodeId>)> {
        let extent = self.nodes[seed].extent;
        let own = self.segment(seed);
        let missing = self.blocks.saturating_sub(own.blocks);
        let mut row = self.beside(extent, missing, true);
        row.reverse();
        let seed_at = row.len();
        row.push(own);
        row.extend(self.beside(extent, missing, false));
        // For each segment to begin with, the shortest window that has the seed.
        let (mut end, mut blocks, mut cost) = (0, 0, 0);
        let mut best: Option<(u64, Range<usize>)> = None;
        for start in 0..=seed_at {
            while end < row.len() && (blocks < self.blocks || end <= seed_at) {
                blocks += row[end].blocks;
                cost += row[end].cost;
                end += 1;
            }
            if blocks < self.blocks {
                break;
            }
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, start..end));
            }
            blocks -= row[start].blocks;
            cost -= row[start].cost;
        }
        let (cost, window) = best?;
        Some((cost, row[window].iter().filter_map(|segment| segment.chunk).collect()))
    }

    /// What lies before or after an extent, the nearest first: `missing` blocks, or less at an obstacle or after many segments.
    fn beside(&mut self, extent: Extent, missing: u64, before: bool) -> Vec<Segment> {
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
                    true => self.ending_at(file, block),
                    false => self.extents.get(&(file, block)).copied(),
                };
                match neighbour.filter(|id| !self.is_obstacle(*id)) {
                    Some(id) => self.segment(id),
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

    fn is_obstacle(&self, id: NodeId) -> bool {
        self.nodes[id].excluded_until_s().is_some()
    }

    fn ending_at(&self, file: u32, block: u32) -> Option<NodeId> {
        let (_, &id) = self.extents.range(..(file, block)).next_back()?;
        let extent = self.nodes[id].extent;
        (extent.file == file && extent.end_block() == u64::from(block)).then_some(id)
    }

    fn segment(&self, id: NodeId) -> Segment {
        let blocks = u64::from(self.nodes[id].extent.blocks);
        let weight = 255 + RANK_WEIGHT * u64::from((self.rank)(id));
        Segment { blocks, cost: blocks * weight, chunk: Some(id) }
    }
}

#[cfg(test)]
mod tests;
