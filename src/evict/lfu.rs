//! Least frequently used, with ageing (as LFUDA).
//!
//! The priority of a chunk is the policy's age at its last use, plus one, plus its uses. The chunk with the lowest priority
//! goes first; of several, the least recently used. The age is the priority of the last chunk that was the coldest when it
//! was removed. So uses of long ago count less and less.

use super::lists::{List, NodeId, Nodes};
use super::policy::Policy;

/// Lists, one for each priority there can be at a time.
const LISTS: u64 = 128;
/// More uses than these do not count: no priority is `LISTS` above the age.
const MOST_USES: u64 = LISTS - 2;

pub(super) struct Lfu {
    /// No chunk has a lower priority.
    age: u64,
    /// The list of each priority, by priority modulo `LISTS`.
    pub(super) by_priority: Vec<List>,
}

impl Lfu {
    pub(super) fn new() -> Self {
        Self { age: 0, by_priority: (0..LISTS).map(|number| List::new(number as u8)).collect() }
    }

    fn coldest_first(&self) -> impl Iterator<Item = &List> {
        (0..LISTS).map(|above| &self.by_priority[((self.age + above) % LISTS) as usize])
    }

    fn above_age(&self, nodes: &Nodes, id: NodeId) -> u64 {
        (u64::from(nodes[id].list) + LISTS - self.age % LISTS) % LISTS
    }

    fn push(&mut self, nodes: &mut Nodes, id: NodeId) {
        let priority = self.age + 1 + u64::from(nodes[id].uses).min(MOST_USES);
        self.by_priority[(priority % LISTS) as usize].push_hot(nodes, id);
    }

    fn take_out(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.by_priority[usize::from(nodes[id].list)].remove(nodes, id);
    }
}

impl Policy for Lfu {
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, _returns: bool) {
        self.push(nodes, id);
    }

    fn touch(&mut self, nodes: &mut Nodes, id: NodeId) {
        nodes[id].count_use();
        self.take_out(nodes, id);
        self.push(nodes, id);
    }

    fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        let above = self.above_age(nodes, id);
        let is_coldest = self.coldest_first().take(above as usize).all(|list| list.len == 0);
        self.take_out(nodes, id);
        self.age += if is_coldest { above } else { 0 };
    }

    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>) {
        found.extend(self.coldest_first().flat_map(|list| list.coldest_first(nodes)).take(count));
    }

    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8 {
        let list = &self.by_priority[usize::from(nodes[id].list)];
        let above = self.above_age(nodes, id) as usize;
        let colder: usize = self.coldest_first().take(above).map(|list| list.len).sum();
        let colder_in_list = usize::from(list.position(nodes, id)) * list.len / 256;
        let others = self.by_priority.iter().map(|list| list.len).sum::<usize>().max(2) - 1;
        ((colder + colder_in_list) * 255 / others).min(255) as u8
    }
}
