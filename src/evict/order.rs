//! The order of eviction of a pool: lists of chunks by priority, and for each policy a rule that says which list a chunk comes to.
//!
//! The chunk with the lowest priority goes first; of several, the one that came to its list first (with MRU, last). A priority is the
//! order's age plus what the rule gives to the chunk's uses. The age is the priority of the last chunk that was the coldest when it was
//! removed, so uses of long ago count less and less. With LRU, FIFO and MRU there is one priority; FIFO leaves a chunk that is used
//! where it is. docs/explanation/eviction.md compares the rules.

use std::sync::Arc;

use super::bonus::Bonus;
use super::lists::{List, NodeId, Nodes};
use crate::config::Eviction;

/// Lists, one for each priority there can be at a time.
const LISTS: u64 = 160;
/// LFU: more uses than these do not count.
const MOST_USES: u64 = 126;
/// Adaptive: priorities of a level. A level more is twice as many uses.
const GRAIN: f32 = 8.0;

/// What the adaptive rule gives to most uses is within the lists.
const _: () = assert!((GRAIN as u64) * (1 + u16::BITS as u64) < LISTS - 1 && MOST_USES + 1 < LISTS);

pub(super) struct Order {
    rule: Eviction,
    /// No chunk has a lower priority.
    age: u64,
    /// The list of each priority, by priority modulo `LISTS`.
    pub(super) by_priority: Vec<List>,
    len: usize,
    /// Of chunks that were never used.
    pub(super) bonus: Arc<Bonus>,
}

impl Order {
    pub(super) fn new(rule: Eviction, bonus: Arc<Bonus>) -> Self {
        let by_priority = (0..LISTS).map(|number| List::new(number as u8)).collect();
        Self { rule, age: 0, by_priority, len: 0, bonus }
    }

    /// By how much the priority of a chunk with so many uses is above the age.
    fn above_age(&self, uses: u16) -> u64 {
        match self.rule {
            Eviction::Lru | Eviction::Fifo | Eviction::Mru => 0,
            Eviction::Lfu => 1 + u64::from(uses).min(MOST_USES),
            Eviction::Adaptive => {
                let levels = match uses {
                    0 => self.bonus.levels(),
                    _ => 1.0 + (1.0 + f32::from(uses)).log2(),
                };
                (levels * GRAIN).round() as u64
            }
        }
    }

    fn coldest_first(&self) -> impl Iterator<Item = &List> {
        (0..LISTS).map(|above| &self.by_priority[((self.age + above) % LISTS) as usize])
    }

    /// By how much the priority of a chunk's list is above the age.
    fn list_above_age(&self, nodes: &Nodes, id: NodeId) -> u64 {
        (u64::from(nodes[id].list) + LISTS - self.age % LISTS) % LISTS
    }

    /// A chunk is stored, or was stored by an earlier owner, with its uses in `nodes[id].uses`. Those of an earlier owner come before
    /// anything else, in the order of last use, the oldest first.
    pub(super) fn insert(&mut self, nodes: &mut Nodes, id: NodeId) {
        let priority = self.age + self.above_age(nodes[id].uses);
        let list = &mut self.by_priority[(priority % LISTS) as usize];
        match self.rule {
            Eviction::Mru => list.push_cold(nodes, id),
            _ => list.push_hot(nodes, id),
        }
        self.len += 1;
    }

    fn take_out(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.by_priority[usize::from(nodes[id].list)].remove(nodes, id);
        self.len -= 1;
    }

    pub(super) fn touch(&mut self, nodes: &mut Nodes, id: NodeId) {
        nodes[id].count_use();
        if self.rule != Eviction::Fifo {
            self.take_out(nodes, id);
            self.insert(nodes, id);
        }
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        let above = self.list_above_age(nodes, id);
        let is_coldest = self.coldest_first().take(above as usize).all(|list| list.len == 0);
        self.take_out(nodes, id);
        self.age += if is_coldest { above } else { 0 };
    }

    /// Appends up to `count` chunks to `found`, in the order in which they would go.
    pub(super) fn coldest(&self, nodes: &Nodes, count: usize, found: &mut Vec<NodeId>) {
        found.extend(self.coldest_first().flat_map(|list| list.coldest_first(nodes)).take(count));
    }

    /// Where a chunk is in the order: 0 goes first, 255 last. An estimate.
    pub(super) fn rank(&self, nodes: &Nodes, id: NodeId) -> u8 {
        let list = &self.by_priority[usize::from(nodes[id].list)];
        let above = self.list_above_age(nodes, id) as usize;
        let colder: usize = self.coldest_first().take(above).map(|list| list.len).sum();
        let colder_in_list = usize::from(list.position(nodes, id)) * list.len;
        ((colder * 255 + colder_in_list) / (self.len.max(2) - 1)).min(255) as u8
    }
}
