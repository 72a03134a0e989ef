//! The chunks held, by random steps, with everything compared after each one.

mod bounds;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::evict::{Room, RoomSearch};
use crate::key::Namespace;
use crate::store::FreeSpace;

/// The last two have a quota, in blocks.
const NAMES: [&str; 4] = ["plain", "plain@salt", "small", "tiny"];
const QUOTAS: [(&str, u64); 2] = [("small", 30), ("tiny", 6)];

#[derive(Clone, Debug)]
enum Step {
    /// A chunk of so many blocks, of this namespace. `returns`: it was evicted not long ago.
    Enter(u32, usize, bool),
    Touch(Index),
    /// It must stay until this second, or for good.
    Exclude(Index, Option<u32>),
    /// It need not any more after this second.
    Release(Index, u32),
    /// The clock goes on.
    Pass(u32),
    Leave(Index),
    /// It is evicted, and remembered.
    Evict(Index),
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
        8 => (1_u32..8, 0..NAMES.len(), any::<bool>())
            .prop_map(|(blocks, name, returns)| Step::Enter(blocks, name, returns)),
        4 => which().prop_map(Step::Touch),
        4 => (which(), prop::option::of(0_u32..20)).prop_map(|(which, until_s)| Step::Exclude(which, until_s)),
        2 => (which(), 0_u32..20).prop_map(|(which, until_s)| Step::Release(which, until_s)),
        2 => (1_u32..5).prop_map(Step::Pass),
        2 => which().prop_map(Step::Leave),
        2 => which().prop_map(Step::Evict),
        1 => which().prop_map(Step::Forget),
        4 => (1_u32..8, 2..NAMES.len()).prop_map(|(blocks, name)| Step::Reserve(blocks, name)),
        3 => which().prop_map(Step::GiveBack),
        3 => (1_u32..40).prop_map(Step::ForRoom),
        2 => (0_usize..20).prop_map(Step::Coldest),
    ];
    prop::collection::vec(step, 1..150)
}

/// Nothing is free but what is behind the last chunk.
struct NothingFree;

impl FreeSpace for NothingFree {
    fn missing_blocks(&self, _blocks: u32) -> Option<u64> {
        None
    }

    fn free_before(&self, _: u32, _: u32) -> u32 {
        0
    }

    fn free_from(&self, _: u32, _: u32) -> u32 {
        0
    }
}

#[derive(Clone, Copy)]
struct Held {
    node: NodeId,
    chunk: ChunkRef,
    extent: Extent,
    namespace: NamespaceId,
    name: usize,
    stays_until_s: u32,
}

fn coldest(eviction_index: &mut EvictionIndex, count: usize, now_s: u32) -> Vec<Victim> {
    std::iter::repeat_with(|| eviction_index.coldest(count, now_s)).find_map(|found| found).unwrap()
}

fn blocks_of(eviction_index: &mut EvictionIndex, pool: PoolId, now_s: u32) -> (u64, u64) {
    let mut looks = std::iter::repeat_with(|| eviction_index.blocks_of(pool, now_s));
    looks.find_map(|found| found).map(|of_pool| (of_pool.taken, of_pool.evictable)).unwrap()
}

struct Model {
    eviction_index: EvictionIndex,
    held: Vec<Held>,
    remembered: Vec<NamespaceId>,
    reserved: Vec<(usize, PoolId, u32)>,
    /// The next place, and the next number of an entry.
    next_block: u32,
    next_entry: u32,
    now_s: u32,
}

impl Model {
    fn new(policy: Eviction) -> Self {
        let quotas = QUOTAS.map(|(name, blocks)| (name.to_owned(), blocks * BLOCK_BYTES));
        Self {
            eviction_index: EvictionIndex::new(policy, &Quotas::new(&quotas)),
            held: Vec::new(),
            remembered: Vec::new(),
            reserved: Vec::new(),
            next_block: 0,
            next_entry: 0,
            now_s: 1,
        }
    }

    fn one(&self, which: &Index) -> Option<Held> {
        (!self.held.is_empty()).then(|| self.held[which.index(self.held.len())])
    }

    fn leave(&mut self, held: Held) {
        self.eviction_index.leave(held.node, held.namespace);
        self.held.retain(|other| other.node != held.node);
    }

    fn stays(&self, held: &Held) -> bool {
        held.stays_until_s > self.now_s
    }

    fn set_stay(&mut self, node: NodeId, until_s: u32) {
        self.held
            .iter_mut()
            .filter(|held| held.node == node)
            .for_each(|held| held.stays_until_s = until_s);
    }

    /// Chunks chosen to go are there, once, and not among those that must stay.
    fn check_victims(&self, victims: &[Victim]) {
        let nodes: HashSet<NodeId> = victims.iter().map(|victim| victim.node).collect();
        assert_eq!(nodes.len(), victims.len(), "one of them twice");
        for victim in victims {
            let held = self.held.iter().find(|held| held.node == victim.node).unwrap();
            assert_eq!(held.chunk, victim.chunk);
            assert!(!self.stays(held), "one that must stay");
        }
    }

    fn blocks_of(&self, victims: &[Victim]) -> u64 {
        let of = |victim: &Victim| {
            let held = self.held.iter().find(|held| held.node == victim.node);
            u64::from(held.unwrap().extent.blocks)
        };
        victims.iter().map(of).sum()
    }

    /// Blocks of a namespace's chunks, and of those on their way.
    fn quota_used(&self, name: usize) -> u64 {
        let held = self.held.iter().filter(|held| held.name == name);
        let reserved = self.reserved.iter().filter(|(other, ..)| *other == name);
        held.map(|held| u64::from(held.extent.blocks)).sum::<u64>()
            + reserved.map(|(_, _, blocks)| u64::from(*blocks)).sum::<u64>()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Enter(blocks, name, returns) => {
                let extent = Extent { file: 0, first_block: self.next_block, blocks: *blocks };
                let chunk = ChunkRef { shard: 1, entry: self.next_entry };
                self.next_block += blocks;
                self.next_entry += 1;
                let fingerprint = Namespace::called(NAMES[*name]).fingerprint();
                let namespace = (fingerprint, || NAMES[*name].to_owned());
                let (node, namespace) =
                    self.eviction_index.enter(chunk, extent, namespace, *returns);
                let name = *name;
                self.held.push(Held { node, chunk, extent, namespace, name, stays_until_s: 0 });
            }
            Step::Touch(which) => {
                let node = self.one(which).map(|held| held.node);
                node.iter().for_each(|node| self.eviction_index.touch(*node));
            }
            Step::Exclude(which, until_s) => {
                if let Some(held) = self.one(which) {
                    let until_s = until_s.map_or(UNTIL_RELEASED_S, |seconds| self.now_s + seconds);
                    self.eviction_index.exclude(held.node, until_s);
                    self.set_stay(held.node, until_s);
                }
            }
            Step::Release(which, seconds) => {
                if let Some(held) = self.one(which).filter(|held| self.stays(held)) {
                    self.eviction_index.release(held.node, self.now_s + seconds);
                    self.set_stay(held.node, self.now_s + seconds);
                }
            }
            Step::Pass(seconds) => self.now_s += seconds,
            Step::Leave(which) => {
                let held = self.one(which);
                held.into_iter().for_each(|held| self.leave(held));
            }
            Step::Evict(which) => {
                if let Some(held) = self.one(which) {
                    self.eviction_index.remember_leaving(held.namespace);
                    self.remembered.push(held.namespace);
                    self.leave(held);
                }
            }
            Step::Forget(which) => {
                if !self.remembered.is_empty() {
                    let place = which.index(self.remembered.len());
                    self.eviction_index.forget(self.remembered.swap_remove(place), 1);
                }
            }
            Step::Reserve(blocks, name) => {
                let fingerprint = Namespace::called(NAMES[*name]).fingerprint();
                let (pool, quota_bytes) = self.eviction_index.pool_of(fingerprint);
                let quota = QUOTAS[*name - 2].1;
                assert_eq!(quota_bytes, Some(quota * BLOCK_BYTES));
                let over = (self.quota_used(*name) + u64::from(*blocks)).saturating_sub(quota);
                let (taken, evictable) = blocks_of(&mut self.eviction_index, pool, self.now_s);
                assert_eq!(taken, self.quota_used(*name));
                match self.eviction_index.reserve_quota(pool, *blocks) {
                    Ok(()) => {
                        assert_eq!(over, 0);
                        self.reserved.push((*name, pool, *blocks));
                    }
                    Err(missing) => {
                        assert!(over > 0 && missing == over);
                        let victims = self.eviction_index.coldest_of(pool, over);
                        self.check_victims(&victims);
                        let freed = self.blocks_of(&victims);
                        let of_it = |victim: &Victim| {
                            self.held
                                .iter()
                                .any(|held| held.node == victim.node && held.name == *name)
                        };
                        assert!(victims.iter().all(of_it));
                        let may_go = |held: &&Held| held.name == *name && !self.stays(held);
                        let all = self.held.iter().filter(may_go);
                        let all: u64 = all.map(|held| u64::from(held.extent.blocks)).sum();
                        assert_eq!(evictable, all);
                        // Enough of them, and none without need; or all, where all would not do.
                        match victims.split_last() {
                            Some((_, others)) if freed >= over => {
                                assert!(self.blocks_of(others) < over);
                            }
                            _ => assert!(freed == all && all < over, "{freed} of {all} for {over}"),
                        }
                    }
                }
            }
            Step::GiveBack(which) => {
                if !self.reserved.is_empty() {
                    let place = which.index(self.reserved.len());
                    let (_, pool, blocks) = self.reserved.swap_remove(place);
                    self.eviction_index.release_quota(pool, blocks);
                }
            }
            Step::ForRoom(blocks) => {
                let mut search = RoomSearch::new(*blocks);
                let victims = loop {
                    match self.eviction_index.for_room(&mut search, &NothingFree, self.now_s) {
                        Room::Found(victims) => break victims,
                        Room::Unfinished => {}
                        Room::Nowhere => break Vec::new(),
                    }
                };
                self.check_victims(&victims);
                if victims.is_empty() {
                    assert!(!self.has_run(*blocks), "there is a run of {blocks}");
                } else {
                    assert!(self.blocks_of(&victims) >= u64::from(*blocks));
                }
            }
            Step::Coldest(count) => {
                let victims = coldest(&mut self.eviction_index, *count, self.now_s);
                self.check_victims(&victims);
                assert!(victims.len() <= *count);
                let can_any = self.held.iter().any(|held| !self.stays(held));
                assert!(*count == 0 || victims.is_empty() != can_any);
            }
        }
    }

    /// Whether there are so many blocks of chunks side by side that may go.
    fn has_run(&self, blocks: u32) -> bool {
        let (mut run, mut end) = (0, 0);
        let mut held = self.held.clone();
        held.sort_by_key(|held| held.extent);
        for held in held.iter().filter(|held| !self.stays(held)) {
            run = if held.extent.first_block == end { run } else { 0 } + held.extent.blocks;
            end = held.extent.first_block + held.extent.blocks;
            if run >= blocks {
                return true;
            }
        }
        false
    }

    fn check(&mut self) {
        let chunks =
            self.held.iter().map(|held| (held.node, (held.chunk, held.extent, held.namespace)));
        let mut remembered: HashMap<NamespaceId, u64> = HashMap::new();
        self.remembered.iter().for_each(|id| *remembered.entry(*id).or_default() += 1);
        let problems = self.eviction_index.check(&chunks.collect(), &remembered);
        assert_eq!(problems, Vec::<String>::new());
        let usage = self.eviction_index.usage();
        for (number, name) in NAMES.iter().enumerate() {
            let of_it = || self.held.iter().filter(|held| held.name == number);
            let usage = usage.iter().find(|(other, _)| other == name).map(|(_, usage)| *usage);
            // A namespace is there as long as there is anything of it, or as it has a quota.
            let usage = usage.unwrap_or_default();
            let bytes: u64 = of_it().map(|held| held.extent.size_bytes()).sum();
            assert_eq!((usage.keys, usage.allocated_bytes), (of_it().count() as u64, bytes));
        }
        let reserved: u64 = self.reserved.iter().map(|(_, _, blocks)| u64::from(*blocks)).sum();
        assert_eq!(self.eviction_index.reserved_bytes(), reserved * BLOCK_BYTES);
    }
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
        model.remembered.drain(..).for_each(|id| model.eviction_index.forget(id, 1));
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

    fn free_before(&self, _file: u32, _block: u32) -> u32 {
        0
    }

    fn free_from(&self, _file: u32, _block: u32) -> u32 {
        0
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
        let (node, _) = eviction_index.enter(chunk, extent, namespace, false);
        (0..3).for_each(|_| eviction_index.touch(node));
    }
    eviction_index
}

/// Something comes back, however many pools it comes from.
#[test]
fn what_comes_back_in_two_pools_is_told() {
    let quotas = QUOTAS.map(|(name, blocks)| (name.to_owned(), blocks * BLOCK_BYTES));
    for names in [&NAMES[2..3], &NAMES[2..]] {
        let mut eviction_index = EvictionIndex::new(Eviction::Lru, &Quotas::new(&quotas));
        for (number, name) in (0..).zip(names) {
            let extent = Extent { file: 0, first_block: number, blocks: 1 };
            let namespace = (Namespace::called(name).fingerprint(), || (*name).to_owned());
            let chunk = ChunkRef { shard: 0, entry: number };
            let (node, _) = eviction_index.enter(chunk, extent, namespace, false);
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
            .iter()
            .zip(0..)
            .map(|(id, number)| (id, (chunk(number), extent(number), 0)))
            .collect();
        let last = eviction_index.extents.last_before(&eviction_index.nodes, (1, 0)).unwrap();
        spoil(&mut eviction_index, last);
        eviction_index.check(&chunks, &HashMap::new()).join("; ")
    };
    let told = [
        what_differs(|_, _| ()),
        what_differs(|all, id| all.extents.remove(&all.nodes, id)),
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
