//! What the eviction index must say, kept the plain way.

use super::*;

/// Nothing is free but what is behind the last chunk.
struct NothingFree;

impl FreeSpace for NothingFree {}

#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) node: NodeId,
    chunk: ChunkRef,
    extent: Extent,
    namespace: NamespaceId,
    name: usize,
    stays_until_s: u32,
}

pub(super) fn blocks_of(
    eviction_index: &mut EvictionIndex,
    pool: PoolId,
    now_s: u32,
) -> (u64, u64) {
    let mut looks = std::iter::repeat_with(|| eviction_index.blocks_of(pool, now_s));
    looks.find_map(|found| found).map(|of_pool| (of_pool.taken, of_pool.evictable)).unwrap()
}

pub(super) struct Model {
    pub(super) eviction_index: EvictionIndex,
    pub(super) held: Vec<Held>,
    pub(super) remembered: Vec<(NamespaceId, bool)>,
    pub(super) reserved: Vec<(usize, PoolId, u32)>,
    /// The next place, and the next number of an entry.
    next_block: u32,
    next_entry: u32,
    now_s: u32,
}

impl Model {
    pub(super) fn new(policy: Eviction) -> Self {
        let quotas = QUOTAS.map(|(name, blocks)| (name.to_owned(), blocks * BLOCK_BYTES));
        Self {
            eviction_index: EvictionIndex::new(policy, &Quotas::new(&quotas, 1)),
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

    pub(super) fn leave(&mut self, held: Held) {
        self.eviction_index.leave(held.node, held.namespace);
        self.held.retain(|other| other.node != held.node);
    }

    pub(super) fn forget(&mut self, namespace: NamespaceId, was_used: bool) {
        let mut counts = GhostCounts::default();
        counts.add(was_used);
        self.eviction_index.forget(namespace, counts);
        let place = self.remembered.iter().position(|one| *one == (namespace, was_used));
        self.remembered.swap_remove(place.unwrap());
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

    pub(super) fn take(&mut self, step: &Step) {
        match step {
            Step::Enter(blocks, name, uses) => {
                let extent = Extent { file: 0, first_block: self.next_block, blocks: *blocks };
                let chunk = ChunkRef { shard: 1, entry: self.next_entry };
                self.next_block += blocks;
                self.next_entry += 1;
                let fingerprint = Namespace::called(NAMES[*name]).fingerprint();
                let namespace = (fingerprint, || NAMES[*name].to_owned());
                let (node, namespace) = self.eviction_index.enter(chunk, extent, namespace, *uses);
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
            Step::Evict(which, was_used) => {
                if let Some(held) = self.one(which) {
                    self.eviction_index.remember_leaving(held.namespace, *was_used);
                    self.remembered.push((held.namespace, *was_used));
                    self.leave(held);
                }
            }
            Step::Forget(which) => {
                if !self.remembered.is_empty() {
                    let place = which.index(self.remembered.len());
                    let (namespace, was_used) = self.remembered[place];
                    self.eviction_index.learn(namespace, was_used);
                    self.forget(namespace, was_used);
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
                let victims = self.eviction_index.coldest(*count, self.now_s);
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

    pub(super) fn check(&mut self) {
        let chunks =
            self.held.iter().map(|held| (held.node, (held.chunk, held.extent, held.namespace)));
        let mut remembered: HashMap<NamespaceId, GhostCounts> = HashMap::new();
        for (id, was_used) in &self.remembered {
            remembered.entry(*id).or_default().add(*was_used);
        }
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
