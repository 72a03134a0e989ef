//! Least recently used.

use super::lists::{List, NodeId, Nodes};
use super::policy::Policy;

/// Who was not used for the longest time goes first.
#[derive(Default)]
pub(super) struct Lru {
    pub(super) by_use: List,
}

impl Policy for Lru {
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, _returns: bool) {
        self.by_use.push_hot(nodes, id);
    }

    fn restore(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.by_use.push_hot(nodes, id);
    }

    fn touch(&mut self, nodes: &mut Nodes, id: NodeId) {
        nodes[id].count_use();
        self.by_use.remove(nodes, id);
        self.by_use.push_hot(nodes, id);
    }

    fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.by_use.remove(nodes, id);
    }

    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>) {
        found.extend(self.by_use.coldest_first(nodes).take(count));
    }

    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8 {
        self.by_use.position(nodes, id)
    }
}
