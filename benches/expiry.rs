//! GETs while 1,000,000 expired chunks are pruned, beside GETs of the same store while nothing expires.
//!
//! `cargo bench --bench expiry [-- KEYS [DIRECTORY]]`. The store lies in DIRECTORY, /dev/shm if it is not given: there the
//! software shows. Each round fills it anew, loads hot chunks one at a time, lets all others expire, and goes on loading
//! until the keeper has pruned them.
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvring::testing::Clock;
use kvring::{AlignedBlock, CallerBuffer, Config, Connector};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const BATCH: u64 = 256;
const HOT_KEYS: u64 = 1000;
const ROUNDS: usize = 5;
const CHUNK_BYTES: usize = 4096;
/// So short that the keeper looks once a second.
const TTL: Duration = Duration::from_secs(20);
const START_MS: u64 = 1_800_000_000_000;

fn key(number: u64) -> String {
    format!("meta-llama/Llama-3.1-70B-Instruct@00000001@0@{number:064x}")
}

struct Store {
    connector: Connector,
    memory: AlignedBlock,
    now_ms: Arc<AtomicU64>,
}

impl Store {
    fn buffer(&self) -> CallerBuffer {
        // SAFETY: the memory lives as long as the connector, and one batch at a time uses it for more than reading.
        unsafe { CallerBuffer::new(self.memory.as_ptr(), CHUNK_BYTES) }
    }

    fn wait(&self, mut batches: usize) {
        let mut completions = Vec::new();
        while batches > 0 {
            // SAFETY: the connector keeps the descriptor open while it lives.
            let event = unsafe { BorrowedFd::borrow_raw(self.connector.event_fd()) };
            poll(&mut [PollFd::new(event, PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
            self.connector.drain(&mut completions);
            batches -= completions.len();
            for completion in completions.drain(..) {
                assert!(
                    completion.ok && !completion.results.contains(&false),
                    "{}",
                    completion.error
                );
            }
        }
    }

    fn fill(&self, count: u64) {
        for first in (0..count).step_by(BATCH as usize) {
            let keys: Vec<String> = (first..(first + BATCH).min(count)).map(key).collect();
            let buffers = vec![self.buffer(); keys.len()];
            self.connector.submit_set(&keys, &buffers, Box::new(())).unwrap();
            self.wait(1);
        }
    }

    /// Latencies of GETs of hot chunks until `ends`.
    fn load(&self, mut ends: impl FnMut(&Self) -> bool) -> Vec<Duration> {
        let (mut latencies, mut number) = (Vec::new(), 0);
        loop {
            number = (number + 7) % HOT_KEYS;
            let keys = [key(number)];
            let start = Instant::now();
            self.connector.submit_get(&keys, &[self.buffer()], Box::new(())).unwrap();
            self.wait(1);
            latencies.push(start.elapsed());
            if latencies.len().is_multiple_of(1000) && ends(self) {
                return latencies;
            }
        }
    }
}

fn percentile(latencies: &mut [Duration], share: f64) -> f64 {
    latencies.sort_unstable();
    latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let count = arguments.next().map_or(1_000_000, |text| text.parse().unwrap());
    let parent = arguments.next().map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let directory = tempfile::tempdir_in(&parent).unwrap();
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let capacity_bytes = count * (CHUNK_BYTES as u64 + 512) + (256 << 20);
        let path = directory.path().to_str().unwrap();
        let mut config = Config::new(path, capacity_bytes).unwrap();
        config.ttl = Some(TTL);
        config.clock = Clock::by_hand(Arc::clone(&now_ms));
        let memory = AlignedBlock::zeroed(CHUNK_BYTES);
        let store = Store { connector: Connector::open(config).unwrap(), memory, now_ms };
        store.fill(count);
        // The hot ones are used later than the others, and stay.
        store.now_ms.store(START_MS + TTL.as_millis() as u64 / 2, Ordering::SeqCst);
        let begin = Instant::now();
        let mut quiet = store.load(|_| begin.elapsed() > Duration::from_secs(3));
        store.now_ms.store(START_MS + TTL.as_millis() as u64, Ordering::SeqCst);
        let is_pruning = |store: &Store| store.connector.stats().keys < count;
        store.load(is_pruning);
        let begin = Instant::now();
        let mut pruning = store.load(|store| store.connector.stats().keys == HOT_KEYS);
        let elapsed = begin.elapsed().as_secs_f64();
        let ratio = percentile(&mut pruning, 0.99) / percentile(&mut quiet, 0.99);
        println!(
            "round {}: GET p50 {:.0} us, p99 {:.0} us; while pruning for {elapsed:.1} s: p50 {:.0} us, p99 {:.0} us, max {:.0} us; p99 ratio {ratio:.2}",
            round + 1,
            percentile(&mut quiet, 0.5),
            percentile(&mut quiet, 0.99),
            percentile(&mut pruning, 0.5),
            percentile(&mut pruning, 0.99),
            percentile(&mut pruning, 1.0),
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "p99 while {count} chunks are pruned, against the same without: {:.2} ({:.2}-{:.2}), median of {ROUNDS} rounds",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1]
    );
}
