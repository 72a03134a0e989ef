//! The names of policies, and the ranks of chunks: the order itself is compared with the models.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::order::Order;
use super::super::*;
use super::node;
use crate::config::Eviction;

/// Chunks of one block each, named by numbers; room for `room` of them.
struct Cache {
    order: Order,
    nodes: Nodes,
    held: HashMap<u32, NodeId>,
    room: usize,
}

impl Cache {
    fn new(kind: Eviction, room: usize) -> Self {
        let (nodes, held) = (Nodes::default(), HashMap::new());
        let order = Order::new(kind, Arc::default());
        Self { order, nodes, held, room }
    }

    fn store(&mut self, chunk: u32) {
        if self.held.len() == self.room {
            let mut found = Vec::new();
            self.order.coldest(&self.nodes, 1, &mut found);
            self.order.remove(&mut self.nodes, found[0]);
            let gone = self.nodes.remove(found[0]).chunk().entry;
            self.held.remove(&gone);
        }
        let id = self.nodes.insert(node(chunk, 1, 0));
        self.order.insert(&mut self.nodes, id);
        self.held.insert(chunk, id);
    }

    /// Uses each chunk; those that it lacks are stored.
    fn using(&mut self, chunks: impl IntoIterator<Item = u32>) {
        for chunk in chunks {
            match self.held.get(&chunk) {
                Some(id) => self.order.touch(&mut self.nodes, *id),
                None => self.store(chunk),
            }
        }
    }

    /// All chunks, the coldest first, each with its rank.
    fn order(&self) -> Vec<(u32, u8)> {
        let mut found = Vec::new();
        self.order.coldest(&self.nodes, usize::MAX, &mut found);
        let told = |id: NodeId| (self.nodes[id].chunk().entry, self.order.rank(&self.nodes, id));
        found.into_iter().map(told).collect()
    }

    fn rank(&self, chunk: u32) -> u8 {
        self.order.rank(&self.nodes, self.held[&chunk])
    }
}

#[test]
fn each_has_a_name_of_its_own() {
    let names = Eviction::ALL.map(Eviction::name);
    assert_eq!(names, ["adaptive", "lru", "lfu", "fifo", "mru"]);
}

#[test]
fn rank_rises_from_who_goes_first_to_who_goes_last() {
    for kind in Eviction::ALL {
        let mut cache = Cache::new(kind, 1000);
        cache.using((0..5000).map(|number| number * number % 1009));
        let ranks: Vec<u8> = cache.order().into_iter().map(|(_, rank)| rank).collect();
        assert!(ranks.is_sorted(), "{}: {ranks:?}", kind.name());
        assert_eq!(ranks[0], 0, "{}", kind.name());
        assert!(ranks[ranks.len() - 1] >= 250, "{}: {ranks:?}", kind.name());
        let middle = ranks[ranks.len() / 2];
        assert!((64..192).contains(&middle), "{}: {ranks:?}", kind.name());
    }
}

#[test]
fn rank_in_lfu_goes_to_the_top() {
    let mut cache = Cache::new(Eviction::Lfu, 2);
    cache.using([0, 1, 1]);
    assert_eq!([0, 1].map(|chunk| cache.rank(chunk)), [0, 255]);
}

#[test]
fn rank_of_a_chunk_that_is_alone() {
    for kind in Eviction::ALL {
        let mut cache = Cache::new(kind, 1);
        cache.store(0);
        assert_eq!(cache.rank(0), 0, "{}", kind.name());
    }
}
