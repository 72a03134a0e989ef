//! An order of eviction and its chunks, without a store: for the simulator of hit ratios, no part of the API.

use std::sync::Arc;

pub use super::bonus::coin;
use super::order::Order;
use super::{Bonus, ChunkNode, ChunkRef, GhostCounts, NodeId, Nodes};
use crate::base::block::Extent;
use crate::config::Eviction;

/// Number of a chunk that an order has.
#[derive(Clone, Copy, Debug)]
pub struct Held(NodeId);

/// An order, driven by hand.
pub struct EvictionProbe {
    order: Order,
    bonus: Arc<Bonus>,
    nodes: Nodes,
    found: Vec<NodeId>,
}

impl EvictionProbe {
    /// An order without chunks.
    pub fn new(kind: Eviction) -> Self {
        let bonus = Arc::new(Bonus::default());
        let order = Order::new(kind, Arc::clone(&bonus));
        Self { order, bonus, nodes: Nodes::default(), found: Vec::new() }
    }

    /// A chunk is stored from now on, which counts as used so often.
    pub fn insert(&mut self, chunk: u32, blocks: u32, uses: u16) -> Held {
        let extent = Extent { file: 0, first_block: 0, blocks };
        let chunk = ChunkRef { shard: 0, entry: chunk };
        let id = self.nodes.insert(ChunkNode::new(chunk, extent, uses, 0));
        self.order.insert(&mut self.nodes, id);
        Held(id)
    }

    /// A chunk was used.
    pub fn touch(&mut self, held: Held) {
        self.order.touch(&mut self.nodes, held.0);
    }

    /// Removes the chunk that goes first. Returns it with its uses.
    pub fn evict(&mut self) -> Option<(u32, u16)> {
        self.found.clear();
        self.order.coldest(&self.nodes, 1, &mut self.found);
        let id = self.found.pop()?;
        self.order.remove(&mut self.nodes, id);
        let node = self.nodes.remove(id);
        Some((node.chunk().entry, node.uses))
    }

    /// A chunk that was evicted, or not admitted, is to be stored again. So many that were used are remembered, and so many that were
    /// not, this one included.
    pub fn learn(&mut self, was_used: bool, used_ghosts: u64, unused_ghosts: u64) {
        let ghosts = GhostCounts { used: used_ghosts, unused: unused_ghosts };
        self.bonus.teach(was_used, ghosts, self.nodes.len());
    }

    /// What a chunk without uses is worth, in levels.
    pub fn bonus(&self) -> f32 {
        self.bonus.levels()
    }

    /// The share of requests whose new chunks are stored.
    pub fn admitted_share(&self) -> f32 {
        self.bonus.admitted_share()
    }
}
