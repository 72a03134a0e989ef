//! Which reactors take up work: one that waits for the device stays alone, one that is short of processor time has others woken.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Client, MIB, Memory, config, eventually, key, real_engine};
use kvring::testing::{Action, Engine, Reaped, Transfer, Waker};
use kvring::{Checksum, Connector, EngineError};

const REACTORS: usize = 3;

/// What the engines of a store have been given.
#[derive(Default)]
struct Reads {
    by_reactor: [AtomicU64; REACTORS],
    in_flight_bytes: AtomicU64,
    most_bytes: AtomicU64,
}

/// Reads nothing, and says after a while that it has.
struct LatentEngine {
    number: usize,
    real: Box<dyn Engine>,
    reads: Arc<Reads>,
    latency: Duration,
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
        self.reads.by_reactor[self.number].fetch_add(1, Ordering::SeqCst);
        let reaped = Reaped { token: transfer.token, result: bytes as i32 };
        self.due.push_back((Instant::now() + self.latency, reaped));
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

/// A store of which each read takes so long, however many there are, and what it is asked for.
fn latent(directory: &Path, latency: Duration) -> (Client, Arc<Reads>) {
    let (reads, made) = (Arc::<Reads>::default(), AtomicUsize::new(0));
    let of_all = Arc::clone(&reads);
    let make_engine = move |queue_depth, waker: Arc<Waker>| {
        let (number, reads) = (made.fetch_add(1, Ordering::SeqCst), Arc::clone(&of_all));
        let real = real_engine(queue_depth, waker)?;
        Ok::<_, EngineError>(LatentEngine { number, real, reads, latency, due: VecDeque::new() })
    };
    let mut config = config(directory, 256 * MIB);
    (config.io_threads, config.checksum) = (Some(REACTORS), Checksum::Off);
    (Client::from(Connector::open_with_engine(config, make_engine).unwrap()), reads)
}

/// Loads 64 MiB in one batch.
fn load_burst(client: &Client) {
    let keys: Vec<String> = (0..64).map(|_| key(0)).collect();
    let loaded: Vec<Memory> = keys.iter().map(|_| Memory::unwatched(1 << 20)).collect();
    let get = client.submit_get(&keys, &loaded.iter().collect::<Vec<_>>());
    assert_eq!(client.wait(get).results, [true; 64]);
}

#[test]
fn one_that_waits_for_the_device_stays_alone_and_keeps_to_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let (client, reads) = latent(directory.path(), Duration::from_millis(60));
    assert!(client.set_one(&key(0), &Memory::patterned(1 << 20, 0, 1)));
    load_burst(&client);
    let by_reactor = reads.by_reactor.each_ref().map(|reads| reads.load(Ordering::SeqCst));
    assert_eq!(by_reactor.iter().filter(|reads| **reads > 0).count(), 1, "{by_reactor:?}");
    assert_eq!(reads.most_bytes.load(Ordering::SeqCst), 48 * MIB, "what follows from the depth");
}

#[test]
fn where_the_device_answers_at_once_others_are_woken() {
    let directory = tempfile::tempdir().unwrap();
    let (client, reads) = latent(directory.path(), Duration::ZERO);
    assert!(client.set_one(&key(0), &Memory::patterned(1 << 20, 0, 1)));
    eventually("each takes up something", || {
        load_burst(&client);
        reads.by_reactor.iter().all(|reads| reads.load(Ordering::SeqCst) > 0)
    });
}
