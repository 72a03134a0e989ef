//! A policy and its chunks, without a store: for the simulator of hit ratios, no part of the API.

use super::policy::Policy;
use super::s3fifo::S3Fifo;
use super::{ChunkNode, ChunkRef, NodeId, Nodes};
use crate::base::block::Extent;
use crate::config::Eviction;

/// Number of a chunk that a policy has.
#[derive(Clone, Copy, Debug)]
pub struct Held(NodeId);

/// A policy, driven by hand.
pub struct EvictionProbe {
    policy: Box<dyn Policy>,
    nodes: Nodes,
    found: Vec<NodeId>,
}

impl EvictionProbe {
    /// A policy without chunks.
    pub fn new(kind: Eviction) -> Self {
        Self::of(kind.policy())
    }

    /// S3-FIFO with a small queue of one block in `small_share`.
    pub fn s3fifo(small_share: u64) -> Self {
        Self::of(Box::new(S3Fifo::new(small_share)))
    }

    fn of(policy: Box<dyn Policy>) -> Self {
        Self { policy, nodes: Nodes::default(), found: Vec::new() }
    }

    /// A chunk is stored from now on; `returns` if it was evicted not long ago.
    pub fn insert(&mut self, chunk: u32, blocks: u32, returns: bool) -> Held {
        let extent = Extent { file: 0, first_block: 0, blocks };
        let chunk = ChunkRef { shard: 0, entry: chunk };
        let id = self.nodes.insert(ChunkNode::new(chunk, extent, 0, 0));
        self.policy.insert(&mut self.nodes, id, returns);
        Held(id)
    }

    /// A chunk was used.
    pub fn touch(&mut self, held: Held) {
        self.policy.touch(&mut self.nodes, held.0);
    }

    /// Removes the chunk that goes first, and returns it.
    pub fn evict(&mut self) -> Option<u32> {
        self.found.clear();
        self.policy.coldest(&mut self.nodes, 1, &mut self.found);
        let id = self.found.pop()?;
        self.policy.remove(&mut self.nodes, id);
        Some(self.nodes.remove(id).chunk().entry)
    }
}
