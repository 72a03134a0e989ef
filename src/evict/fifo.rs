//! First in, first out.

use super::lists::{List, NodeId, Nodes};
use super::policy::Policy;

/// Who was stored first goes first, used or not.
#[derive(Default)]
pub(super) struct Fifo {
    pub(super) by_arrival: List,
}

impl Policy for Fifo {
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, _returns: bool) {
        self.by_arrival.push_hot(nodes, id);
    }

    fn restore(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.by_arrival.push_hot(nodes, id);
    }

    fn touch(&mut self, nodes: &mut Nodes, id: NodeId) {
        nodes[id].count_use();
    }

    fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.by_arrival.remove(nodes, id);
    }

    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>) {
        found.extend(self.by_arrival.coldest_first(nodes).take(count));
    }

    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8 {
        self.by_arrival.position(nodes, id)
    }
}
