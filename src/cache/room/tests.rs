//! How full a store gets, and how much has to go for what comes: places, order of eviction and allocator together, with
//! neither device nor threads, so that a seed always gives the same numbers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tempfile::TempDir;

use super::*;
use crate::backlog::{Amount, Backlog};
use crate::batch_completion::Batch;
use crate::block::BLOCK_BYTES;
use crate::buffer::{CallerBuffer, SourceBuffer};
use crate::cache::{Begun, Claim, GetRequest, ReadHandle};
use crate::completion_queue::CompletionQueue;
use crate::config::{Checksum, Config, Eviction};
use crate::engine::Waker;
use crate::evict::Quotas;
use crate::index::{EnteredGet, EnteredSet, logged, test_index};
use crate::key::{Hashed, Namespace};
use crate::open_stores::OpenStore;
use crate::time::Clock;
use std::sync::Arc;

const CAPACITY: u64 = 512 << 20;
/// GETs beside each SET: they bring the order of eviction apart from that of places.
const GETS_PER_SET: u64 = 2;
const SIZES: [u64; 8] = [1, 3, 9, 20, 65, 130, 300, 1024];

/// A small generator of our own: the choices are to be the same for a seed on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// A store without threads.
struct Still {
    cache: Arc<Cache>,
    completions: Arc<CompletionQueue>,
    backlog: Arc<Backlog>,
    _directory: TempDir,
    memory: Box<[u8]>,
    /// Chunks evicted in one turn of making room, and turns after which there was none yet.
    most_in_a_turn: u64,
    unfinished_turns: u64,
}

/// What had to go for a run of blocks that was wanted, both in blocks.
#[derive(Clone, Copy)]
struct Thrown {
    wanted: u64,
    evicted: u64,
}

impl Still {
    fn new(eviction: Eviction, watermarks: (f64, f64)) -> Self {
        Self::with(|config| {
            (config.eviction, config.ttl) = (eviction, None);
            (config.tuning.low_watermark, config.tuning.high_watermark) = watermarks;
        })
    }

    fn with(set_up: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::new(directory.path().to_str().unwrap(), CAPACITY).unwrap();
        set_up(&mut config);
        let quotas = Quotas::new(&config.quotas);
        Self::at(directory, config, &quotas)
    }

    fn at(directory: TempDir, mut config: Config, quotas: &Quotas) -> Self {
        (config.works_inline, config.checksum, config.lease_s) = (true, Checksum::Off, 0);
        let (index, store) = test_index::open(&config, quotas);
        let completions = Arc::new(CompletionQueue::new().unwrap());
        let reactors = Box::new([Waker::new().unwrap()]);
        let open_store = OpenStore::new([3; 16]);
        let cache = Cache::new(config, index, store, Arc::default(), reactors, open_store);
        let backlog = Backlog::new(Amount { operations: 1, bytes: u64::MAX });
        Self {
            cache: Arc::new(cache),
            completions,
            backlog,
            _directory: directory,
            memory: vec![0; 8].into(),
            most_in_a_turn: 0,
            unfinished_turns: 0,
        }
    }

    /// A SET, as far as it goes without a device. Returns what had to go in its way.
    fn put(&mut self, number: u64, blocks: u64) -> Thrown {
        let before = self.cache.counters.evicted_bytes.get();
        let (claim, write) = self.begin(number, blocks);
        assert!(write.commit(&claim.request, 0).1.is_empty());
        drop(claim);
        self.completions.drain(&mut Vec::new());
        let evicted = (self.cache.counters.evicted_bytes.get() - before) / BLOCK_BYTES;
        Thrown { wanted: blocks, evicted }
    }

    /// A SET that has found its place.
    fn begin(&mut self, number: u64, blocks: u64) -> (Claim, WriteHandle) {
        self.try_to_begin(number, blocks).expect("there is room")
    }

    fn try_to_begin(
        &mut self,
        number: u64,
        blocks: u64,
    ) -> Result<(Claim, WriteHandle), StoreError> {
        let key: Arc<str> = number.to_string().into();
        let digest = Digest::of(&key);
        let length = (blocks * BLOCK_BYTES) as usize;
        // SAFETY: without a checksum and without transfers nobody looks at the memory.
        let buffer = unsafe { CallerBuffer::new(self.memory.as_mut_ptr(), length) };
        let mut items = Batch::start(1, 1, Box::new(()), &self.completions);
        let amount = Amount { operations: 1, bytes: 1 };
        let share = self.backlog.admit(amount).unwrap();
        let request = SetRequest {
            item: items.next().unwrap(),
            buffer: SourceBuffer::of_set(buffer),
            digest,
            key: Arc::clone(&key),
            namespace: Namespace::of(&key).fingerprint(),
            submitted: Instant::now(),
            share: Arc::new(share),
        };
        let EnteredSet::Ready(request) = self.cache.claim(1, request) else {
            panic!("nobody else writes");
        };
        let counters = &self.cache.counters;
        let (mut claim, mut last) = (Claim::new(request, false), counters.evicted.get());
        loop {
            let begun = claim.begin(&self.cache, usize::MAX, Instant::now());
            let now = counters.evicted.get();
            self.most_in_a_turn = self.most_in_a_turn.max(now - last);
            last = now;
            match begun {
                Begun::Write(write) => return Ok((claim, write)),
                Begun::MakingRoom => self.unfinished_turns += 1,
                Begun::Growing => {}
                Begun::Refused(error) => {
                    assert!(self.cache.end_set(claim.request.digest, None).is_empty());
                    return Err(error);
                }
                _ => panic!("it is new"),
            }
        }
    }

    /// One that is not going to be stored. Returns where it would have been.
    fn give_up(&mut self, number: u64, blocks: u64, end: impl FnOnce(WriteHandle)) -> Extent {
        let (claim, write) = self.begin(number, blocks);
        let extent = write.extent;
        end(write);
        assert!(self.cache.end_set(claim.request.digest, None).is_empty());
        drop(claim);
        self.completions.drain(&mut Vec::new());
        extent
    }

    /// A GET. Returns where the chunk lies, if it is there.
    fn get(&mut self, number: u64, blocks: u64) -> Option<Extent> {
        self.open(number, blocks).map(|handle| handle.pin.extent)
    }

    fn open(&mut self, number: u64, blocks: u64) -> Option<ReadHandle> {
        let key = number.to_string();
        let mut items = Batch::start(1, 1, Box::new(()), &self.completions);
        let length = (blocks * BLOCK_BYTES) as usize;
        // SAFETY: as above.
        let buffer = unsafe { CallerBuffer::new(self.memory.as_mut_ptr(), length) };
        let item = items.next().unwrap();
        let request = GetRequest { item, buffer, submitted: Instant::now() };
        let found = match self.cache.open(Digest::of(&key), &key, 1, request) {
            EnteredGet::Hit(request, handle) => {
                request.item.succeed();
                Some(handle)
            }
            EnteredGet::Miss(request) => {
                request.item.miss();
                None
            }
            EnteredGet::Waits => panic!("nobody writes"),
        };
        self.completions.drain(&mut Vec::new());
        found
    }

    /// Which of the chunks with these numbers are there.
    fn stored(&self, numbers: std::ops::Range<u64>) -> Vec<u64> {
        let is_stored = |number: &u64| self.cache.index.is_stored(Digest::of(&number.to_string()));
        numbers.filter(is_stored).collect()
    }

    fn allocated(&self) -> f64 {
        self.cache.store.usage().allocated_bytes as f64 / CAPACITY as f64
    }
}

#[test]
fn what_could_not_be_written_is_not_given_out_again() {
    let mut still = Still::new(Eviction::Lru, (0.9, 0.95));
    let given_back = still.give_up(1, 256, drop);
    let bad = still.give_up(2, 256, WriteHandle::abort_unwritable);
    assert_eq!(bad, given_back, "what was given back is given out first");
    assert_ne!(still.give_up(3, 256, drop), bad);
}

/// The record of the chunk before it is cleared then: so it stays, though the reactor that was to commit it is gone.
#[test]
fn what_supersedes_a_chunk_stands_though_nobody_commits_it() {
    let mut still = Still::new(Eviction::Lru, (0.9, 0.95));
    still.put(1, 4);
    let before = still.get(1, 4).unwrap();
    let (claim, write) = still.begin(1, 8);
    let superseding = write.record(&claim.request, 0).supersede().ok().unwrap();
    let extent = superseding.extent();
    drop(superseding);
    drop(claim);
    still.completions.drain(&mut Vec::new());
    assert_eq!((still.get(1, 8), still.get(1, 4)), (Some(extent), None));
    assert_ne!(extent, before);
}

/// What came of a workload.
struct Outcome {
    /// Share of the capacity that is given out, after each SET.
    live: Vec<f64>,
    /// What had to go for SETs that found no room, and ahead of need.
    in_the_way: Vec<Thrown>,
    ahead: Vec<Thrown>,
    evicted: u64,
    stored: u64,
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(((values.len() - 1) as f64 * share) as usize).copied().unwrap()
}

fn ratios(thrown: &[Thrown]) -> Vec<f64> {
    thrown.iter().map(|thrown| thrown.evicted as f64 / thrown.wanted as f64).collect()
}

impl Outcome {
    fn print(&mut self, name: &str) -> (f64, f64, f64, f64, f64) {
        let mut all = ratios(&self.in_the_way);
        all.extend(ratios(&self.ahead));
        let lowest = quantile(&mut self.live, 0.0);
        let live = quantile(&mut self.live, 0.5);
        let (median, p99) = (quantile(&mut all, 0.5), quantile(&mut all, 0.99));
        let mut puts = ratios(&self.in_the_way);
        let (put_median, put_p99) = match puts.is_empty() {
            true => (0.0, 0.0),
            false => (quantile(&mut puts, 0.5), quantile(&mut puts, 0.99)),
        };
        println!(
            "{name}: live {live:.3}, at least {lowest:.3}; {} SETs evicted {put_median:.2} times what they need (p99 \
             {put_p99:.2}), with {} ahead of need {median:.2} (p99 {p99:.2}); {:.3} evicted for each block stored",
            puts.len(),
            self.ahead.len(),
            self.evicted as f64 / self.stored as f64
        );
        (live, put_median, put_p99, median, p99)
    }
}

/// SETs of new keys until the store has been filled `rounds` times over, and GETs of keys that were set not long ago.
fn run(
    eviction: Eviction,
    watermarks: (f64, f64),
    seed: u64,
    mut size: impl FnMut(&mut Random, u64) -> u64,
) -> Outcome {
    const WARM_UP: u64 = 2;
    const ROUNDS: u64 = 6;
    let capacity = CAPACITY / BLOCK_BYTES;
    let (mut still, mut random) = (Still::new(eviction, watermarks), Random(seed));
    let mut outcome = Outcome {
        live: Vec::new(),
        in_the_way: Vec::new(),
        ahead: Vec::new(),
        evicted: 0,
        stored: 0,
    };
    let mut known: VecDeque<(u64, u64)> = VecDeque::new();
    let (mut stored, mut known_blocks, mut number) = (0, 0, 0);
    let mut evicted_before = 0;
    while stored < ROUNDS * capacity {
        let blocks = size(&mut random, stored);
        let thrown = still.put(number, blocks);
        known.push_back((number, blocks));
        known_blocks += blocks;
        while known_blocks > capacity {
            known_blocks -= known.pop_front().unwrap().1;
        }
        stored += blocks;
        number += 1;
        for _ in 0..GETS_PER_SET {
            // Some more often than others.
            let count = known.len() as u64;
            let place = random.below(count).min(random.below(count));
            let (number, blocks) = known[place as usize];
            still.get(number, blocks);
        }
        let is_warm = stored > WARM_UP * capacity;
        let mut ahead = Vec::new();
        still.cache.evict_ahead(|wanted, evicted| {
            ahead.push(Thrown { wanted: wanted.into(), evicted: evicted / BLOCK_BYTES });
        });
        if is_warm {
            outcome.live.push(still.allocated());
            outcome.ahead.extend(ahead);
            outcome.in_the_way.extend(Some(thrown).filter(|thrown| thrown.evicted > 0));
            outcome.stored += blocks;
        } else {
            evicted_before = still.cache.counters.evicted_bytes.get();
        }
    }
    outcome.evicted = (still.cache.counters.evicted_bytes.get() - evicted_before) / BLOCK_BYTES;
    let check = still.cache.index.check(|| still.cache.store.usage().allocated_bytes);
    assert_eq!((check.problems, check.moving_bytes, check.reserved_bytes), (Vec::new(), 0, 0));
    outcome
}

/// Eight sizes: for a while some of them are frequent, then others.
fn drifting(random: &mut Random, stored: u64) -> u64 {
    let phase = stored * 2 / (CAPACITY / BLOCK_BYTES);
    let step = if random.below(4) == 0 { random.below(8) } else { random.below(3) };
    SIZES[((phase * 3 + step) % 8) as usize]
}

fn uniform(random: &mut Random, _: u64) -> u64 {
    1 + random.below(1024)
}

/// The defaults, and without going ahead of need.
const SETTINGS: [(Eviction, (f64, f64)); 3] =
    [(Eviction::Lru, (0.96, 0.98)), (Eviction::Lru, (1.0, 1.0)), (Eviction::S3Fifo, (0.96, 0.98))];

fn check(least_live: f64, size: fn(&mut Random, u64) -> u64) {
    for (eviction, watermarks) in SETTINGS {
        let seed = 77;
        let mut outcome = run(eviction, watermarks, seed, size);
        let name = format!("{} {watermarks:?} seed {seed}", eviction.name());
        let (live, put_median, put_p99, median, p99) = outcome.print(&name);
        assert!(live >= least_live, "{name}: {live}");
        assert!(put_median <= 2.0 && median <= 2.0, "{name}: {put_median}, {median}");
        // Where nothing goes ahead of need, a short chunk may find none but long ones that are cold.
        let is_ahead = watermarks.0 < 1.0;
        assert!(!is_ahead || (put_p99 <= 4.0 && p99 <= 4.0), "{name}: {put_p99}, {p99}");
    }
}

#[test]
fn eight_sizes_that_drift_fill_nine_tenths() {
    check(0.90, drifting);
}

#[test]
fn random_sizes_fill_seventeen_twentieths() {
    check(0.85, uniform);
}

/// A chunk for which thousands have to go: some in each turn, so that loads go between.
#[test]
fn room_for_a_long_chunk_is_made_in_turns() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new(directory.path().to_str().unwrap(), CAPACITY / 4).unwrap();
    config.eviction = Eviction::Lru;
    (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
    let mut still = Still::at(directory, config, &Quotas::default());
    let count = CAPACITY / 4 / BLOCK_BYTES;
    for number in 0..count {
        still.put(number, 1);
    }
    assert_eq!(still.unfinished_turns, 0);
    let thrown = still.put(count, count / 4);
    assert!(thrown.evicted >= count / 5, "{} evicted", thrown.evicted);
    assert!(still.unfinished_turns >= 4, "{} turns", still.unfinished_turns);
    assert!(still.most_in_a_turn <= 2048, "{} in one", still.most_in_a_turn);
}

/// Answers of SETs and DELETEs wait behind the uses that are queued: a few, however many there are.
#[test]
fn uses_are_written_a_few_at_a_time() {
    let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
    for number in 0..3000 {
        still.put(number, 1);
        still.get(number, 1);
    }
    let table = &still.cache.index.table;
    // Nobody makes these.
    table.changes.defer(true);
    let before = table.changes.progress.ticket();
    still.cache.write_uses();
    let queued = table.changes.progress.ticket() - before;
    assert!((1..=64).contains(&queued), "{queued} uses");
}

/// Another thread evicts what was found, or it must stay: the next coldest goes then, not what lies beside.
#[test]
fn what_is_hot_stays_where_a_search_has_lost_what_it_found() {
    const BLOCKS: u64 = 1024;
    for must_stay in [false, true] {
        let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
        let count = CAPACITY / BLOCK_BYTES / BLOCKS - 4;
        (0..count).for_each(|number| _ = still.put(number, BLOCKS));
        // All but two, which lie far apart.
        let cold = [count / 4, count / 2];
        (0..count)
            .filter(|number| !cold.contains(number))
            .for_each(|number| _ = still.get(number, BLOCKS));
        let index = &still.cache.index;
        let is_stored = |number: u64| {
            let key = number.to_string();
            index.contains_each(std::iter::once(Hashed::of(&key)), false, 1).0 == [true]
        };
        let mut making = RoomMaking::new(8 * BLOCKS as u32);
        let mut search = RoomSearch::new(BLOCKS as u32);
        let found = index.eviction_index.lock().for_room(&mut search, &*still.cache.store, 0);
        let Room::Found(victims) = found else { panic!("there is room") };
        (making.search, making.victims) = (search, victims.clone());
        if must_stay {
            assert_eq!(index.pin_keys(&[Hashed::of(&cold[0].to_string())], 1), [true]);
        } else {
            assert!(still.cache.evict_all(&victims));
        }
        while still.cache.go_on_making_room(&mut making).is_none() {}
        assert_eq!(cold.map(is_stored), [must_stay, false]);
        assert!((0..count).filter(|number| !cold.contains(number)).all(is_stored));
    }
}

/// Where one of those that would go must stay, nothing goes: there would be no room, and the others would be lost.
#[test]
fn nothing_goes_in_vain() {
    const BLOCKS: u64 = 1024;
    for pinned in [vec![0], vec![2], vec![0, 1], vec![0, 1, 2]] {
        let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
        let count = CAPACITY / BLOCK_BYTES / BLOCKS - 4;
        (0..count).for_each(|number| _ = still.put(number, BLOCKS));
        let index = &still.cache.index;
        let mut search = RoomSearch::new(3 * BLOCKS as u32);
        let found = index.eviction_index.lock().for_room(&mut search, &*still.cache.store, 0);
        let Room::Found(victims) = found else { panic!("there is room") };
        assert_eq!(victims.len(), 3);
        for number in &pinned {
            assert_eq!(index.pin_keys(&[Hashed::of(&number.to_string())], 1), [true]);
        }
        let mut making = RoomMaking { search, victims, ..RoomMaking::default() };
        assert_eq!(still.cache.go_on_making_room(&mut making), None);
        assert_eq!(still.stored(0..count).len() as u64, count, "with {pinned:?} pinned");
    }
}

#[test]
fn what_is_above_the_high_watermark_goes_down_to_the_low_one() {
    let mut still = Still::new(Eviction::Lru, (0.5, 0.75));
    let filled = |still: &Still| {
        let fill = still.cache.store.fill();
        let share = fill.allocated_bytes as f64 / fill.total_bytes as f64;
        if fill.can_grow { 0.0 } else { share }
    };
    for number in 0.. {
        still.put(number, 1024);
        assert_eq!(still.cache.maintenance.is_under_way(), filled(&still) > 0.75);
        if still.cache.maintenance.is_under_way() {
            break;
        }
    }
    let mut evicted = Vec::new();
    still.cache.evict_ahead(|blocks, bytes| evicted.push((blocks, bytes)));
    let one = 1024.0 * BLOCK_BYTES as f64 / still.cache.store.fill().total_bytes as f64;
    assert!((0.5 - one..=0.5).contains(&filled(&still)), "{}", filled(&still));
    assert!(evicted.len() > 10 && evicted.iter().all(|one| *one == (1024, 1024 * BLOCK_BYTES)));
    assert!(!still.cache.maintenance.is_under_way());
    // It is wanted once.
    still.cache.evict_ahead(|_, _| panic!("nobody asked for that"));
}

/// Room is made for about the longest of late: one long chunk counts less and less.
#[test]
fn what_is_typical_follows_the_longest_chunks() {
    let mut still = Still::new(Eviction::Lru, (0.9, 0.95));
    let typical = |still: &mut Still, number, blocks| {
        still.put(number, blocks);
        still.cache.typical_blocks.load(Ordering::Relaxed)
    };
    assert_eq!([300, 1024].map(|blocks| typical(&mut still, blocks, blocks)), [300, 1024]);
    assert_eq!([1, 2, 3].map(|number| typical(&mut still, number, 1)), [1008, 993, 978]);
}

#[test]
fn a_quota_is_kept_and_given_back() {
    let name = Namespace::of("1").name();
    let quota_bytes = 100 * BLOCK_BYTES;
    let mut still = Still::with(|config| config.quotas = vec![(name.clone(), quota_bytes)]);
    still.cache.set_paths(&[Arc::clone(&still.cache)]);
    for number in 0..30 {
        let evicted = still.put(number, 10).evicted;
        assert_eq!(evicted, if number < 10 { 0 } else { 10 }, "for {number}");
    }
    assert_eq!(still.stored(0..30), (20..30).collect::<Vec<_>>());
    let refused = still.try_to_begin(30, 101).err();
    assert!(matches!(refused, Some(StoreError::Quota { .. })), "{refused:?}");
    assert_eq!(still.stored(0..30).len(), 10, "nothing goes for what is longer than all of it");
    // What is refused for another reason has no share of it.
    let mut still = Still::with(|config| config.quotas = vec![(name, 1 << 40)]);
    still.cache.set_paths(&[Arc::clone(&still.cache)]);
    let refused = still.try_to_begin(1, CAPACITY / BLOCK_BYTES + 1).err();
    assert!(matches!(refused, Some(StoreError::Full { .. })), "{refused:?}");
    let check = still.cache.index.check(|| still.cache.store.usage().allocated_bytes);
    assert_eq!((check.reserved_bytes, check.problems), (0, Vec::new()));
}

/// Room in a quota is made at the path of whose capacity the namespace takes most, if anything there can go.
#[test]
fn room_in_a_quota_is_made_at_the_path_that_it_fills_most() {
    let name = Namespace::of("1").name();
    for (is_first, is_pinned) in [(true, false), (false, false), (true, true), (false, true)] {
        let quotas = [(name.clone(), 100 * BLOCK_BYTES)];
        let shared = Quotas::new(&quotas);
        let [mut small, mut large] = [CAPACITY, 2 * CAPACITY].map(|capacity_bytes| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_str().unwrap();
            let mut config = Config::new(path, capacity_bytes).unwrap();
            config.quotas = quotas.to_vec();
            Still::at(directory, config, &shared)
        });
        let mut paths = [Arc::clone(&small.cache), Arc::clone(&large.cache)];
        if !is_first {
            paths.reverse();
        }
        paths.iter().for_each(|cache| cache.set_paths(&paths));
        (0..4).for_each(|number| _ = small.put(number, 10));
        (4..10).for_each(|number| _ = large.put(number, 10));
        for number in (0..4).filter(|_| is_pinned) {
            let pinned = small.cache.index.pin_keys(&[Hashed::of(&number.to_string())], 1);
            assert_eq!(pinned, [true]);
        }
        large.put(10, 10);
        let (first, second) = if is_pinned { (0, 5) } else { (1, 4) };
        assert_eq!(small.stored(0..4), (first..4).collect::<Vec<_>>());
        assert_eq!(large.stored(4..11), (second..11).collect::<Vec<_>>());
    }
}

/// What finds no room as all of it is in use may find some later.
#[test]
fn room_that_is_in_use_is_told_from_room_that_is_not_there() {
    let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
    let count = CAPACITY / BLOCK_BYTES / 1024 - 4;
    (0..count).for_each(|number| _ = still.put(number, 1024));
    for number in (0..count).step_by(4) {
        let pinned = still.cache.index.pin_keys(&[Hashed::of(&number.to_string())], 1);
        assert_eq!(pinned, [true]);
    }
    let refused = still.try_to_begin(count, 8 * 1024).err();
    assert!(matches!(refused, Some(StoreError::InUse { .. })), "{refused:?}");
    let refused = still.try_to_begin(count, 2 * CAPACITY / BLOCK_BYTES).err();
    assert!(matches!(refused, Some(StoreError::Full { .. })), "{refused:?}");
}

#[test]
fn chunks_that_go_for_a_record_are_counted_and_the_first_of_a_streak_is_told() {
    logged::keep();
    let still = Still::new(Eviction::Lru, (1.0, 1.0));
    let lines = || logged::lines(still.cache.config.path(), "the index has no room").len();
    let now = Instant::now();
    for (before, told) in [(None, 1), (Some(now), 1), (Some(now - 2 * STREAK_ENDS_AFTER), 2)] {
        *still.cache.index_full_at.lock() = before;
        still.cache.note_index_full(&StoreError::IndexFull { index_bytes: 1, capacity_bytes: 1 });
        assert_eq!(lines(), told);
        assert!(still.cache.index_full_at.lock().is_some_and(|noted| noted > now));
    }
    assert_eq!(still.cache.counters.index_full.get(), 3);
}

#[test]
fn messages_name_a_chunk_by_its_digest_and_place() {
    let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
    still.put(1, 4);
    let handle = still.open(1, 4).unwrap();
    let text = handle.extent_text();
    assert_eq!(text, still.cache.extent_text(Digest::of("1"), handle.pin.extent));
    let path = still.cache.config.path().display().to_string();
    assert!(text.starts_with(&format!("digest {}, ", Digest::of("1"))) && text.ends_with(&path));
}

#[test]
fn it_knows_the_paths_of_its_store() {
    let still = Still::new(Eviction::Lru, (1.0, 1.0));
    assert_eq!((still.cache.path_count(), still.cache.has_withdrawn()), (1, false));
    still.cache.set_paths(&[Arc::clone(&still.cache), Arc::clone(&still.cache)]);
    assert_eq!(still.cache.path_count(), 2);
}

/// In slices, where it rests between them, until it is to end; without rests all at once.
#[test]
fn what_has_expired_goes_in_slices_or_at_once() {
    let now_ms = Arc::new(AtomicU64::new(1000));
    let mut still = Still::with(|config| {
        config.ttl = Some(Duration::from_secs(1));
        config.clock = Clock::by_hand(Arc::clone(&now_ms));
    });
    (0..3000).for_each(|number| _ = still.put(number, 1));
    assert_eq!(still.cache.expire(false), 0);
    now_ms.store(2000, Ordering::SeqCst);
    still.cache.maintenance.end();
    let first = still.cache.expire(true);
    assert!(first < 3000, "{first} in the first slice");
    assert_eq!(still.cache.expire(false), 3000 - first);
    let counters = &still.cache.counters;
    assert_eq!((counters.expired.get(), counters.expired_bytes.get()), (3000, 3000 * BLOCK_BYTES));
    assert_eq!(still.stored(0..3000), []);
}

/// Where nothing else is wanted, all uses are in their records when it returns, however long another thread takes to write them.
#[test]
fn all_uses_are_written() {
    let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
    for number in 0..3000 {
        still.put(number, 1);
        still.get(number, 1);
    }
    assert_eq!(still.cache.index.uses_behind(), 3000);
    let cache = &still.cache;
    cache.index.table.changes.defer(true);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                std::thread::yield_now();
                cache.index.write_queued();
            }
        });
        cache.write_uses();
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(cache.index.uses_behind(), 0);
}

/// Each round makes room at one path of many: there are as many rounds as it takes.
#[test]
fn room_in_a_quota_over_many_paths_takes_many_rounds() {
    const PATHS: u64 = 24;
    let quotas = [(Namespace::of("1").name(), 32 * PATHS * BLOCK_BYTES)];
    let shared = Quotas::new(&quotas);
    let mut stills: Vec<Still> = (0..PATHS)
        .map(|_| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_str().unwrap();
            let mut config = Config::new(path, CAPACITY / 8).unwrap();
            config.quotas = quotas.to_vec();
            Still::at(directory, config, &shared)
        })
        .collect();
    let paths: Vec<_> = stills.iter().map(|still| Arc::clone(&still.cache)).collect();
    paths.iter().for_each(|cache| cache.set_paths(&paths));
    for (path, still) in (0..).zip(&mut stills) {
        (32 * path..32 * (path + 1)).for_each(|number| _ = still.put(number, 1));
    }
    stills[0].put(1000, 600);
    let evicted: u64 = paths.iter().map(|cache| cache.counters.evicted.get()).sum();
    assert_eq!(evicted, 600);
}
