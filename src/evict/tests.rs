//! The order of every policy against a model of it, by random steps.

mod models;
mod purposes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use self::models::{Aged, Model, OneOrder};
use super::order::Order;
use super::*;
use crate::base::block::Extent;
use crate::config::Eviction;

fn node(chunk: u32, blocks: u32, uses: u16) -> ChunkNode {
    let extent = Extent { file: 0, first_block: 0, blocks };
    ChunkNode::new(ChunkRef { shard: 0, entry: chunk }, extent, uses, 0)
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        blocks: u32,
        uses: u16,
    },
    /// A key that was evicted comes back.
    Learn {
        was_used: bool,
        used: u64,
        unused: u64,
    },
    Touch {
        which: prop::sample::Index,
        times: usize,
    },
    Remove(prop::sample::Index),
    Evict(usize),
    /// Every second of those that were found stays: it is being read, say.
    EvictSome(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let blocks = || prop_oneof![Just(1_u32), 1..9_u32, Just(100_u32)];
    let uses = prop_oneof![3 => Just(0_u16), 3 => 1..5_u16, 1 => 120..135_u16, 1 => Just(u16::MAX)];
    let touch = (any::<prop::sample::Index>(), prop_oneof![9 => 1..3_usize, 1 => 100..300_usize]);
    prop_oneof![
        11 => (blocks(), uses).prop_map(|(blocks, uses)| Step::Insert { blocks, uses }),
        3 => (any::<bool>(), 0..200_u64, 0..200_u64)
            .prop_map(|(was_used, used, unused)| Step::Learn { was_used, used, unused }),
        8 => touch.prop_map(|(which, times)| Step::Touch { which, times }),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        3 => (0..5_usize).prop_map(Step::Evict),
        2 => (0..9_usize).prop_map(Step::EvictSome),
        1 => Just(Step::EvictSome(usize::MAX)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..120)
}

/// An order, its model, and what both hold.
struct Pair<'a> {
    order: Order,
    model: &'a mut dyn Model,
    nodes: Nodes,
    held: BTreeMap<u32, (NodeId, u16)>,
    chunks: u32,
}

impl Pair<'_> {
    fn add(&mut self, blocks: u32, uses: u16) -> NodeId {
        self.chunks += 1;
        let id = self.nodes.insert(node(self.chunks, blocks, uses));
        self.held.insert(self.chunks, (id, uses));
        id
    }

    fn chosen(&self, which: &prop::sample::Index) -> Option<u32> {
        let held = self.held.len();
        (held > 0).then(|| *self.held.keys().nth(which.index(held)).unwrap())
    }

    fn remove(&mut self, chunk: u32) {
        let (id, _) = self.held.remove(&chunk).unwrap();
        self.order.remove(&mut self.nodes, id);
        self.model.remove(chunk);
        assert_eq!(self.nodes.remove(id).chunk().entry, chunk);
    }

    fn coldest(&mut self, count: usize) -> Vec<u32> {
        // What is there already stays there and does not count.
        let mut found: Vec<NodeId> = self.held.values().map(|(id, _)| *id).take(2).collect();
        let before = found.clone();
        self.order.coldest(&self.nodes, count, &mut found);
        assert!(found.starts_with(&before));
        let chunks: Vec<u32> =
            found[before.len()..].iter().map(|id| self.nodes[*id].chunk().entry).collect();
        assert_eq!(chunks, self.model.coldest(count));
        assert_eq!(chunks.len(), count.min(self.held.len()));
        chunks
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Insert { blocks, uses } => {
                let id = self.add(*blocks, *uses);
                self.order.insert(&mut self.nodes, id);
                self.model.insert(self.chunks, u64::from(*uses));
            }
            Step::Learn { was_used, used, unused } => {
                let ghosts = GhostCounts { used: *used, unused: *unused };
                self.order.bonus.teach(*was_used, ghosts, self.held.len());
                self.model.learn(*was_used, (*used, *unused), self.held.len());
            }
            Step::Touch { which, times } => {
                let Some(chunk) = self.chosen(which) else { return };
                let (id, uses) = self.held.get_mut(&chunk).unwrap();
                for _ in 0..*times {
                    *uses = uses.saturating_add(1);
                    self.order.touch(&mut self.nodes, *id);
                    self.model.touch(chunk);
                }
            }
            Step::Remove(which) => {
                if let Some(chunk) = self.chosen(which) {
                    self.remove(chunk);
                }
            }
            Step::Evict(count) => {
                let found = self.coldest(*count);
                found.into_iter().for_each(|chunk| self.remove(chunk));
            }
            Step::EvictSome(count) => {
                let found = self.coldest(*count);
                found.into_iter().step_by(2).for_each(|chunk| self.remove(chunk));
            }
        }
    }

    /// Every chunk is in one list, and what the lists say of themselves is so.
    fn check(&self) {
        let lists = &self.order.by_priority;
        let in_lists: Vec<NodeId> =
            lists.iter().flat_map(|list| list.checked(&self.nodes)).collect();
        let once: BTreeSet<NodeId> = in_lists.iter().copied().collect();
        let held: BTreeSet<NodeId> = self.held.values().map(|(id, _)| *id).collect();
        assert_eq!(once.len(), in_lists.len());
        assert_eq!(once, held);
        assert_eq!(self.nodes.len(), held.len());
        for (id, uses) in self.held.values() {
            assert_eq!(self.nodes[*id].uses, *uses);
        }
    }
}

/// Takes all steps, then evicts one by one until nothing is left.
fn compare(rule: Eviction, model: &mut dyn Model, steps: &[Step]) {
    let order = Order::new(rule, Arc::default());
    let (nodes, held) = (Nodes::default(), BTreeMap::new());
    let mut pair = Pair { order, model, nodes, held, chunks: 0 };
    for step in steps {
        pair.take(step);
        pair.check();
    }
    while !pair.held.is_empty() {
        pair.take(&Step::Evict(1));
        pair.check();
    }
}

proptest! {
    #[test]
    fn lru_fifo_and_mru_are_like_their_model(steps in steps()) {
        for (rule, by_use, last_goes_first) in
            [(Eviction::Lru, true, false), (Eviction::Fifo, false, false), (Eviction::Mru, true, true)]
        {
            compare(rule, &mut OneOrder::new(by_use, last_goes_first), &steps);
        }
    }

    #[test]
    fn lfu_is_like_its_model(steps in steps()) {
        compare(Eviction::Lfu, &mut Aged::new(false), &steps);
    }

    #[test]
    fn adaptive_is_like_its_model(steps in steps()) {
        compare(Eviction::Adaptive, &mut Aged::new(true), &steps);
    }
}
