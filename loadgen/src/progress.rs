//! How far a run is, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What a run is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Every chunk is stored beforehand, untimed.
    Fill,
    /// What is measured.
    Measure,
    /// What was written is loaded again and compared, untimed.
    Check,
    /// The store is closed, or about to be.
    End,
}

impl Phase {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Measure => "measure",
            Self::Check => "check",
            Self::End => "end",
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What it is at.
    pub phase: Phase,
    /// Which part of that is done, from 0 to 1.
    pub fraction: f64,
    /// How long it has been at it.
    pub elapsed: Duration,
    /// Keys answered in this phase.
    pub keys: u64,
    /// Payload bytes moved in this phase.
    pub bytes: u64,
}

/// Written by the jobs, read by whoever polls.
pub(crate) struct ProgressMeter {
    current: Mutex<Current>,
    keys: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Clone, Copy)]
struct Current {
    phase: Phase,
    started: Instant,
    runtime: Option<Duration>,
    goal_keys: u64,
}

impl ProgressMeter {
    pub(crate) fn new() -> Self {
        let started = Instant::now();
        Self {
            current: Mutex::new(Current {
                phase: Phase::Fill,
                started,
                runtime: None,
                goal_keys: 0,
            }),
            keys: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Goes on to the next phase, which ends after `runtime` or when `goal_keys` are answered.
    pub(crate) fn enter(&self, phase: Phase, runtime: Option<Duration>, goal_keys: u64) {
        let mut current = self.current.lock();
        *current = Current { phase, started: Instant::now(), runtime, goal_keys };
        self.keys.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, keys: u64, bytes: u64) {
        self.keys.fetch_add(keys, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Progress {
        let current = *self.current.lock();
        let (keys, bytes) = (self.keys.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let elapsed = current.started.elapsed();
        let fraction = match current.runtime {
            Some(runtime) => elapsed.as_secs_f64() / runtime.as_secs_f64(),
            None => keys as f64 / current.goal_keys.max(1) as f64,
        };
        let fraction = if current.phase == Phase::End { 1.0 } else { fraction.min(1.0) };
        Progress { phase: current.phase, fraction, elapsed, keys, bytes }
    }
}
