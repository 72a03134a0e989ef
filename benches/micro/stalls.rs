//! The longest submits of EXISTS, SET and DELETE in a store of 10,000,000 keys while it evicts, expires, lists and purges.
//!
//! `cargo bench --bench stalls [-- KEYS [DIRECTORY [DEVICE]]]`: the index lies in DIRECTORY. Reads and writes of chunks move nothing, so
//! DEVICE may be a loop device over a sparse file; without one the data files lie in DIRECTORY too, and take their space. On a
//! machine that does other work too, what counts is the submits during which every thread of the process had a processor
//! whenever it wanted one.
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvring::testing::{Action, Clock, Engine, PosixEngine, Reaped, Transfer, Waker};
use kvring::{CallerBuffer, Checksum, Config, Connector, EngineError, Eviction};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const BATCH: u64 = 256;
/// So that space runs short before the index, which has room for chunks of 16 KiB.
const CHUNK_BYTES: usize = 20 << 10;
const TTL: Duration = Duration::from_secs(3600);
/// Keys from which on a store has a place for the long SET. The SETs beside it are written all over the store: in one of 250,000
/// keys a place of a thirtieth of it always has some of them.
const FEWEST_FOR_LONG: u64 = 10_000_000;
/// Short, so that the leases of one phase are over soon.
const LEASE: Duration = Duration::from_secs(1);
const START_MS: u64 = 1_800_000_000_000;

fn key(number: u64) -> String {
    // One key in 16 is of another namespace, which is purged in the end.
    let model = if number.is_multiple_of(16) { "purged" } else { "meta-llama" };
    format!("{model}/Llama-3.1-70B-Instruct@00000001@0@{number:064x}")
}

/// Moves nothing, and says it did.
struct Idle {
    real: PosixEngine,
    done: Vec<Reaped>,
}

impl Engine for Idle {
    fn description(&self) -> String {
        "idle".into()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        if !matches!(transfer.action, Action::Read | Action::Write) {
            // SAFETY: as the caller vouches.
            return unsafe { self.real.submit(transfer) };
        }
        // SAFETY: the caller vouches for the vectors.
        let vectors =
            unsafe { std::slice::from_raw_parts(transfer.vectors, transfer.vector_count) };
        let result = vectors.iter().map(|vector| vector.iov_len as i32).sum();
        self.done.push(Reaped { token: transfer.token, result });
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let timeout = if self.done.is_empty() { timeout } else { Some(Duration::ZERO) };
        reaped.append(&mut self.done);
        self.real.reap(timeout, reaped)
    }

    fn cancel_all(&mut self) {
        self.real.cancel_all();
    }
}

/// How long the threads of this process have waited for processors so far, as the kernel counts.
struct Waiting(Vec<File>);

impl Waiting {
    fn of_all() -> Self {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        // One that has ended meanwhile waits for nothing.
        let open = |task: std::io::Result<std::fs::DirEntry>| {
            File::open(task.ok()?.path().join("schedstat")).ok()
        };
        Self(tasks.filter_map(open).collect())
    }

    fn so_far(&self) -> Duration {
        let of = |file: &File| {
            let mut text = [0; 128];
            let length = file.read_at(&mut text, 0).unwrap_or(0);
            let text = std::str::from_utf8(&text[..length]).unwrap();
            text.split_whitespace().nth(1).map_or(0, |text| text.parse().unwrap())
        };
        Duration::from_nanos(self.0.iter().map(of).sum())
    }
}

/// The longest calls of one kind.
struct Stalls {
    name: &'static str,
    all: Vec<Duration>,
    undisturbed: Vec<Duration>,
}

impl Stalls {
    fn new(name: &'static str) -> Self {
        Self { name, all: Vec::new(), undisturbed: Vec::new() }
    }

    fn time<R>(&mut self, waiting: &Waiting, call: impl FnOnce() -> R) -> R {
        let before = waiting.so_far();
        let start = Instant::now();
        let result = call();
        let elapsed = start.elapsed();
        self.all.push(elapsed);
        if waiting.so_far().saturating_sub(before) < Duration::from_micros(50) {
            self.undisturbed.push(elapsed);
        }
        result
    }

    fn tell(mut self) {
        self.all.sort_unstable();
        self.undisturbed.sort_unstable();
        let ms = |one: Option<&Duration>| one.map_or(0.0, |one| one.as_secs_f64() * 1e3);
        let p99 = self.undisturbed.len() * 99 / 100;
        let over = self.undisturbed.iter().filter(|one| **one > Duration::from_millis(2)).count();
        println!(
            "  {:<14} {:>7} calls, longest {:>8.3} ms; {:>7} undisturbed, p50 {:.3}, p99 {:.3}, longest {:>7.3} ms, {over} over 2 ms",
            self.name,
            self.all.len(),
            ms(self.all.last()),
            self.undisturbed.len(),
            ms(self.undisturbed.get(self.undisturbed.len() / 2)),
            ms(self.undisturbed.get(p99)),
            ms(self.undisturbed.last()),
        );
    }
}

struct Store {
    connector: Connector,
    memory: Box<[MaybeUninit<u8>]>,
    now_ms: Arc<AtomicU64>,
    /// Keys stored so far.
    next: AtomicU64,
    /// The batch that somebody else than who submits the others waits for.
    long: AtomicU64,
}

impl Store {
    fn buffers(&self, count: usize, length: usize) -> Vec<CallerBuffer> {
        // SAFETY: the memory lives as long as the connector, and nothing is moved from or to it.
        (0..count)
            .map(|_| unsafe { CallerBuffer::new(self.memory.as_ptr().cast_mut().cast(), length) })
            .collect()
    }

    /// Takes completions until fewer than `most` batches are under way.
    fn wait(&self, under_way: &mut usize, most: usize) {
        let mut completions = Vec::new();
        while *under_way > most {
            // SAFETY: the connector keeps the descriptor open while it lives.
            let event = unsafe { BorrowedFd::borrow_raw(self.connector.event_fd()) };
            poll(&mut [PollFd::new(event, PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
            self.connector.drain(&mut completions);
            for completion in completions.drain(..) {
                if completion.future_id == self.long.load(Ordering::Relaxed) {
                    if !completion.ok {
                        // A panic would wait for the thread that waits for this.
                        eprintln!("the long SET failed: {}", completion.error);
                        std::process::exit(1);
                    }
                    self.long.store(0, Ordering::Relaxed);
                } else {
                    *under_way -= 1;
                }
            }
        }
    }

    fn store(&self, keys: &[String]) {
        let buffers = self.buffers(keys.len(), CHUNK_BYTES);
        self.connector.submit_set(keys, &buffers, Box::new(())).unwrap();
    }

    fn new_keys(&self, count: u64) -> Vec<String> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first..first + count).map(key).collect()
    }

    fn fill(&self, count: u64) {
        let mut under_way = 0;
        while self.next.load(Ordering::Relaxed) < count {
            self.store(&self.new_keys(16 * BATCH));
            under_way += 1;
            self.wait(&mut under_way, 4);
        }
        self.wait(&mut under_way, 0);
    }

    /// Times a batch of each kind in turn until `ends` says so, while `beside` runs on another thread.
    fn phase(&self, name: &str, at_least: Duration, beside: impl FnOnce(&AtomicBool) + Send) {
        self.phase_of(true, name, at_least, beside);
    }

    fn phase_of(
        &self,
        has_exists: bool,
        name: &str,
        at_least: Duration,
        beside: impl FnOnce(&AtomicBool) + Send,
    ) {
        let (ended, times_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut kinds =
            ["control", "EXISTS of 256", "SET of 256", "DELETE of 256", "DELETE"].map(Stalls::new);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                beside(&times_up);
                ended.store(true, Ordering::Relaxed);
            });
            let waiting = Waiting::of_all();
            let mut state = 1_u64;
            let mut random = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 20) % bound.max(1)
            };
            let mut under_way = 0;
            while begin.elapsed() < at_least || !ended.load(Ordering::Relaxed) {
                times_up.store(begin.elapsed() >= at_least, Ordering::Relaxed);
                let bound = self.next.load(Ordering::Relaxed);
                let keys: Vec<String> = (0..BATCH).map(|_| key(random(bound))).collect();
                kinds[0].time(&waiting, || {
                    (0..300_000_u64).fold(0, |sum, one| std::hint::black_box(sum ^ one))
                });
                if has_exists {
                    kinds[1].time(&waiting, || self.connector.submit_exists(&keys).unwrap());
                }
                let new_keys = self.new_keys(BATCH);
                let buffers = self.buffers(new_keys.len(), CHUNK_BYTES);
                kinds[2].time(&waiting, || {
                    self.connector.submit_set(&new_keys, &buffers, Box::new(())).unwrap()
                });
                let keys: Vec<String> = (0..BATCH).map(|_| key(random(bound))).collect();
                kinds[3].time(&waiting, || self.connector.submit_delete(&keys).unwrap());
                let one = [key(random(bound))];
                kinds[4].time(&waiting, || self.connector.submit_delete(&one).unwrap());
                under_way += 3 + usize::from(has_exists);
                self.wait(&mut under_way, 16);
            }
            self.wait(&mut under_way, 0);
        });
        let stats = self.connector.stats();
        println!("{name}: {:.1} s, {} keys", begin.elapsed().as_secs_f64(), stats.keys);
        kinds.into_iter().for_each(Stalls::tell);
    }
}

fn counter(store: &Store, name: &str) -> u64 {
    store.connector.stats().counters.iter().find(|(other, _)| *other == name).unwrap().1
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn main() {
    // Cargo adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let count: u64 = arguments.next().map_or(10_000_000, |text| text.parse().unwrap());
    let parent = arguments.next().map_or(env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let device = arguments.next();
    let directory = tempfile::tempdir_in(&parent).unwrap();
    let now_ms = Arc::new(AtomicU64::new(START_MS));
    let capacity_bytes = count * CHUNK_BYTES as u64;
    let path = directory.path().to_str().unwrap();
    let mut config = Config::new(device.as_deref().unwrap_or(path), capacity_bytes).unwrap();
    config.index_path = device.as_ref().map(|_| directory.path().join("index"));
    config.ttl = Some(TTL);
    config.lease_s = LEASE.as_secs() as u32;
    config.checksum = Checksum::Off;
    config.clock = Clock::by_hand(Arc::clone(&now_ms));
    if let Ok(name) = std::env::var("KVRING_EVICTION") {
        config.eviction = Eviction::ALL.into_iter().find(|one| one.name() == name).unwrap();
    }
    let before = resident_bytes();
    let make_engine = |depth: usize, waker: Arc<Waker>| {
        Ok(Idle { real: PosixEngine::new(depth.min(4), waker)?, done: Vec::new() })
    };
    let connector = Connector::open_with_engine(config, make_engine).unwrap();
    // As long as the longest chunk, and never touched.
    let memory = Box::new_uninit_slice(2 << 30);
    let store =
        Store { connector, memory, now_ms, next: AtomicU64::new(0), long: AtomicU64::new(0) };
    let begin = Instant::now();
    // A fortieth is the file system's and the index's.
    store.fill(count - count / 40);
    let keys = store.connector.stats().keys;
    println!("{keys} keys in {:.1} s", begin.elapsed().as_secs_f64());
    for name in ["set_failed", "index_full", "evicted", "set_no_space"] {
        println!("{name} {}", counter(&store, name));
    }
    println!("memory: {} bytes each", resident_bytes().saturating_sub(before) / keys);

    let seconds = Duration::from_secs;
    store.phase("nothing beside", seconds(10), |_| ());
    store.fill(count + count / 20);
    store.phase("full, so that each SET evicts", seconds(10), |_| ());
    store.phase("usage()", seconds(5), |ends| {
        while !ends.load(Ordering::Relaxed) {
            store.connector.usage().unwrap();
        }
    });
    store.phase("keys()", seconds(1), |_| {
        let mut from = Some(0);
        while let Some(cursor) = from {
            from = store.connector.keys("purged/Llama-3.1-70B-Instruct", cursor, 1000).unwrap().1;
        }
    });
    // EXISTS leases chunks all over the store: there is no place of such a length without one.
    if count >= FEWEST_FOR_LONG {
        // A lease ends with a whole second.
        std::thread::sleep(LEASE + seconds(2));
        store.phase_of(false, "one SET of 512 MiB", seconds(1), |_| {
            // One of 2 GiB would fill a data file, and some place in each is always being written.
            let length = store.connector.stats().max_chunk_bytes as usize / 4;
            let begin = Instant::now();
            let before = store.connector.stats().keys;
            let id = store
                .connector
                .submit_set(&["long".to_owned()], &store.buffers(1, length), Box::new(()))
                .unwrap();
            store.long.store(id, Ordering::Relaxed);
            while store.long.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (after, elapsed) = (store.connector.stats().keys, begin.elapsed());
            println!(
                "{length} bytes in {:.3} s; of {before} keys {after} are left",
                elapsed.as_secs_f64()
            );
        });
    } else {
        println!("no long SET: it takes a store of {FEWEST_FOR_LONG} keys");
    }
    store.phase("purge", seconds(1), |_| {
        let purged = store.connector.purge("purged/Llama-3.1-70B-Instruct").unwrap();
        println!("purged {} keys", purged.keys);
    });
    let begin = Instant::now();
    let mut under_way = 1;
    let keys = store.new_keys(count.min(300_000));
    store.store(&keys);
    println!(
        "one batch of {} keys submitted in {:.3} s",
        keys.len(),
        begin.elapsed().as_secs_f64()
    );
    store.wait(&mut under_way, 0);
    println!("and answered in {:.3} s", begin.elapsed().as_secs_f64());
    store.now_ms.fetch_add(TTL.as_millis() as u64, Ordering::Relaxed);
    store.phase("everything expires", seconds(20), |_| ());
    store.phase("expire()", seconds(1), |_| {
        store.connector.expire().unwrap();
    });
    store.phase("check()", seconds(1), |_| {
        assert_eq!(store.connector.check().unwrap().problems, Vec::<String>::new());
    });
}
