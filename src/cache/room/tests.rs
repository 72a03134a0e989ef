//! Places, order of eviction and allocator together, with neither device nor threads, so that a seed always gives the same
//! numbers.

mod choices;
mod fill;
mod growth;
mod quotas;
mod upkeep;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tempfile::TempDir;

use super::*;
use crate::base::block::BLOCK_BYTES;
use crate::base::buffer::{CallerBuffer, SourceBuffer};
use crate::base::time::Clock;
use crate::batch::backlog::{Amount, Backlog};
use crate::batch::completion_queue::CompletionQueue;
use crate::batch::responder::Batch;
use crate::cache::{BeginOutcome, Claim, ReadHandle};
use crate::config::{Checksum, Config, Eviction};
use crate::engine::Waker;
use crate::evict::Quotas;
use crate::index::{ClaimOutcome, logged, test_index};
use crate::key::{Hashed, Namespace};
use crate::lock::OpenStore;
use std::sync::Arc;

const CAPACITY: u64 = 512 << 20;

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
        let quotas = Quotas::new(&config.quotas, 1);
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
        assert!(write.commit(&claim.request, 0).1.is_none());
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
            submitted_ms: 0,
            variant: 0,
            submitted: Instant::now(),
            share: Arc::new(share),
        };
        let (digest, key) = (request.digest, Arc::clone(&request.key));
        let ClaimOutcome::Ready(request) = self.cache.index.enter_set(digest, &key, 1, request)
        else {
            panic!("nobody else writes");
        };
        let counters = &self.cache.counters;
        let (mut claim, mut last) = (Claim::new(request, false), counters.evicted.get());
        loop {
            let begun = claim.begin(&self.cache, usize::MAX, Instant::now(), None);
            let now = counters.evicted.get();
            self.most_in_a_turn = self.most_in_a_turn.max(now - last);
            last = now;
            match begun {
                BeginOutcome::Write(write) => return Ok((claim, write)),
                BeginOutcome::MakingRoom => self.unfinished_turns += 1,
                BeginOutcome::Growing => {}
                BeginOutcome::Refused(error) => {
                    assert!(self.cache.end_set(claim.request.digest, None).is_none());
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
        assert!(self.cache.end_set(claim.request.digest, None).is_none());
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
        self.cache.open(Hashed::of(&key), blocks * BLOCK_BYTES, 1)
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

#[test]
fn chunks_that_go_for_a_record_are_counted_and_the_first_is_told() {
    logged::keep();
    let still = Still::new(Eviction::Lru, (1.0, 1.0));
    let lines = |text| logged::lines(still.cache.config.path(), text).len();
    for _ in 0..3 {
        still.cache.note_index_full(&StoreError::IndexFull { index_bytes: 1, capacity_bytes: 1 });
    }
    still.cache.tell_counts(false);
    let more = "2 more chunks went for the records of others in ";
    assert_eq!((lines("the index has no room"), lines(more)), (1, 0));
    still.cache.tell_counts(true);
    assert_eq!((lines(more), still.cache.counters.index_full.get()), (1, 3));
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
