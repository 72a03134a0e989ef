//! A trace before a whole store, which is closed and opened again in the middle, and the same trace simulated for as many chunks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvring::bench::coin;
use kvring::testing::Clock;
use kvring::{AlignedBlock, CallerBuffer, Config, Connector};

use crate::cache::{Outcome, Policy, Setting, simulate};
use crate::trace::Trace;

const CAPACITY_BYTES: u64 = 256 << 20;
const CHUNK_BYTES: usize = 32 << 10;
const START_MS: u64 = 1_700_000_000_000;
/// Requests come this far from each other, so that each has a coin of its own.
const REQUEST_MS: u64 = 1 << 14;

/// What a store has found, and the simulation.
pub(crate) fn replay(trace: &Trace, directory: &Path) -> (Outcome, Outcome) {
    let mut store = Store::open(directory, START_MS);
    let mut found = Outcome::default();
    let mut room = 0;
    for (number, request) in trace.requests.iter().enumerate() {
        if number == trace.requests.len() / 2 {
            room = store.connector.stats().keys as usize;
            store.connector.close();
            store = Store::open(directory, store.now_ms.load(Ordering::SeqCst));
        }
        store.now_ms.fetch_add(REQUEST_MS, Ordering::SeqCst);
        found.count(trace, number, store.serve(request));
    }
    let stats = store.connector.stats();
    let refused = stats.counters.iter().find(|(name, _)| *name == "set_not_admitted");
    assert!(refused.is_some_and(|(_, count)| *count > 0), "no SET was refused");
    let coins = |number: usize| coin(START_MS + (number as u64 + 1) * REQUEST_MS);
    (found, simulate(trace, Setting { policy: Policy::Admit, room, memory: None }, coins))
}

struct Store {
    connector: Connector,
    now_ms: Arc<AtomicU64>,
    /// Of all chunks: which bytes they have makes no difference.
    memory: AlignedBlock,
}

impl Store {
    fn open(directory: &Path, now_ms: u64) -> Self {
        let path = directory.to_str().expect("the path is text");
        let now_ms = Arc::new(AtomicU64::new(now_ms));
        let mut config = Config::new(path, CAPACITY_BYTES).expect("the options fit");
        (config.clock, config.ttl) = (Clock::by_hand(Arc::clone(&now_ms)), None);
        (config.lease_s, config.min_free_bytes) = (0, Some(0));
        // Nothing goes but for those who need room, as in the simulation.
        (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
        let connector = Connector::open(config).expect("the store opens");
        Self { connector, now_ms, memory: AlignedBlock::zeroed(CHUNK_BYTES) }
    }

    /// Loads the chunks before the first one that is missing, and stores the others. Returns how many were found.
    fn serve(&mut self, request: &[u32]) -> usize {
        let keys: Vec<String> = request.iter().map(u32::to_string).collect();
        let are_held = self.connector.exists(&keys).expect("it is open");
        let found = are_held.iter().take_while(|is_held| **is_held).count();
        let (loaded, stored) = keys.split_at(found);
        // SAFETY: the memory outlives both batches, which are waited for, and nobody reads it.
        let buffer = || unsafe { CallerBuffer::new(self.memory.as_ptr(), CHUNK_BYTES) };
        if !loaded.is_empty() {
            let buffers: Vec<CallerBuffer> = loaded.iter().map(|_| buffer()).collect();
            let _ = self.connector.submit_get(loaded, &buffers, Box::new(()));
            self.wait();
        }
        if !stored.is_empty() {
            let buffers: Vec<CallerBuffer> = stored.iter().map(|_| buffer()).collect();
            let _ = self.connector.submit_set(stored, &buffers, Box::new(()));
            self.wait();
        }
        found
    }

    fn wait(&self) {
        let mut completions = Vec::new();
        while completions.is_empty() {
            self.connector.drain(&mut completions);
            std::thread::yield_now();
        }
        assert!(completions.iter().all(|one| one.ok), "{}", completions[0].error);
    }
}
