//! What each policy is there for, in small caches.

use std::collections::HashMap;
use std::ops::Range;

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

    fn holds(&self, chunk: u32) -> bool {
        self.held.contains_key(&chunk)
    }

    /// Those of `chunks` that it holds.
    fn of(&self, chunks: Range<u32>) -> Vec<u32> {
        chunks.filter(|chunk| self.holds(*chunk)).collect()
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

    /// Uses each chunk; those that it lacks are stored. Returns how many it had.
    fn using(&mut self, chunks: impl IntoIterator<Item = u32>) -> usize {
        let mut hits = 0;
        for chunk in chunks {
            match self.held.get(&chunk) {
                Some(id) => {
                    self.policy.touch(&mut self.nodes, *id);
                    hits += 1;
                }
                None => self.store(chunk, false),
            }
        }
        hits
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
fn lru_keeps_what_was_used_last() {
    let mut cache = Cache::new(Eviction::Lru, 3);
    cache.using([1, 2, 3, 1, 4]);
    assert_eq!(cache.of(1..5), [1, 3, 4]);
}

#[test]
fn fifo_does_not_look_at_uses() {
    let mut cache = Cache::new(Eviction::Fifo, 3);
    cache.using([1, 2, 3, 1, 1, 4]);
    assert_eq!(cache.of(1..5), [2, 3, 4]);
}

#[test]
fn mru_keeps_a_part_of_what_is_gone_through_again_and_again() {
    let hits = |kind| {
        let mut cache = Cache::new(kind, 8);
        (0..10).map(|_| cache.using(0..10)).sum::<usize>()
    };
    assert_eq!(hits(Eviction::Lru), 0);
    assert!(hits(Eviction::Mru) >= 9 * 7, "{}", hits(Eviction::Mru));
}

#[test]
fn lfu_keeps_what_is_used_often() {
    let mut cache = Cache::new(Eviction::Lfu, 10);
    for _ in 0..20 {
        cache.using(0..4);
    }
    cache.using(100..160);
    assert_eq!(cache.of(0..4), [0, 1, 2, 3]);
}

#[test]
fn lfu_keeps_what_is_used_often_even_if_there_is_room_for_one_more_only() {
    let mut cache = Cache::new(Eviction::Lfu, 10);
    for _ in 0..20 {
        cache.using(0..9);
    }
    cache.using(100..115);
    assert_eq!(cache.of(0..9).len(), 9);
}

#[test]
fn lfu_forgets_uses_of_long_ago() {
    let mut cache = Cache::new(Eviction::Lfu, 10);
    for _ in 0..20 {
        cache.using(0..4);
    }
    cache.using(100..1000);
    assert_eq!(cache.of(0..4), []);
}

#[test]
fn lfu_forgets_the_most_used_as_well() {
    let mut cache = Cache::new(Eviction::Lfu, 2);
    cache.restore(0, u16::MAX);
    cache.using([0, 0]);
    cache.using(100..200);
    assert!(cache.holds(0));
    cache.using(200..300);
    assert!(!cache.holds(0));
}

#[test]
fn lfu_takes_the_oldest_of_those_used_as_often() {
    let mut cache = Cache::new(Eviction::Lfu, 3);
    cache.using([1, 2, 3, 3, 2, 1, 4]);
    assert_eq!(cache.of(1..5), [1, 2, 4]);
}

#[test]
fn s3fifo_keeps_what_is_used_through_a_scan_that_empties_lru() {
    for (kind, kept) in [(Eviction::S3Fifo, 30), (Eviction::Lru, 0)] {
        let mut cache = Cache::new(kind, 50);
        cache.using(0..30);
        cache.using(0..30);
        cache.using(1000..1500);
        assert_eq!(cache.of(0..30).len(), kept, "{}", kind.name());
    }
}

#[test]
fn s3fifo_keeps_what_returns() {
    let mut cache = Cache::new(Eviction::S3Fifo, 50);
    cache.using(0..50);
    cache.store(100, true);
    cache.store(101, false);
    cache.using(1000..1200);
    assert_eq!(cache.of(100..102), [100]);
}

#[test]
fn s3fifo_passes_over_what_is_used_in_the_main_queue() {
    let mut cache = Cache::new(Eviction::S3Fifo, 50);
    (0..50).for_each(|chunk| cache.store(chunk, true));
    cache.using([0, 1]);
    (100..148).for_each(|chunk| cache.store(chunk, true));
    assert_eq!(cache.of(0..50), [0, 1]);
    (200..250).for_each(|chunk| cache.store(chunk, true));
    assert_eq!(cache.of(0..50), [], "once for each use");
}

#[test]
fn s3fifo_counts_three_uses() {
    let mut cache = Cache::new(Eviction::S3Fifo, 20);
    (0..20).for_each(|chunk| cache.store(chunk, true));
    cache.using([0; 100]);
    (100..155).for_each(|chunk| cache.store(chunk, true));
    assert!(cache.holds(0));
    (200..205).for_each(|chunk| cache.store(chunk, true));
    assert!(!cache.holds(0));
}

#[test]
fn s3fifo_restores_a_tenth_of_the_unused_into_the_small_queue() {
    let mut cache = Cache::new(Eviction::S3Fifo, 100);
    (0..40).for_each(|chunk| cache.restore(chunk, 2));
    (40..100).for_each(|chunk| cache.restore(chunk, 0));
    assert_eq!([39, 89, 90].map(|chunk| cache.rank(chunk) / 64), [3, 1, 0]);
    // The small queue has no more than its share yet, so that the main one goes first.
    cache.using(1000..1500);
    assert_eq!(cache.of(0..90), [(0..40).collect::<Vec<_>>(), (41..90).collect()].concat());
    assert_eq!(cache.of(90..100), []);
}

#[test]
fn restored_chunks_go_in_the_order_of_before() {
    for (kind, first) in [(Eviction::Lru, 0), (Eviction::Fifo, 0), (Eviction::Mru, 9)] {
        let mut cache = Cache::new(kind, 10);
        (0..10).for_each(|chunk| cache.restore(chunk, (chunk % 3) as u16));
        assert_eq!(cache.order()[0].0, first, "{}", kind.name());
    }
    let mut cache = Cache::new(Eviction::Lfu, 10);
    (0..10).for_each(|chunk| cache.restore(chunk, (chunk % 3) as u16));
    let order: Vec<u32> = cache.order().into_iter().map(|(chunk, _)| chunk).collect();
    assert_eq!(order, [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]);
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
