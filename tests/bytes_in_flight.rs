//! The bytes in the device follow from what still raises throughput: on a device that takes as long for much as for little, more.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Client, MIB, Memory, config, key, real_engine};
use kvring::testing::{Action, Engine, Reaped, Transfer, Waker};
use kvring::{Checksum, Connector, EngineError};

/// What each read takes, however many there are.
const LATENCY: Duration = Duration::from_millis(60);

const KEYS: u64 = 4;
const LENGTH: usize = 4 << 20;

/// Batches that are queued together, of as many bytes as KEYS chunks have: more than any bound lets in.
const BATCHES: usize = 10;

/// What all engines of a store have been given.
#[derive(Default)]
struct Reads {
    in_flight_bytes: AtomicU64,
    most_bytes: AtomicU64,
}

/// Reads nothing, and says after a while that it has.
struct LatentEngine {
    real: Box<dyn Engine>,
    reads: Arc<Reads>,
    /// When to tell of each, in order.
    due: VecDeque<(Instant, Reaped)>,
}

impl Engine for LatentEngine {
    fn description(&self) -> String {
        self.real.description()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        if transfer.action != Action::Read {
            // SAFETY: as the caller vouches.
            return unsafe { self.real.submit(transfer) };
        }
        // SAFETY: the caller vouches for the vectors.
        let vectors =
            unsafe { std::slice::from_raw_parts(transfer.vectors, transfer.vector_count) };
        let bytes: usize = vectors.iter().map(|vector| vector.iov_len).sum();
        let before = self.reads.in_flight_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
        self.reads.most_bytes.fetch_max(before + bytes as u64, Ordering::SeqCst);
        let reaped = Reaped { token: transfer.token, result: bytes as i32 };
        self.due.push_back((Instant::now() + LATENCY, reaped));
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let next = self.due.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        let outcome = self.real.reap(timeout.into_iter().chain(next).min(), reaped);
        while let Some((due, done)) = self.due.front().copied()
            && due <= Instant::now()
        {
            self.due.pop_front();
            self.reads.in_flight_bytes.fetch_sub(done.result as u64, Ordering::SeqCst);
            reaped.push(done);
        }
        outcome
    }

    fn cancel_all(&mut self) {
        self.real.cancel_all();
    }
}

#[test]
fn a_device_that_gains_by_depth_is_given_more_by_every_reactor() {
    for reactors in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let reads = Arc::new(Reads::default());
        let mut config = config(directory.path(), 256 * MIB);
        config.io_threads = Some(reactors);
        config.checksum = Checksum::Off;
        let of_all = Arc::clone(&reads);
        let make_engine = move |queue_depth, waker: Arc<Waker>| {
            let (real, reads) = (real_engine(queue_depth, waker)?, Arc::clone(&of_all));
            Ok::<_, EngineError>(LatentEngine { real, reads, due: VecDeque::new() })
        };
        let client = Client::from(Connector::open_with_engine(config, make_engine).unwrap());
        let bound = || {
            let stats = client.connector.stats();
            stats.paths[0].max_in_flight_bytes
        };
        assert_eq!(bound(), 48 * MIB, "what follows from the depth");
        let keys: Vec<String> = (0..KEYS).map(key).collect();
        let chunks: Vec<Memory> =
            (0..KEYS).map(|number| Memory::patterned(LENGTH, 0, number)).collect();
        assert!(client.set(&keys, &chunks.iter().collect::<Vec<_>>()).ok);

        let memory: Vec<Vec<Memory>> =
            (0..BATCHES).map(|_| (0..KEYS).map(|_| Memory::unwatched(LENGTH)).collect()).collect();
        let load =
            |batch: &Vec<Memory>| client.submit_get(&keys, &batch.iter().collect::<Vec<_>>());
        let mut loads: VecDeque<u64> = memory.iter().map(load).collect();
        // Twice the bytes are cut to what as many transfers have as the device takes. When they stay, half of them is tried, which is
        // never tried before.
        let mut is_kept = false;
        for number in 0..2000 {
            let first = loads.pop_front().unwrap();
            assert_eq!(client.wait(first).results, [true; KEYS as usize]);
            loads.push_back(load(&memory[number % BATCHES]));
            is_kept = bound() == 32 * MIB;
            if is_kept {
                break;
            }
        }
        assert!(is_kept, "{}", bound());
        assert_eq!(reads.most_bytes.load(Ordering::SeqCst), 64 * MIB, "the reactors follow");
        loads.into_iter().for_each(|id| drop(client.wait(id)));
        client.assert_consistent();
    }
}
