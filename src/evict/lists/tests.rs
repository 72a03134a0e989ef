//! Numbers and lists against vectors.

use super::*;

impl List {
    /// Its chunks, the coldest first, after a look at every link and sum.
    pub(in super::super) fn checked(&self, nodes: &Nodes) -> Vec<NodeId> {
        let ids: Vec<NodeId> = self.coldest_first(nodes).take(nodes.len() + 1).collect();
        assert_eq!(ids.len(), self.len);
        assert_eq!((ids.first(), ids.last()), (self.coldest.as_ref(), self.hottest.as_ref()));
        assert!(ids.iter().all(|id| nodes[*id].list == self.name));
        let back: Vec<Option<NodeId>> = ids.iter().map(|id| nodes[*id].colder).collect();
        let expected = std::iter::once(None).chain(ids.iter().copied().map(Some)).take(ids.len());
        assert!(back.iter().copied().eq(expected));
        let blocks = ids.iter().map(|id| u64::from(nodes[*id].extent.blocks)).sum::<u64>();
        assert_eq!(blocks, self.blocks);
        ids
    }
}

fn node(entry: u32) -> ChunkNode {
    let extent = Extent { file: 0, first_block: 0, blocks: 1 + entry % 7 };
    let chunk = ChunkRef { shard: entry % 5, entry };
    ChunkNode::new(chunk, extent, entry as u16, (entry % 3) as u16)
}

#[test]
fn numbers_are_used_again_and_the_others_stay() {
    let mut nodes = Nodes::default();
    let count = 2 * SEGMENT as u32 + 1;
    let ids: Vec<NodeId> = (0..count).map(|number| nodes.insert(node(number))).collect();
    assert_eq!(nodes.len(), count as usize);
    let removed: Vec<NodeId> = ids.iter().copied().step_by(3).collect();
    for id in &removed {
        let (removed, number) = (nodes.remove(*id), id.index() as u32);
        assert_eq!((removed.chunk().entry, removed.chunk().shard), (number, number % 5));
        assert_eq!((u32::from(removed.uses), u32::from(removed.pool)), (number, number % 3));
    }
    assert_eq!(nodes.len(), ids.len() - removed.len());
    let mut again: Vec<NodeId> = removed.iter().map(|_| nodes.insert(node(count))).collect();
    again.sort_unstable();
    assert_eq!(again, removed);
    assert_eq!(nodes.insert(node(count)).index(), count as usize);
    for (number, id) in ids.iter().enumerate() {
        let expected = if number % 3 == 0 { count } else { number as u32 };
        assert_eq!(nodes[*id].chunk().entry, expected);
    }
}

#[test]
fn positions_run_from_the_coldest_to_the_hottest() {
    let mut nodes = Nodes::default();
    let mut hot = List::new(0);
    let mut cold = List::new(1);
    // Across the end of the clock's numbers.
    hot.clock = u32::MAX - 100;
    cold.clock = u32::MAX - 100;
    let mut pushed = |list: &mut List, push: fn(&mut List, &mut Nodes, NodeId)| -> Vec<u8> {
        for number in 0..256 {
            let id = nodes.insert(node(number));
            push(list, &mut nodes, id);
        }
        list.checked(&nodes).into_iter().map(|id| list.position(&nodes, id)).collect()
    };
    assert!(pushed(&mut hot, List::push_hot).into_iter().eq(0..=255));
    assert!(pushed(&mut cold, List::push_cold).into_iter().eq(0..=255));
}

#[test]
fn a_chunk_that_is_alone_is_the_coldest() {
    let mut nodes = Nodes::default();
    let mut list = List::new(0);
    let id = nodes.insert(node(0));
    list.push_hot(&mut nodes, id);
    assert_eq!(list.position(&nodes, id), 0);
}
