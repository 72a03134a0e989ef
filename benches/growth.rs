//! The longest stalls of submitting threads while the map grows from nothing to 10,000,000 keys.
//!
//! `cargo bench --bench growth [-- KEYS [DIRECTORY]]`: one thread stores keys as the reactor does, another asks, claims
//! and deletes all the while. The sidecar lies in DIRECTORY; one on a tmpfs leaves the disk out of it. On a machine that
//! does other work too, what counts is the calls during which the thread was not preempted.
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvring::IndexProbe;

const BATCH: u64 = 256;

fn key(number: u64) -> String {
    format!("meta-llama/Llama-3.1-70B-Instruct@00000001@0@{number:064x}")
}

/// How often this thread was preempted, by other threads that wanted its processor.
fn preemptions() -> i64 {
    // SAFETY: all-zero is a valid rusage, and getrusage gets a pointer to one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
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

    fn time<R>(&mut self, call: impl FnOnce() -> R) {
        let preempted = preemptions();
        let start = Instant::now();
        let _result = call();
        let elapsed = start.elapsed();
        self.calls += 1;
        self.longest = self.longest.max(elapsed);
        if preempted == preemptions() {
            self.longest_undisturbed = self.longest_undisturbed.max(elapsed);
            self.over_1_ms += u64::from(elapsed > Duration::from_millis(1));
        }
    }
}

impl std::fmt::Display for Stalls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{:<14} {:>9} calls, longest {:>9.3} ms, not preempted {:>9.3} ms, {} of these over 1 ms",
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
fn submit(index: &IndexProbe, held: &AtomicU64, done: &AtomicBool) -> Vec<Stalls> {
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
        exists.time(|| index.exists(&keys));
        for key in &keys[..16] {
            get.time(|| index.get(key));
        }
        delete.time(|| index.delete(&keys[0]));
        for number in 0..16 {
            let absent = key(u64::MAX - number);
            enter.time(|| index.set_in_vain(&absent));
        }
    }
    vec![exists, get, delete, enter]
}

fn main() {
    // Cargo adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let count = arguments.next().map_or(10_000_000, |text| text.parse().unwrap());
    let parent = arguments.next().map_or(env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let directory = tempfile::tempdir_in(parent).unwrap();
    let index = IndexProbe::open(directory.path(), 64 << 30).unwrap();
    let (held, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let before = resident_bytes();
    let start = Instant::now();
    let stalls = std::thread::scope(|scope| {
        let submitting = scope.spawn(|| submit(&index, &held, &done));
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
}
