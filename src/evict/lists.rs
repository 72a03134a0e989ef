//! Chunks by number, and lists through them.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use crate::base::block::Extent;
use crate::base::segmented_vec::SegmentedVec;
use crate::base::system::prefetch_line;

const SEGMENT: usize = 1024;

/// Instead of a list: in none.
const NO_LIST: u8 = u8::MAX;
/// Instead of a list: a number to be given out again.
const FREE: u8 = u8::MAX - 1;
/// Instead of a list: excluded from eviction for a while.
const EXCLUDED: u8 = u8::MAX - 2;

/// Number of a chunk in [`Nodes`]. An `Option` of it takes no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(NonZeroU32);

impl NodeId {
    pub(super) fn at(index: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Where the index has a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRef {
    pub(crate) shard: u32,
    pub(crate) entry: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkNode {
    entry: u32,
    shard: u16,
    /// Must not change while an order has the chunk.
    pub(crate) extent: Extent,
    /// How often it was used, as far as that can be counted.
    pub(crate) uses: u16,
    pub(crate) pool: u16,
    /// The clock of its list when it came in; the second until which it is excluded.
    stamp: u32,
    colder: Option<NodeId>,
    hotter: Option<NodeId>,
    /// The list that it is in, as named in [`List::new`].
    pub(super) list: u8,
}

const _: () = assert!(size_of::<ChunkNode>() == 36);

impl ChunkNode {
    pub(crate) fn new(chunk: ChunkRef, extent: Extent, uses: u16, pool: u16) -> Self {
        let (stamp, colder, hotter) = (0, None, None);
        let ChunkRef { shard, entry } = chunk;
        debug_assert!(shard <= u16::MAX.into(), "there are fewer shards");
        let (shard, list) = (shard as u16, NO_LIST);
        Self { entry, shard, extent, uses, pool, stamp, colder, hotter, list }
    }

    pub(crate) fn chunk(&self) -> ChunkRef {
        ChunkRef { shard: self.shard.into(), entry: self.entry }
    }

    /// Excludes it, which is in no list, from eviction until `until_s`.
    pub(super) fn exclude(&mut self, until_s: u32) {
        debug_assert_eq!(self.list, NO_LIST);
        (self.list, self.stamp) = (EXCLUDED, until_s);
    }

    pub(super) fn include(&mut self) {
        debug_assert_eq!(self.list, EXCLUDED);
        self.list = NO_LIST;
    }

    pub(super) fn excluded_until_s(&self) -> Option<u32> {
        (self.list == EXCLUDED).then_some(self.stamp)
    }

    pub(super) fn count_use(&mut self) {
        self.uses = self.uses.saturating_add(1);
    }
}

/// Chunks by number. A number is a chunk's until that is removed.
#[derive(Default)]
pub(crate) struct Nodes {
    all: SegmentedVec<ChunkNode, SEGMENT>,
    /// First number that is nobody's; the others follow through `hotter`.
    free: Option<NodeId>,
    len: usize,
}

impl Nodes {
    pub(crate) fn insert(&mut self, node: ChunkNode) -> NodeId {
        debug_assert_eq!(node.list, NO_LIST);
        self.len += 1;
        if let Some(id) = self.free {
            self.free = self[id].hotter;
            self[id] = node;
            return id;
        }
        NodeId::at(self.all.push(node))
    }

    /// Removes a chunk that no order has any more.
    pub(crate) fn remove(&mut self, id: NodeId) -> ChunkNode {
        let node = self[id];
        debug_assert_eq!(node.list, NO_LIST, "{id:?} is still in a list, or was removed before");
        self[id].list = FREE;
        self[id].hotter = self.free;
        self.free = Some(id);
        self.len -= 1;
        node
    }

    pub(super) fn prefetch(&self, id: NodeId) {
        prefetch_line((&raw const self[id]).cast());
    }

    pub(super) fn is_ordered(&self, id: NodeId) -> bool {
        !matches!(self[id].list, FREE | EXCLUDED | NO_LIST)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Index<NodeId> for Nodes {
    type Output = ChunkNode;

    fn index(&self, id: NodeId) -> &ChunkNode {
        &self.all[id.index()]
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, id: NodeId) -> &mut ChunkNode {
        &mut self.all[id.index()]
    }
}

/// Chunks from the coldest to the hottest. A chunk is in one list at most.
#[derive(Default)]
pub(super) struct List {
    name: u8,
    /// Chunks that came in so far.
    clock: u32,
    /// The end that goes first.
    pub(super) coldest: Option<NodeId>,
    hottest: Option<NodeId>,
    pub(super) len: usize,
    pub(super) blocks: u64,
}

impl List {
    /// An empty list. `name` is unique in its order.
    pub(super) fn new(name: u8) -> Self {
        debug_assert!(name < EXCLUDED);
        Self { name, ..Self::default() }
    }

    pub(super) fn after(nodes: &Nodes, id: NodeId) -> Option<NodeId> {
        nodes[id].hotter
    }

    pub(super) fn coldest_first<'a>(
        &self,
        nodes: &'a Nodes,
    ) -> impl Iterator<Item = NodeId> + use<'a> {
        std::iter::successors(self.coldest, |id| Self::after(nodes, *id))
    }

    pub(super) fn push_hot(&mut self, nodes: &mut Nodes, id: NodeId) {
        let hottest = self.hottest.replace(id);
        match hottest {
            Some(hottest) => nodes[hottest].hotter = Some(id),
            None => self.coldest = Some(id),
        }
        self.take_in(&mut nodes[id], hottest, None);
    }

    pub(super) fn push_cold(&mut self, nodes: &mut Nodes, id: NodeId) {
        let coldest = self.coldest.replace(id);
        match coldest {
            Some(coldest) => nodes[coldest].colder = Some(id),
            None => self.hottest = Some(id),
        }
        self.take_in(&mut nodes[id], None, coldest);
    }

    fn take_in(&mut self, node: &mut ChunkNode, colder: Option<NodeId>, hotter: Option<NodeId>) {
        debug_assert_eq!(node.list, NO_LIST);
        self.clock = self.clock.wrapping_add(1);
        node.list = self.name;
        node.stamp = self.clock;
        node.colder = colder;
        node.hotter = hotter;
        self.len += 1;
        self.blocks += u64::from(node.extent.blocks);
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        let node = &mut nodes[id];
        debug_assert_eq!(node.list, self.name);
        node.list = NO_LIST;
        self.len -= 1;
        self.blocks -= u64::from(node.extent.blocks);
        let (colder, hotter) = (node.colder.take(), node.hotter.take());
        match colder {
            Some(colder) => nodes[colder].hotter = hotter,
            None => self.coldest = hotter,
        }
        match hotter {
            Some(hotter) => nodes[hotter].colder = colder,
            None => self.hottest = colder,
        }
    }

    /// Where a chunk is in its list: 0 is the coldest, 255 the hottest. Estimated from when it came in, as if others came
    /// evenly; wrong for a chunk that lies still while 2^31 others come.
    pub(super) fn position(&self, nodes: &Nodes, id: NodeId) -> u8 {
        let Some((coldest, hottest)) = self.coldest.zip(self.hottest) else { return 0 };
        let from_coldest = |id: NodeId| {
            let ticks = nodes[id].stamp.wrapping_sub(nodes[coldest].stamp);
            u64::from(ticks.cast_signed().unsigned_abs())
        };
        let all = from_coldest(hottest).max(1);
        (from_coldest(id) * 255 / all).min(255) as u8
    }
}

#[cfg(test)]
mod tests;
