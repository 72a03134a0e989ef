//! The names of policies, and the ranks of chunks: the order itself is compared with the models.

use std::collections::HashMap;

use super::super::*;
use super::node;

/// Chunks of one block each, named by numbers; room for `room` of them.
struct Cache {
    policy: Box<dyn Policy>,
    nodes: Nodes,
    held: HashMap<u32, NodeId>,
    room: usize,
}

impl Cache {
    fn new(kind: Eviction, room: usize) -> Self {
        let (nodes, held) = (Nodes::default(), HashMap::new());
        Self { policy: kind.policy(), nodes, held, room }
    }

    fn store(&mut self, chunk: u32, returns: bool) {
        if self.held.len() == self.room {
            let mut found = Vec::new();
            self.policy.coldest(&mut self.nodes, 1, &mut found);
            self.policy.remove(&mut self.nodes, found[0]);
            let gone = self.nodes.remove(found[0]).chunk().entry;
            self.held.remove(&gone);
        }
        let id = self.nodes.insert(node(chunk, 1, 0));
        self.policy.insert(&mut self.nodes, id, returns);
        self.held.insert(chunk, id);
    }

    /// Uses each chunk; those that it lacks are stored.
    fn using(&mut self, chunks: impl IntoIterator<Item = u32>) {
        for chunk in chunks {
            match self.held.get(&chunk) {
                Some(id) => self.policy.touch(&mut self.nodes, *id),
                None => self.store(chunk, false),
            }
        }
    }

    fn restore(&mut self, chunk: u32, uses: u16) {
        let id = self.nodes.insert(node(chunk, 1, uses));
        self.policy.restore(&mut self.nodes, id);
        self.held.insert(chunk, id);
    }

    /// All chunks, the coldest first, each with its rank.
    fn order(&mut self) -> Vec<(u32, u8)> {
        let mut found = Vec::new();
        self.policy.coldest(&mut self.nodes, usize::MAX, &mut found);
        let told = |id: NodeId| (self.nodes[id].chunk().entry, self.policy.rank(&self.nodes, id));
        found.into_iter().map(told).collect()
    }

    fn rank(&self, chunk: u32) -> u8 {
        self.policy.rank(&self.nodes, self.held[&chunk])
    }
}

#[test]
fn each_has_a_name_of_its_own() {
    let names = Eviction::ALL.map(Eviction::name);
    assert_eq!(names, ["lru", "lfu", "fifo", "mru", "s3fifo"]);
}

#[test]
fn s3fifo_restores_a_tenth_of_the_unused_into_the_small_queue() {
    let mut cache = Cache::new(Eviction::S3Fifo, 100);
    (0..40).for_each(|chunk| cache.restore(chunk, 2));
    (40..100).for_each(|chunk| cache.restore(chunk, 0));
    assert_eq!([39, 89, 90].map(|chunk| cache.rank(chunk) / 64), [3, 1, 0]);
}

#[test]
fn rank_rises_from_who_goes_first_to_who_goes_last() {
    for kind in [Eviction::Lru, Eviction::Lfu, Eviction::Fifo, Eviction::Mru] {
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
fn rank_in_s3fifo_rises_with_the_queue_and_with_uses() {
    let mut cache = Cache::new(Eviction::S3Fifo, 20);
    (0..8).for_each(|chunk| cache.store(chunk, true));
    (8..16).for_each(|chunk| cache.store(chunk, false));
    cache.using([7, 6, 6, 15]);
    let order = [8, 14, 0, 5, 15, 7, 6];
    let ranks = order.map(|chunk| cache.rank(chunk));
    assert!(ranks.is_sorted(), "{ranks:?}");
    assert_eq!(ranks.map(|rank| rank / 64), [0, 0, 1, 1, 2, 2, 3]);
}

#[test]
fn rank_in_a_queue_of_s3fifo_rises() {
    let mut cache = Cache::new(Eviction::S3Fifo, 300);
    (0..300).for_each(|chunk| cache.store(chunk, true));
    let ranks: Vec<u8> = (0..300).map(|chunk| cache.rank(chunk)).collect();
    assert!(ranks.is_sorted() && ranks[0] == 64 && ranks[299] > 120, "{ranks:?}");
}

#[test]
fn s3fifo_begins_anew_with_a_chunk_that_was_out() {
    let mut cache = Cache::new(Eviction::S3Fifo, 20);
    cache.using([0, 0, 0, 1]);
    let id = cache.held[&0];
    cache.policy.remove(&mut cache.nodes, id);
    cache.policy.insert(&mut cache.nodes, id, false);
    assert_eq!([0, 1].map(|chunk| cache.rank(chunk) / 64), [0, 0]);
}

#[test]
fn rank_of_a_chunk_that_is_alone() {
    for kind in Eviction::ALL {
        let mut cache = Cache::new(kind, 1);
        cache.store(0, false);
        assert_eq!(cache.rank(0), 0, "{}", kind.name());
    }
}
