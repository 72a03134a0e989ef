//! The chunks held, by random steps, with everything compared after each one.

mod bounds;
mod model;

use proptest::prelude::*;
use proptest::sample::Index;

use self::model::{Model, blocks_of};
use super::*;
use crate::evict::{Room, RoomSearch};
use crate::key::Namespace;
use crate::store::FreeSpace;

/// The last two have a quota, in blocks.
const NAMES: [&str; 4] = ["plain", "plain@salt", "small", "tiny"];
const QUOTAS: [(&str, u64); 2] = [("small", 30), ("tiny", 6)];

#[derive(Clone, Debug)]
enum Step {
    /// A chunk of so many blocks, of this namespace, with so many uses.
    Enter(u32, usize, u16),
    Touch(Index),
    /// It must stay until this second, or for good.
    Exclude(Index, Option<u32>),
    /// It need not any more after this second.
    Release(Index, u32),
    /// The clock goes on.
    Pass(u32),
    Leave(Index),
    /// It is evicted, and remembered as used or not.
    Evict(Index, bool),
    /// Another one of its pool learns from it before.
    Forget(Index),
    /// Room in the quota is taken, and given back a while later.
    Reserve(u32, usize),
    GiveBack(Index),
    /// Chunks that make room, or go first.
    ForRoom(u32),
    Coldest(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<Index>;
    let step = prop_oneof![
        8 => (1_u32..8, 0..NAMES.len(), 0_u16..4)
            .prop_map(|(blocks, name, uses)| Step::Enter(blocks, name, uses)),
        4 => which().prop_map(Step::Touch),
        4 => (which(), prop::option::of(0_u32..20)).prop_map(|(which, until_s)| Step::Exclude(which, until_s)),
        2 => (which(), 0_u32..20).prop_map(|(which, until_s)| Step::Release(which, until_s)),
        2 => (1_u32..5).prop_map(Step::Pass),
        2 => which().prop_map(Step::Leave),
        2 => (which(), any::<bool>()).prop_map(|(which, was_used)| Step::Evict(which, was_used)),
        1 => which().prop_map(Step::Forget),
        4 => (1_u32..8, 2..NAMES.len()).prop_map(|(blocks, name)| Step::Reserve(blocks, name)),
        3 => which().prop_map(Step::GiveBack),
        3 => (1_u32..40).prop_map(Step::ForRoom),
        2 => (0_usize..20).prop_map(Step::Coldest),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn everything_fits_after_each_step(steps in steps(), policy in 0..Eviction::ALL.len()) {
        let mut model = Model::new(Eviction::ALL[policy]);
        for step in &steps {
            model.take(step);
            model.check();
        }
        // And nothing is left of anything in the end, but namespaces with a quota.
        for held in model.held.clone() {
            model.leave(held);
        }
        for (namespace, was_used) in model.remembered.clone() {
            model.forget(namespace, was_used);
        }
        model.reserved.drain(..).for_each(|(_, pool, blocks)| model.eviction_index.release_quota(pool, blocks));
        model.check();
        let names: Vec<String> = model.eviction_index.usage().into_iter().map(|(name, _)| name).collect();
        prop_assert_eq!(names, QUOTAS.map(|(name, _)| name.to_owned()));
    }
}

/// Where room is room wherever it is.
struct Anywhere(u64);

impl FreeSpace for Anywhere {
    fn missing_blocks(&self, _blocks: u32) -> Option<u64> {
        Some(self.0)
    }
}

/// Chunks that are used: as many as it takes for a look at all of them to be too long.
fn many_used(eviction: Eviction, count: u32, quotas: &Quotas) -> EvictionIndex {
    let mut eviction_index = EvictionIndex::new(eviction, quotas);
    let fingerprint = Namespace::called("model").fingerprint();
    for number in 0..count {
        let extent = Extent { file: 0, first_block: number, blocks: 1 };
        let chunk = ChunkRef { shard: 0, entry: number };
        let namespace = (fingerprint, || "model".to_owned());
        let (node, _) = eviction_index.enter(chunk, extent, namespace, 0);
        (0..3).for_each(|_| eviction_index.touch(node));
    }
    eviction_index
}

/// Something comes back, however many pools it comes from.
#[test]
fn what_comes_back_in_two_pools_is_told() {
    let quotas = QUOTAS.map(|(name, blocks)| (name.to_owned(), blocks * BLOCK_BYTES));
    for names in [&NAMES[2..3], &NAMES[2..]] {
        let mut eviction_index = EvictionIndex::new(Eviction::Lru, &Quotas::new(&quotas, 1));
        for (number, name) in (0..).zip(names) {
            let extent = Extent { file: 0, first_block: number, blocks: 1 };
            let namespace = (Namespace::called(name).fingerprint(), || (*name).to_owned());
            let chunk = ChunkRef { shard: 0, entry: number };
            let (node, _) = eviction_index.enter(chunk, extent, namespace, 0);
            eviction_index.exclude(node, 5);
        }
        assert!(!eviction_index.reinsert(4));
        assert!(eviction_index.reinsert(5), "{names:?}");
    }
}

#[test]
fn a_check_tells_what_does_not_fit() {
    let what_differs = |spoil: fn(&mut EvictionIndex, NodeId)| {
        let mut eviction_index = many_used(Eviction::Lru, 3, &Quotas::default());
        let chunk = |entry| ChunkRef { shard: 0, entry };
        let extent = |first_block| Extent { file: 0, first_block, blocks: 1 };
        let chunks: HashMap<NodeId, (ChunkRef, Extent, NamespaceId)> = eviction_index
            .extents
            .values()
            .zip(0..)
            .map(|(&id, number)| (id, (chunk(number), extent(number), 0)))
            .collect();
        let last = *eviction_index.extents.values().next_back().unwrap();
        spoil(&mut eviction_index, last);
        eviction_index.check(&chunks, &HashMap::new()).join("; ")
    };
    let told = [
        what_differs(|_, _| ()),
        what_differs(|all, _| _ = all.extents.pop_last()),
        what_differs(|all, _| {
            _ = all.nodes.insert(ChunkNode::new(
                ChunkRef { shard: 0, entry: 9 },
                Extent { file: 1, first_block: 0, blocks: 1 },
                0,
                0,
            ))
        }),
        what_differs(|all, _| all.pools[0].chunks -= 1),
        what_differs(|all, id| all.nodes[id].extent.blocks += 1),
    ];
    let expected = [
        "",
        "3 chunks are stored, 3 are in the order of eviction, 2 have an extent; ChunkRef { shard: 0, entry: 2 } at Extent \
         { file: 0, first_block: 2, blocks: 1 } is known as something else",
        "3 chunks are stored, 4 are in the order of eviction, 3 have an extent",
        "pool 0 has 2 chunks and lists 3",
        "ChunkRef { shard: 0, entry: 2 } at Extent { file: 0, first_block: 2, blocks: 1 } is known as something else",
    ];
    assert_eq!(told, expected);
}
