//! The search for room against one that looks at every window.

use proptest::prelude::*;
use proptest::sample::Index;

use std::collections::HashSet;

use super::*;
use crate::evict::ChunkNode;
use crate::store::allocator::Allocator;

const FILES: [u32; 3] = [120, 200, 40];
const CHUNK: ChunkRef = ChunkRef { shard: 0, entry: 0 };

impl FreeSpace for Allocator {
    fn free_before(&self, file: u32, block: u32) -> u32 {
        Allocator::free_before(self, file, block)
    }

    fn free_from(&self, file: u32, block: u32) -> u32 {
        Allocator::free_from(self, file, block)
    }
}

/// Chunks and free space between them, as they come about by storing and freeing.
struct Layout {
    allocator: Allocator,
    extents: ExtentMap,
    nodes: Nodes,
    held: Vec<NodeId>,
    rank: Vec<(NodeId, u8)>,
}

impl Layout {
    /// One file of `count` blocks, each of them a chunk.
    fn full(count: u32) -> (Self, Vec<NodeId>) {
        let mut layout = Self::new(&[]);
        layout.allocator = Allocator::default();
        layout.allocator.add_file(0, count);
        let mut chunks = Vec::new();
        while let Some(extent) = layout.allocator.allocate(1) {
            let id = layout.nodes.insert(ChunkNode::new(CHUNK, extent, 0, 0));
            layout.extents.insert(extent.start(), id);
            chunks.push(id);
        }
        (layout, chunks)
    }

    fn new(steps: &[(u32, Index, u8)]) -> Self {
        let mut allocator = Allocator::default();
        (0..).zip(FILES).for_each(|(number, blocks)| allocator.add_file(number, blocks));
        let (extents, nodes) = (ExtentMap::default(), Nodes::default());
        let mut layout = Self { allocator, extents, nodes, held: Vec::new(), rank: Vec::new() };
        for (blocks, which, rank) in steps {
            if *blocks > 24 && !layout.held.is_empty() {
                layout.free(layout.held[which.index(layout.held.len())]);
            } else if let Some(extent) = layout.allocator.allocate(blocks % 24 + 1) {
                let id = layout.nodes.insert(ChunkNode::new(CHUNK, extent, 0, 0));
                layout.extents.insert(extent.start(), id);
                layout.held.push(id);
                layout.rank.push((id, *rank));
            }
        }
        layout
    }

    fn free(&mut self, id: NodeId) {
        self.held.retain(|other| *other != id);
        self.rank.retain(|(other, _)| *other != id);
        let node = self.nodes.remove(id);
        self.extents.remove(&node.extent.start());
        self.allocator.free(node.extent);
    }

    fn rank(&self, id: NodeId) -> u8 {
        self.rank.iter().find(|(other, _)| *other == id).unwrap().1
    }

    fn cost(&self, id: NodeId) -> u64 {
        u64::from(self.nodes[id].extent.blocks) * (255 + 3 * u64::from(self.rank(id)))
    }

    /// What it costs to free a run of `blocks` around a chunk, at the lowest price; none if one that is kept is in the way.
    fn cheapest(&self, seed: NodeId, blocks: u64, kept: &HashSet<NodeId>) -> Option<u64> {
        let extent = self.nodes[seed].extent;
        let file_blocks = FILES[extent.file as usize];
        let mut owners: Vec<Option<NodeId>> = vec![None; file_blocks as usize];
        for id in &self.held {
            let extent = self.nodes[*id].extent;
            if extent.file == self.nodes[seed].extent.file {
                owners[extent.first_block as usize..extent.end_block() as usize].fill(Some(*id));
            }
        }
        // Chunks, and the free runs between them.
        let mut pieces: Vec<(Option<NodeId>, u64)> = Vec::new();
        for owner in owners {
            match pieces.last_mut().filter(|(last, _)| *last == owner) {
                Some((_, blocks)) => *blocks += 1,
                None => pieces.push((owner, 1)),
            }
        }
        let windows = (0..pieces.len())
            .flat_map(|first| (first..pieces.len()).map(move |last| (first, last)))
            .map(|(first, last)| &pieces[first..=last])
            .filter(|window| window.iter().map(|(_, blocks)| blocks).sum::<u64>() >= blocks)
            .map(|window| window.iter().filter_map(|(owner, _)| *owner).collect::<Vec<_>>())
            .filter(|chunks| chunks.contains(&seed) && chunks.iter().all(|id| !kept.contains(id)));
        windows.map(|chunks| chunks.iter().map(|id| self.cost(*id)).sum()).min()
    }
}

fn layouts() -> impl Strategy<Value = Vec<(u32, Index, u8)>> {
    let rank = prop_oneof![Just(0_u8), any::<u8>()];
    prop::collection::vec((0_u32..40, any::<Index>(), rank), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 512 }))]

    #[test]
    fn the_cheapest_window_is_the_cheapest_and_makes_room(
        steps in layouts(),
        seeds in prop::collection::vec(any::<Index>(), 1..4),
        kept in prop::collection::vec(any::<Index>(), 0..4),
        blocks in prop_oneof![1_u64..60, 1_u64..201],
    ) {
        let mut layout = Layout::new(&steps);
        prop_assume!(!layout.held.is_empty());
        let one = |which: &Index| layout.held[which.index(layout.held.len())];
        let kept: HashSet<NodeId> = kept.iter().map(one).collect();
        let seeds: Vec<NodeId> = seeds.iter().map(one).filter(|id| !kept.contains(id)).collect();
        kept.iter().for_each(|id| layout.nodes[*id].exclude(1));
        let (extents, nodes, free) = (&layout.extents, &layout.nodes, &layout.allocator);
        let rank = |id| layout.rank(id);
        let mut search = Search { extents, nodes, free, rank: &rank, blocks, steps: 0 };
        let around = |seed: &NodeId| search.around(*seed);
        let found = seeds.iter().filter_map(around).min_by_key(|(cost, _)| *cost);
        let expected = seeds.iter().filter_map(|seed| layout.cheapest(*seed, blocks, &kept)).min();
        prop_assert_eq!(found.as_ref().map(|(cost, _)| *cost), expected);
        let Some((cost, chunks)) = found else { return Ok(()) };
        prop_assert_eq!(cost, chunks.iter().map(|id| layout.cost(*id)).sum::<u64>());
        prop_assert!(chunks.iter().all(|id| !kept.contains(id)), "one that is excluded goes");
        prop_assert_eq!(chunks.len(), chunks.iter().collect::<HashSet<_>>().len());
        prop_assert!(chunks.iter().any(|id| seeds.contains(id)));
        // One run, of that length at least.
        let Extent { file, first_block, .. } = layout.nodes[chunks[0]].extent;
        chunks.into_iter().for_each(|id| layout.free(id));
        let is_one = |start: u32| {
            let end = u64::from(start) + u64::from(layout.allocator.free_from(file, start));
            end > u64::from(first_block) && end - u64::from(start) >= blocks
        };
        prop_assert!((0..=first_block).any(is_one), "no run of {}", blocks);
        prop_assert!(layout.allocator.allocate(blocks as u32).is_some());
    }
}

/// A scan finds room where there is any, a bounded part of it at a time.
#[test]
fn a_scan_looks_at_some_and_goes_on() {
    const CHUNKS: u32 = 10_000;
    let (mut layout, chunks) = Layout::full(CHUNKS);
    // Each other one must stay, but for four near the end.
    let room = 9_000..9_004;
    for (number, id) in chunks.iter().enumerate() {
        if number % 2 == 0 && !room.contains(&number) {
            layout.nodes[*id].exclude(1);
        }
    }
    // From the beginning, from behind them, and from the middle of them.
    for first in [0, 9_500, 9_002] {
        let mut scan = Scan::from(layout.nodes[chunks[first]].extent);
        let mut turns = 0;
        let found = loop {
            let (extents, nodes, free) = (&layout.extents, &layout.nodes, &layout.allocator);
            let mut search = Search { extents, nodes, free, rank: &|_| 0, blocks: 4, steps: 0 };
            let found = search.scan(&mut scan);
            assert!(search.steps <= STEPS_AT_ONCE, "{} steps", search.steps);
            turns += 1;
            if let Some(found) = found {
                break found;
            }
        };
        assert!(found && turns > 1, "{turns}");
        assert_eq!(scan.take_run().len(), 4);
    }
    chunks[9_000..9_004].iter().step_by(2).for_each(|id| layout.nodes[*id].exclude(1));
    let mut scan = Scan::from(layout.nodes[chunks[5_000]].extent);
    let ends = |layout: &Layout, scan: &mut Scan| {
        let (extents, nodes, free) = (&layout.extents, &layout.nodes, &layout.allocator);
        Search { extents, nodes, free, rank: &|_| 0, blocks: 4, steps: 0 }.scan(scan)
    };
    assert_eq!((0..20).find_map(|_| ends(&layout, &mut scan)), Some(false));
}

/// One run of very many chunks takes as many turns as it takes, and no chunk is in it twice.
#[test]
fn a_long_run_is_found_a_bounded_part_at_a_time() {
    const CHUNKS: u32 = 20_000;
    let (layout, chunks) = Layout::full(CHUNKS);
    let (extents, nodes, free) = (&layout.extents, &layout.nodes, &layout.allocator);
    let blocks = u64::from(CHUNKS) / 2;
    let search = || Search { extents, nodes, free, rank: &|_| 0, blocks, steps: 0 };
    let mut around = search();
    assert!(around.around(chunks[10_000]).is_none());
    assert!(around.steps <= STEPS_AT_ONCE, "{} steps for one chunk", around.steps);
    let mut scan = Scan::from(layout.nodes[chunks[5_000]].extent);
    let mut turns = 0;
    while search().scan(&mut scan).is_none() {
        turns += 1;
    }
    let run: HashSet<NodeId> = scan.take_run().iter().map(|victim| victim.node).collect();
    assert!(run.len() == 10_000 && turns >= 4, "{} in {turns} turns", run.len());
    assert!(chunks[5_000..15_000].iter().all(|id| run.contains(id)));
}

/// The ways to more room on both sides end where there is enough.
#[test]
fn no_more_neighbours_are_looked_at_than_it_takes() {
    let (layout, chunks) = Layout::full(100);
    let (extents, nodes, free) = (&layout.extents, &layout.nodes, &layout.allocator);
    let mut search = Search { extents, nodes, free, rank: &|_| 0, blocks: 4, steps: 0 };
    assert!(search.around(chunks[50]).is_some());
    assert_eq!(search.steps, 6, "three on each side");
}

#[test]
fn a_scan_counts_free_space_in_a_run_and_before_it() {
    let (mut layout, chunks) = Layout::full(40);
    [10, 12, 13, 14].into_iter().for_each(|number| layout.free(chunks[number]));
    let others = (0..40).filter(|number| !(10..=15).contains(number));
    others.for_each(|number: usize| layout.nodes[chunks[number]].exclude(1));
    let (extents, nodes, free) = (&layout.extents, &layout.nodes, &layout.allocator);
    for (blocks, found) in [(6, true), (7, false)] {
        let mut scan = Scan::from(layout.nodes[chunks[0]].extent);
        let mut search = Search { extents, nodes, free, rank: &|_| 0, blocks, steps: 0 };
        assert_eq!(search.scan(&mut scan), Some(found));
        let run: Vec<NodeId> = scan.take_run().iter().map(|victim| victim.node).collect();
        assert!(!found || run == [chunks[11], chunks[15]], "{run:?}");
    }
}
