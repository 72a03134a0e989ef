//! Entering the chunks of an earlier owner: their nodes on several threads, then their order.

use super::eviction_index::EvictionIndex;
use super::extent_map::ExtentMap;
use super::lists::NodesPart;
use super::namespaces::{NamespaceId, Namespaces};
use super::{ChunkNode, ChunkRef, NodeId};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::base::parallel::{OPENING, both, merged, on_threads};
use crate::base::sync::Mutex;

/// Nodes that are brought into the processor's cache together.
const PREFETCHED: usize = 64;

/// A chunk of an earlier owner in the order of eviction: when it was used, or stored where the order is that of arrival, the slot of
/// its record, and its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Restored(u128);

impl Restored {
    fn new(moment: u64, slot: u32, id: NodeId) -> Self {
        Self(u128::from(moment) << 64 | u128::from(slot) << 32 | id.index() as u128)
    }

    pub(crate) fn slot(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn id(self) -> NodeId {
        NodeId::at(self.0 as u32 as usize)
    }
}

/// What one thread enters.
pub(crate) struct Entering<'index> {
    namespaces: &'index Namespaces,
    nodes: Option<NodesPart<'index>>,
    order: Vec<Restored>,
    /// Keys and blocks of each namespace, by its number.
    counted: Vec<(usize, u64)>,
}

impl Entering<'_> {
    /// A chunk with the slot of its record, the moment that orders it, and its uses.
    pub(crate) fn enter(
        &mut self,
        chunk: ChunkRef,
        extent: Extent,
        namespace: NamespaceId,
        slot: u32,
        (moment, uses): (u64, u16),
    ) -> NodeId {
        let number = namespace as usize;
        if number >= self.counted.len() {
            self.counted.resize(number + 1, (0, 0));
        }
        let (keys, blocks) = &mut self.counted[number];
        (*keys, *blocks) = (*keys + 1, *blocks + u64::from(extent.blocks));
        let node = ChunkNode::new(chunk, extent, uses, self.namespaces.pool(namespace));
        let nodes = self.nodes.as_mut().expect("a group is being entered");
        let id = nodes.push(node);
        self.order.push(Restored::new(moment, slot, id));
        id
    }
}

impl EvictionIndex {
    /// Enters groups of as many chunks as `sizes` has it, on several threads, each of which calls `enter_group` with the number of a
    /// group that it has to itself. The index is empty before, and [`EvictionIndex::all_restored`] follows. Returns the chunks
    /// in order, a part for each thread.
    pub(crate) fn restore(
        &mut self,
        sizes: &[usize],
        threads: usize,
        enter_group: impl Fn(usize, &mut Entering<'_>) + Sync,
    ) -> Vec<Vec<Restored>> {
        let namespaces = &self.namespaces;
        let all = {
            let groups = Mutex::new(self.nodes.add_parts(sizes).into_iter().enumerate());
            let next = || groups.lock().next();
            on_threads(OPENING, threads, || {
                let (order, counted) = Default::default();
                let mut entering = Entering { namespaces, nodes: None, order, counted };
                entering.order.reserve(sizes.iter().sum::<usize>() / threads);
                while let Some((number, nodes)) = next() {
                    entering.nodes = Some(nodes);
                    enter_group(number, &mut entering);
                }
                entering.order.sort_unstable();
                (entering.order, entering.counted)
            })
        };
        let add = |(order, counted): (Vec<Restored>, Vec<(usize, u64)>)| {
            for (number, (keys, blocks)) in (0..).zip(counted).filter(|(_, (keys, _))| *keys > 0) {
                let usage = self.namespaces.usage_mut(number);
                usage.keys += keys as u64;
                usage.allocated_bytes += blocks * BLOCK_BYTES;
                let pool = self.namespaces.pool(number);
                self.pools[usize::from(pool)].count_chunks(keys, blocks);
            }
            order
        };
        all.into_iter().map(add).collect()
    }

    /// Ends restoring. `by_extent` are the chunks in the order of their extents.
    pub(crate) fn all_restored(
        &mut self,
        order: Vec<Vec<Restored>>,
        by_extent: impl Iterator<Item = (NodeId, Extent)> + Send,
    ) {
        self.namespaces.drop_all_unused();
        let Self { nodes, pools, extents, .. } = self;
        let link = || {
            // Some at a time, as their nodes lie anywhere in memory.
            let mut some = Vec::with_capacity(PREFETCHED);
            let mut order = merged(order.iter().map(Vec::as_slice).collect()).map(Restored::id);
            loop {
                some.extend(order.by_ref().take(PREFETCHED).inspect(|id| nodes.prefetch(*id)));
                if some.is_empty() {
                    break;
                }
                for id in some.drain(..) {
                    pools[usize::from(nodes[id].pool)].policy.restore(nodes, id);
                }
            }
        };
        both(link, || *extents = ExtentMap::of_sorted(by_extent));
    }
}
