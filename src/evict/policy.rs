//! What a policy of eviction does.

use super::lists::{NodeId, Nodes};

pub(crate) trait Policy: Send {
    /// A chunk is stored. `returns`: it was evicted not long ago.
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, returns: bool);

    /// A chunk that an earlier owner stored, with its uses in `nodes[id].uses`. Called before anything else, in the order of
    /// last use, the oldest first.
    fn restore(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.insert(nodes, id, false);
    }

    fn touch(&mut self, nodes: &mut Nodes, id: NodeId);

    fn remove(&mut self, nodes: &mut Nodes, id: NodeId);

    /// Appends up to `count` chunks to `found`, in the order in which they would go. It removes none of them, but may
    /// reorder those that it passes over (second chances). After many of these it stops with fewer chunks, or none; the
    /// next call goes on from there.
    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>);

    /// Where a chunk is in the order: 0 goes first, 255 last. An estimate.
    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8;
}
