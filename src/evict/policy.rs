//! What a policy of eviction does.

use super::lists::{NodeId, Nodes};

/// An order of eviction over chunks.
pub(crate) trait Policy: Send {
    /// A chunk is held from now on. `returns`: it was evicted not long ago.
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, returns: bool);

    /// A chunk that an earlier owner had stored, with the uses it had (`nodes[id].uses`). Called before anything else, the
    /// one that was not used for the longest time first.
    fn restore(&mut self, nodes: &mut Nodes, id: NodeId);

    /// A chunk was used.
    fn touch(&mut self, nodes: &mut Nodes, id: NodeId);

    /// A chunk is not held any more.
    fn remove(&mut self, nodes: &mut Nodes, id: NodeId);

    /// Appends up to `count` chunks to `found`, in the order in which they would go. May put into order what it passes
    /// (second chances), but removes nothing: who is chosen is removed by [`Policy::remove`]. Finds fewer, or none, where it
    /// has passed too many: the next call goes on from there.
    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>);

    /// How far a chunk is from going: 0 goes first, 255 last. An estimate, from what is at hand.
    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8;
}
