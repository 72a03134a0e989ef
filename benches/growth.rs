//! The longest stalls of submitting threads while the map grows from nothing to 10,000,000 keys.
//!
//! `cargo bench --features bench --bench growth [-- KEYS [DIRECTORY]]`: one thread stores keys as the reactor does, another asks, claims
//! and deletes all the while. The sidecar lies in DIRECTORY; one on a tmpfs leaves the disk out of it. On a machine that
//! does other work too, what counts is the calls during which both threads had a processor whenever they wanted one, and
//! how long storing a key holds a lock, which is measured without the second thread.
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvring::bench::IndexProbe;

const BATCH: u64 = 256;
const CAPACITY_BYTES: u64 = 64 << 30;
const QUIET_RUNS: usize = 3;

fn key(number: u64) -> String {
    format!("meta-llama/Llama-3.1-70B-Instruct@00000001@0@{number:064x}")
}

/// How long a thread has waited for a processor so far, as the kernel counts.
struct Waiting(File);

impl Waiting {
    /// Of the calling thread.
    fn here() -> Self {
        Self(File::open("/proc/thread-self/schedstat").unwrap())
    }

    fn so_far(&self) -> Duration {
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0).unwrap();
        let text = std::str::from_utf8(&text[..length]).unwrap();
        Duration::from_nanos(text.split_whitespace().nth(1).unwrap().parse().unwrap())
    }
}

/// The longest calls of one kind.
struct Stalls {
    name: &'static str,
    calls: u64,
    longest: Duration,
    longest_undisturbed: Duration,
    over_1_ms: u64,
}

impl Stalls {
    fn new(name: &'static str) -> Self {
        let (longest, longest_undisturbed) = (Duration::ZERO, Duration::ZERO);
        Self { name, calls: 0, longest, longest_undisturbed, over_1_ms: 0 }
    }

    fn time<R>(&mut self, threads: &[Waiting], call: impl FnOnce() -> R) {
        let waited = || -> Duration { threads.iter().map(Waiting::so_far).sum() };
        let before = waited();
        let start = Instant::now();
        let _result = call();
        let elapsed = start.elapsed();
        self.calls += 1;
        self.longest = self.longest.max(elapsed);
        if waited() - before < Duration::from_micros(100) {
            self.longest_undisturbed = self.longest_undisturbed.max(elapsed);
            self.over_1_ms += u64::from(elapsed > Duration::from_millis(1));
        }
    }
}

impl std::fmt::Display for Stalls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{:<14} {:>9} calls, longest {:>9.3} ms, undisturbed {:>9.3} ms, {} of these over 1 ms",
            self.name,
            self.calls,
            self.longest.as_secs_f64() * 1e3,
            self.longest_undisturbed.as_secs_f64() * 1e3,
            self.over_1_ms,
        )
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// One batch or call of each kind in turn, at keys all over what is held, until `done`.
fn submit(
    index: &IndexProbe,
    held: &AtomicU64,
    done: &AtomicBool,
    storing: Waiting,
) -> Vec<Stalls> {
    let threads = &[Waiting::here(), storing];
    let mut exists = Stalls::new("EXISTS of 256");
    let mut get = Stalls::new("GET");
    let mut delete = Stalls::new("DELETE");
    let mut enter = Stalls::new("SET, entered");
    let mut state = 1_u64;
    let mut random = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 20) % bound.max(1)
    };
    while !done.load(Ordering::Relaxed) {
        let bound = held.load(Ordering::Relaxed);
        let keys: Vec<String> = (0..BATCH).map(|_| key(random(bound))).collect();
        exists.time(threads, || index.exists(&keys));
        for key in &keys[..16] {
            get.time(threads, || index.get(key));
        }
        delete.time(threads, || index.delete(&keys[0]));
        for number in 0..16 {
            let absent = key(u64::MAX - number);
            enter.time(threads, || index.set_in_vain(&absent));
        }
    }
    vec![exists, get, delete, enter]
}

/// The longest time for which storing any of `keys` keys holds a lock, each counted with the shortest time of all runs:
/// growth comes with the same key every time, and what other processes do does not.
fn longest_hold(parent: &Path, keys: u64) -> Duration {
    let mut shortest = vec![u32::MAX; keys as usize];
    for _ in 0..QUIET_RUNS {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let index = IndexProbe::open(directory.path(), CAPACITY_BYTES).unwrap();
        for (number, shortest) in (0..).zip(&mut shortest) {
            let elapsed = index.set(&key(number)).unwrap();
            *shortest = elapsed.as_nanos().min(u128::from(*shortest)) as u32;
        }
    }
    Duration::from_nanos(shortest.into_iter().max().unwrap_or(0).into())
}

fn main() {
    // Cargo adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let count = arguments.next().map_or(10_000_000, |text| text.parse().unwrap());
    let parent = arguments.next().map_or(env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let directory = tempfile::tempdir_in(&parent).unwrap();
    let index = IndexProbe::open(directory.path(), CAPACITY_BYTES).unwrap();
    let (held, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let before = resident_bytes();
    let start = Instant::now();
    let stalls = std::thread::scope(|scope| {
        let storing = Waiting::here();
        let submitting = scope.spawn(|| submit(&index, &held, &done, storing));
        for number in 0..count {
            index.set(&key(number)).unwrap();
            held.store(number + 1, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
        submitting.join().unwrap()
    });
    println!("{count} keys in {:.1} s", start.elapsed().as_secs_f64());
    println!("memory: {} bytes each", resident_bytes().saturating_sub(before) / count);
    stalls.iter().for_each(|stalls| println!("{stalls}"));
    drop((index, directory));

    let longest = longest_hold(&parent, count);
    println!("longest hold of a lock in storing: {:.3} ms", longest.as_secs_f64() * 1e3);
}
