//! What the store may hold of each key, in memory that outlives a killed process.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapMut;

use super::plan::KEYS;

/// Chunks of one key that may be there at a time.
const POSSIBLE: usize = 6;
const LAST_USE: usize = POSSIBLE;
const LATEST_USE: usize = POSSIBLE + 1;
const WORDS_PER_KEY: usize = POSSIBLE + 2;
const LENGTH_BITS: u32 = 23;

/// A chunk that was handed in: its number, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) version: u64,
    pub(crate) length: u64,
}

impl Chunk {
    fn word(self) -> u64 {
        self.version << LENGTH_BITS | self.length
    }

    fn of(word: u64) -> Option<Self> {
        let length = word & ((1 << LENGTH_BITS) - 1);
        (word > 0).then_some(Self { version: word >> LENGTH_BITS, length })
    }
}

/// Numbers that go on from session to session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tally {
    Operations,
    Versions,
    ClockMs,
    Sets,
    SetsFailed,
    GetHits,
    GetMisses,
    Evicted,
    Expired,
    Purged,
    Checks,
    Kills,
    Closes,
    MostBytes,
    MostPermille,
    Guarded,
    Unplaced,
}

const TALLIES: usize = Tally::Unplaced as usize + 1;

/// What is known of all keys. Nothing may be there of a key unless it says so.
pub(crate) struct Ledger(MmapMut);

impl Ledger {
    fn bytes() -> usize {
        (TALLIES + KEYS as usize * WORDS_PER_KEY) * 8
    }

    /// In a new file, for the processes that follow.
    pub(crate) fn create(path: &Path) -> Self {
        let file = File::create_new(path).unwrap();
        file.set_len(Self::bytes() as u64).unwrap();
        drop(file);
        Self::open(path)
    }

    pub(crate) fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: nobody shortens the file, and words of it are only used as atomics.
        Self(unsafe { MmapMut::map_mut(&file) }.unwrap())
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        assert!(number * 8 < self.0.len());
        // SAFETY: inside the mapping, which is aligned to pages; words are only ever used as atomics.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().cast_mut().cast::<u64>().add(number)) }
    }

    fn word_of(&self, key: u32, number: usize) -> &AtomicU64 {
        self.word(TALLIES + key as usize * WORDS_PER_KEY + number)
    }

    pub(crate) fn tally(&self, tally: Tally) -> u64 {
        self.word(tally as usize).load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self, tally: Tally, amount: u64) -> u64 {
        self.word(tally as usize).fetch_add(amount, Ordering::SeqCst)
    }

    pub(crate) fn store(&self, tally: Tally, value: u64) {
        self.word(tally as usize).store(value, Ordering::SeqCst);
    }

    pub(crate) fn note_most(&self, tally: Tally, value: u64) {
        self.word(tally as usize).fetch_max(value, Ordering::SeqCst);
    }

    /// What may be there, besides nothing.
    pub(crate) fn possible(&self, key: u32) -> Vec<Chunk> {
        let words = (0..POSSIBLE).map(|number| self.word_of(key, number).load(Ordering::SeqCst));
        words.filter_map(Chunk::of).collect()
    }

    /// A SET is about to be submitted.
    pub(crate) fn begin_set(&self, key: u32, chunk: Chunk) {
        if !self.possible(key).contains(&chunk) {
            let free = (0..POSSIBLE)
                .find(|number| self.word_of(key, *number).load(Ordering::SeqCst) == 0)
                .expect("few SETs of a key in one step");
            self.word_of(key, free).store(chunk.word(), Ordering::SeqCst);
        }
    }

    /// Nothing else may be there from now on.
    pub(crate) fn settle(&self, key: u32, possible: &[Chunk]) {
        // What stays is there all the time, in case this is the end.
        for number in 0..POSSIBLE {
            let word = self.word_of(key, number);
            let chunk = Chunk::of(word.load(Ordering::SeqCst));
            if chunk.is_some_and(|chunk| !possible.contains(&chunk)) {
                word.store(0, Ordering::SeqCst);
            }
        }
    }

    /// When it was used last, at the latest.
    pub(crate) fn last_use_ms(&self, key: u32) -> u64 {
        self.word_of(key, LAST_USE).load(Ordering::SeqCst)
    }

    /// It may be used now.
    pub(crate) fn begin_use(&self, key: u32, now_ms: u64) {
        self.word_of(key, LAST_USE).fetch_max(now_ms, Ordering::SeqCst);
        self.word_of(key, LATEST_USE).fetch_max(now_ms, Ordering::SeqCst);
    }

    /// It was used now.
    pub(crate) fn end_use(&self, key: u32, now_ms: u64) {
        self.word_of(key, LAST_USE).store(now_ms, Ordering::SeqCst);
        self.word_of(key, LATEST_USE).fetch_max(now_ms, Ordering::SeqCst);
    }

    /// A session has ended. Uses are written behind: after a kill, any since the last close may count as the last one, also one
    /// from before the clock was set back.
    pub(crate) fn end_session(&self, was_killed: bool) {
        let (from, to) = if was_killed { (LATEST_USE, LAST_USE) } else { (LAST_USE, LATEST_USE) };
        for key in 0..KEYS {
            let use_ms = self.word_of(key, from).load(Ordering::SeqCst);
            self.word_of(key, to).store(use_ms, Ordering::SeqCst);
        }
    }
}
