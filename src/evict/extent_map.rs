//! The extent map: the stored chunks in the order of their extents.
//!
//! It has the number of each chunk and nothing else, in sorted pieces; where a chunk lies stands in its node. So it takes 4 to 8
//! bytes for a chunk, where a map with the extents as keys would take 25.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::{NodeId, Nodes};
use crate::base::block::Extent;

/// Most chunks of a piece.
const PIECE: usize = 128;

type Start = (u32, u32);
/// With its number, so that the order is one even where two chunks begin at one block, which is a bug that a check reports.
type Place = (Start, NodeId);

pub(super) struct ExtentMap {
    /// By a bound that is above all chunks of the pieces before, and not above those of this one. The first is always there; no
    /// other one is empty.
    pieces: BTreeMap<Place, Vec<NodeId>>,
    len: usize,
}

impl Default for ExtentMap {
    fn default() -> Self {
        Self { pieces: BTreeMap::from([(first_at((0, 0)), Vec::new())]), len: 0 }
    }
}

impl ExtentMap {
    /// Of chunks and their extents, in the order of these.
    pub(super) fn of_sorted(chunks: impl Iterator<Item = (NodeId, Extent)>) -> Self {
        let (mut map, mut chunks) = (Self::default(), chunks.peekable());
        while let Some(&(first, extent)) = chunks.peek() {
            let mut piece = Vec::with_capacity(PIECE);
            piece.extend(chunks.by_ref().take(PIECE).map(|(id, _)| id));
            map.len += piece.len();
            map.pieces.insert((extent.start(), first), piece);
        }
        map
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.pieces.values().flatten().copied()
    }

    /// The chunk that begins at `start`.
    pub(super) fn at(&self, nodes: &Nodes, start: Start) -> Option<NodeId> {
        self.first_from(nodes, start).filter(|id| nodes[*id].extent.start() == start)
    }

    /// The first chunk that begins at `start` or later.
    pub(super) fn first_from(&self, nodes: &Nodes, start: Start) -> Option<NodeId> {
        let place = first_at(start);
        let (bound, piece) = self.pieces.range(..=place).next_back()?;
        let here = piece.get(position(piece, nodes, place)).copied();
        here.or_else(|| {
            let mut behind = self.pieces.range(*bound..).skip(1);
            behind.find_map(|(_, piece)| piece.first().copied())
        })
    }

    /// The last chunk that begins before `start`.
    pub(super) fn last_before(&self, nodes: &Nodes, start: Start) -> Option<NodeId> {
        let place = first_at(start);
        let mut pieces = self.pieces.range(..=place).rev();
        let (_, piece) = pieces.next()?;
        let here = position(piece, nodes, place).checked_sub(1).map(|at| piece[at]);
        here.or_else(|| pieces.find_map(|(_, piece)| piece.last().copied()))
    }

    /// Adds a chunk, which must not change its extent before it is removed.
    pub(super) fn insert(&mut self, nodes: &Nodes, id: NodeId) {
        self.len += 1;
        let place = place_of(nodes, id);
        let Some((_, piece)) = self.pieces.range_mut(..=place).next_back() else { return };
        let at = position(piece, nodes, place);
        if piece.len() < PIECE {
            return piece.insert(at, id);
        }
        // Behind all others a piece stays full: chunks often come in order.
        let mut upper = Vec::with_capacity(PIECE);
        if at == PIECE {
            upper.push(id);
        } else {
            upper.extend(piece.drain(PIECE / 2..));
            match at.checked_sub(PIECE / 2) {
                Some(at) => upper.insert(at, id),
                None => piece.insert(at, id),
            }
        }
        self.pieces.insert(place_of(nodes, upper[0]), upper);
    }

    pub(super) fn remove(&mut self, nodes: &Nodes, id: NodeId) {
        let place = place_of(nodes, id);
        let Some((&bound, piece)) = self.pieces.range_mut(..=place).next_back() else { return };
        // By its number: a search by extents would wait for nodes anywhere in memory.
        let Some(at) = piece.iter().position(|other| *other == id) else {
            debug_assert!(false, "{id:?} is not where its extent is");
            return;
        };
        piece.remove(at);
        self.len -= 1;
        if piece.len() < PIECE / 4 {
            let next =
                self.pieces.range((Excluded(bound), Unbounded)).next().map(|(next, _)| *next);
            // With both: chunks may go in any order.
            [next, Some(bound)].into_iter().flatten().for_each(|bound| self.join(bound));
        }
    }

    /// Joins a piece with the one before it, if both are short or it is empty.
    fn join(&mut self, bound: Place) {
        let mut both = self.pieces.range_mut(..=bound).rev();
        if let Some((_, short)) = both.next()
            && let Some((_, before)) = both.next()
            && (short.is_empty() || short.len() + before.len() <= PIECE / 2)
        {
            before.append(short);
            self.pieces.remove(&bound);
        }
    }
}

/// Not behind any chunk that begins there.
fn first_at(start: Start) -> Place {
    (start, NodeId::at(0))
}

fn place_of(nodes: &Nodes, id: NodeId) -> Place {
    (nodes[id].extent.start(), id)
}

/// Where `place` is in a piece, or would be.
fn position(piece: &[NodeId], nodes: &Nodes, place: Place) -> usize {
    piece.partition_point(|id| place_of(nodes, *id) < place)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::base::block::Extent;
    use crate::evict::{ChunkNode, ChunkRef};

    fn add(map: &mut ExtentMap, nodes: &mut Nodes, (file, first_block): Start) -> NodeId {
        let extent = Extent { file, first_block, blocks: 1 };
        let id = nodes.insert(ChunkNode::new(ChunkRef { shard: 0, entry: 0 }, extent, 0, 0));
        map.insert(nodes, id);
        id
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map(
            steps in prop::collection::vec((0_u32..3, 0_u32..400, 0_u8..10), 1..if cfg!(miri) { 60 } else { 3000 }), removes in 1_u8..10,
        ) {
            let (mut map, mut nodes) = (ExtentMap::default(), Nodes::default());
            let mut model: BTreeMap<Start, NodeId> = BTreeMap::new();
            for (file, block, action) in steps {
                let start = (file, block);
                match model.get(&start) {
                    Some(&id) if action < removes => {
                        map.remove(&nodes, id);
                        nodes.remove(id);
                        model.remove(&start);
                    }
                    Some(_) => {}
                    None => drop(model.insert(start, add(&mut map, &mut nodes, start))),
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert_eq!(map.at(&nodes, start), model.get(&start).copied());
                let from = model.range(start..).next().map(|(_, id)| *id);
                prop_assert_eq!(map.first_from(&nodes, start), from);
                let before = model.range(..start).next_back().map(|(_, id)| *id);
                prop_assert_eq!(map.last_before(&nodes, start), before);
            }
            prop_assert!(map.iter().eq(model.values().copied()));
            let again = ExtentMap::of_sorted(map.iter().map(|id| (id, nodes[id].extent)));
            prop_assert!(again.len() == map.len() && again.iter().eq(map.iter()));
            for start in model.keys() {
                prop_assert_eq!(again.at(&nodes, *start), map.at(&nodes, *start));
            }
            prop_assert!(map.pieces.values().all(|piece| piece.len() <= PIECE));
            prop_assert!(map.pieces.values().skip(1).all(|piece| !piece.is_empty()));
        }
    }

    /// A long piece would be searched in the wrong half once it is cut.
    #[test]
    fn a_short_piece_is_not_joined_with_a_long_one() {
        let (mut map, mut nodes) = (ExtentMap::default(), Nodes::default());
        let count = 2 * PIECE as u32;
        let ids: Vec<NodeId> =
            (0..count).map(|block| add(&mut map, &mut nodes, (0, 2 * block))).collect();
        for id in &ids[PIECE + 1..] {
            map.remove(&nodes, *id);
            assert!(map.pieces.values().all(|piece| piece.len() <= PIECE));
        }
        for block in 0..PIECE as u32 {
            let id = add(&mut map, &mut nodes, (0, 2 * block + 1));
            assert_eq!(map.at(&nodes, (0, 2 * block + 1)), Some(id));
        }
        assert!(
            ids[..=PIECE].iter().all(|id| map.at(&nodes, nodes[*id].extent.start()) == Some(*id))
        );
    }

    #[test]
    fn pieces_are_full_of_what_comes_in_order_and_few_of_what_is_left() {
        for is_backwards in [false, true] {
            let (mut map, mut nodes) = (ExtentMap::default(), Nodes::default());
            let count = 64 * PIECE;
            let ids: Vec<NodeId> =
                (0..count).map(|block| add(&mut map, &mut nodes, (0, block as u32))).collect();
            assert_eq!((map.len(), map.pieces.len()), (count, 64));
            let mut goes: Vec<usize> = (0..count).filter(|number| number % PIECE != 0).collect();
            if is_backwards {
                goes.reverse();
            }
            for (gone, number) in goes.iter().enumerate() {
                map.remove(&nodes, ids[*number]);
                assert_eq!(map.len(), count - gone - 1);
            }
            assert!(map.pieces.len() <= 2, "{} pieces for {} chunks", map.pieces.len(), map.len());
            assert_eq!(map.first_from(&nodes, (0, 1)), Some(ids[PIECE]));
        }
    }

    /// Else each search for a neighbour, under a lock, passes over all of them.
    #[test]
    fn a_piece_that_becomes_empty_goes_beside_full_ones() {
        let (mut map, mut nodes) = (ExtentMap::default(), Nodes::default());
        let ids: Vec<NodeId> =
            (0..64 * PIECE as u32).map(|block| add(&mut map, &mut nodes, (0, block))).collect();
        let (left, gone) = ids.split_at(PIECE);
        gone.iter().rev().for_each(|id| map.remove(&nodes, *id));
        assert_eq!((map.pieces.len(), map.last_before(&nodes, (1, 0))), (1, left.last().copied()));
    }
}
