//! LRU, FIFO and MRU: one list of chunks. They differ in whether a use moves a chunk, and in the end that it moves to.
//!
//! With MRU what was used last goes first. So a part of what is used in turn, and is larger than the cache, stays.

use super::lists::{List, NodeId, Nodes};
use super::policy::Policy;
use crate::config::Eviction;

pub(super) struct Ordered {
    /// One of these three.
    rule: Eviction,
    pub(super) list: List,
}

impl Ordered {
    pub(super) fn new(rule: Eviction) -> Self {
        Self { rule, list: List::default() }
    }

    fn push(&mut self, nodes: &mut Nodes, id: NodeId) {
        match self.rule {
            Eviction::Mru => self.list.push_cold(nodes, id),
            _ => self.list.push_hot(nodes, id),
        }
    }
}

impl Policy for Ordered {
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, _returns: bool) {
        self.push(nodes, id);
    }

    fn touch(&mut self, nodes: &mut Nodes, id: NodeId) {
        nodes[id].count_use();
        if self.rule != Eviction::Fifo {
            self.list.remove(nodes, id);
            self.push(nodes, id);
        }
    }

    fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.list.remove(nodes, id);
    }

    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>) {
        found.extend(self.list.coldest_first(nodes).take(count));
    }

    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8 {
        self.list.position(nodes, id)
    }
}
