//! Which reactors take up work: one that waits for the device stays alone, one that is short of processor time has others woken.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

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
    /// While set, none comes back.
    are_held: AtomicBool,
}

/// Reads nothing, and says with the next reap that it has.
struct HollowEngine {
    number: usize,
    real: Box<dyn Engine>,
    reads: Arc<Reads>,
    done: Vec<Reaped>,
}

impl Engine for HollowEngine {
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
        self.done.push(Reaped { token: transfer.token, result: bytes as i32 });
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let is_held = self.reads.are_held.load(Ordering::SeqCst);
        let look = Duration::from_millis(if is_held { 5 } else { 0 });
        let limit = (!self.done.is_empty()).then_some(look);
        self.real.reap(timeout.into_iter().chain(limit).min(), reaped)?;
        if !self.reads.are_held.load(Ordering::SeqCst) {
            for done in self.done.drain(..) {
                self.reads.in_flight_bytes.fetch_sub(done.result as u64, Ordering::SeqCst);
                reaped.push(done);
            }
        }
        Ok(())
    }

    fn cancel_all(&mut self) {
        self.real.cancel_all();
    }
}

/// A store that reads nothing, and what it is asked for.
fn hollow(directory: &Path) -> (Client, Arc<Reads>) {
    let (reads, made) = (Arc::<Reads>::default(), AtomicUsize::new(0));
    let of_all = Arc::clone(&reads);
    let make_engine = move |queue_depth, waker: Arc<Waker>| {
        let (number, reads) = (made.fetch_add(1, Ordering::SeqCst), Arc::clone(&of_all));
        let real = real_engine(queue_depth, waker)?;
        Ok::<_, EngineError>(HollowEngine { number, real, reads, done: Vec::new() })
    };
    let mut config = config(directory, 256 * MIB);
    (config.io_threads, config.checksum) = (Some(REACTORS), Checksum::Off);
    let client = Client::from(Connector::open_with_engine(config, make_engine).unwrap());
    assert!(client.set_one(&key(0), &Memory::patterned(1 << 20, 0, 1)));
    (client, reads)
}

/// Memory for 64 MiB, which are loaded in one batch.
fn burst() -> Vec<Memory> {
    (0..64).map(|_| Memory::unwatched(1 << 20)).collect()
}

fn load(client: &Client, memory: &[Memory]) -> u64 {
    let keys: Vec<String> = memory.iter().map(|_| key(0)).collect();
    client.submit_get(&keys, memory)
}

#[test]
fn one_that_waits_for_the_device_stays_alone_and_keeps_to_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let (client, reads) = hollow(directory.path());
    let memory = burst();
    // Another one is woken for a batch that comes while the first one still runs.
    eventually("one alone", || {
        reads.by_reactor.iter().for_each(|reads| reads.store(0, Ordering::SeqCst));
        reads.are_held.store(true, Ordering::SeqCst);
        let get = load(&client, &memory);
        // What follows from the depth.
        let in_flight_bytes = || reads.in_flight_bytes.load(Ordering::SeqCst);
        eventually("all that the device may have", || in_flight_bytes() >= 48 * MIB);
        let busy = reads.by_reactor.iter().filter(|reads| reads.load(Ordering::SeqCst) > 0).count();
        reads.are_held.store(false, Ordering::SeqCst);
        assert_eq!(client.wait(get).results, [true; 64]);
        busy == 1
    });
    // Each of the others may have a turn's bytes more, as they are told a little late.
    let most_bytes = reads.most_bytes.load(Ordering::SeqCst);
    assert!(most_bytes <= 52 * MIB, "{most_bytes}");
}

#[test]
fn where_the_device_answers_at_once_others_are_woken() {
    let directory = tempfile::tempdir().unwrap();
    let (client, reads) = hollow(directory.path());
    let memory = burst();
    eventually("each takes up something", || {
        assert_eq!(client.wait(load(&client, &memory)).results, [true; 64]);
        reads.by_reactor.iter().all(|reads| reads.load(Ordering::SeqCst) > 0)
    });
}
