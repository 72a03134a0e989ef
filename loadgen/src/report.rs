//! What a run has measured.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use kvring::{FailureCode, Stats};

use crate::plan::Plan;

/// Distinct error messages that are kept.
const MAX_MESSAGES: usize = 8;

/// What is done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Set,
    Exists,
    Delete,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Get, Self::Set, Self::Exists, Self::Delete];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Exists => "exists",
            Self::Delete => "delete",
        }
    }
}

/// Counts of one phase, of one job or of all.
#[derive(Clone)]
pub(crate) struct Tally {
    classes: [ClassReport; 4],
    pub(crate) wrong_chunks: u64,
    /// Batches by the code of their failure.
    pub(crate) failed_batches: BTreeMap<&'static str, u64>,
    pub(crate) messages: Vec<String>,
    /// The job gave up.
    pub(crate) ended_early: bool,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let classes = Operation::ALL.map(|operation| ClassReport::new(operation.name()));
        Self {
            classes,
            wrong_chunks: 0,
            failed_batches: BTreeMap::new(),
            messages: Vec::new(),
            ended_early: false,
        }
    }

    pub(crate) fn class(&mut self, operation: Operation) -> &mut ClassReport {
        &mut self.classes[operation as usize]
    }

    /// Counts a batch that failed. The message of the first one of its kind is kept.
    pub(crate) fn fail_batch(&mut self, code: FailureCode, message: String) {
        let count = self.failed_batches.entry(code.name()).or_default();
        *count += 1;
        if *count == 1 {
            self.complain(message);
        }
    }

    pub(crate) fn complain(&mut self, message: impl Into<String>) {
        let message = message.into();
        if self.messages.len() < MAX_MESSAGES && !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (mine, theirs) in self.classes.iter_mut().zip(&other.classes) {
            mine.add(theirs);
        }
        self.wrong_chunks += other.wrong_chunks;
        self.ended_early |= other.ended_early;
        for (code, count) in other.failed_batches {
            *self.failed_batches.entry(code).or_default() += count;
        }
        other.messages.into_iter().for_each(|message| self.complain(message));
    }

    pub(crate) fn failed(&self) -> u64 {
        self.classes.iter().map(|class| class.failed).sum()
    }
}

/// What was measured of one class.
#[derive(Clone, Debug)]
pub struct ClassReport {
    /// "get", "set", "exists" or "delete".
    pub name: &'static str,
    /// Batches completed.
    pub batches: u64,
    /// Keys answered: the operations.
    pub keys: u64,
    /// Payload bytes moved, of keys that were loaded or stored.
    pub bytes: u64,
    /// Keys of GET and EXISTS that were there.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
    /// Keys whose operation failed.
    pub failed: u64,
    latency_ns: Histogram<u64>,
}

impl ClassReport {
    fn new(name: &'static str) -> Self {
        // Three significant digits; it grows with what is recorded, which only fails for digits out of 0 to 5.
        let latency_ns = Histogram::new(3).expect("three digits are valid");
        Self { name, batches: 0, keys: 0, bytes: 0, hits: 0, misses: 0, failed: 0, latency_ns }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        // Not saturating_record, which does not grow the histogram. It fails beyond what a u64 holds, centuries.
        let _ = self.latency_ns.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    fn add(&mut self, other: &Self) {
        self.batches += other.batches;
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.hits += other.hits;
        self.misses += other.misses;
        self.failed += other.failed;
        // It cannot fail: both grow, and have the same digits.
        let _ = self.latency_ns.add(&other.latency_ns);
    }

    /// Latency of its batches in microseconds, from submit until their completion was drained: "mean", "p50", "p90", "p99", "p99.9" and
    /// "max".
    pub fn latency_us(&self) -> Vec<(&'static str, f64)> {
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
        let at =
            |(name, quantile)| (name, self.latency_ns.value_at_quantile(quantile) as f64 / 1e3);
        let mean = ("mean", self.latency_ns.mean() / 1e3);
        [mean].into_iter().chain(quantiles.map(at)).collect()
    }
}

/// One phase of a run.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    /// From its start until the last job had its last answer.
    pub elapsed: Duration,
    /// CPU time of the whole process in user mode.
    pub cpu_user: Duration,
    /// CPU time of the whole process in the kernel, on its behalf.
    pub cpu_system: Duration,
    /// The classes that were used.
    pub classes: Vec<ClassReport>,
}

impl PhaseReport {
    pub(crate) fn new(tally: &Tally, elapsed: Duration, cpu: (Duration, Duration)) -> Self {
        let classes = tally.classes.iter().filter(|class| class.batches > 0).cloned();
        Self { elapsed, cpu_user: cpu.0, cpu_system: cpu.1, classes: classes.collect() }
    }

    /// Payload bytes moved by all classes.
    pub fn bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.bytes).sum()
    }
}

/// All of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was done.
    pub plan: Plan,
    /// Storing every chunk beforehand, where the pattern needs it.
    pub fill: Option<PhaseReport>,
    /// What was asked for; `None` if the run was stopped before.
    pub measured: Option<PhaseReport>,
    /// Loading again what was written, with `verify`.
    pub check: Option<PhaseReport>,
    /// `stop` was called before the end.
    pub interrupted: bool,
    /// Keys that failed, in all phases.
    pub failed_keys: u64,
    /// Chunks that were loaded and are not what was stored, in all phases.
    pub wrong_chunks: u64,
    /// Chunks that the store itself found damaged or could not read.
    pub damaged_chunks: u64,
    /// Jobs gave up because the store refused a batch or hung.
    pub gave_up: bool,
    /// How many batches failed, by the name of their code.
    pub failed_batches: BTreeMap<&'static str, u64>,
    /// The first messages of all that went wrong.
    pub messages: Vec<String>,
    /// State and counters of the store at the end.
    pub stats: Stats,
    /// Whether the store was closed in order afterwards.
    pub closed_in_order: bool,
}

impl Report {
    /// Whether anything went wrong. A miss is not wrong by itself.
    pub fn has_errors(&self) -> bool {
        self.failed_keys + self.wrong_chunks + self.damaged_chunks > 0
            || self.gave_up
            || !self.closed_in_order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_all_jobs_to_three_digits() {
        let mut all = Tally::new();
        for milliseconds in 1..=1000 {
            let mut job = Tally::new();
            let class = job.class(Operation::Get);
            class.record(Duration::from_millis(milliseconds));
            class.batches = 1;
            all.add(job);
        }
        let report = PhaseReport::new(&all, Duration::from_secs(1), Default::default());
        let latencies = &report.classes[0].latency_us();
        let names: Vec<&str> = latencies.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["mean", "p50", "p90", "p99", "p99.9", "max"]);
        for ((name, found), milliseconds) in
            latencies.iter().zip([500.5, 500.0, 900.0, 990.0, 999.0, 1000.0])
        {
            assert!((found / 1e3 - milliseconds).abs() <= milliseconds / 1e3, "{name}: {found}");
        }
    }

    #[test]
    fn messages_are_kept_once_and_not_without_end() {
        let mut tally = Tally::new();
        for number in 0..100 {
            tally.complain(format!("{}", number / 2));
        }
        assert_eq!(tally.messages, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    }

    #[test]
    fn failed_batches_are_counted_by_their_code_and_told_once() {
        let mut all = Tally::new();
        for number in 0..3 {
            let mut job = Tally::new();
            job.fail_batch(FailureCode::QueueFull, format!("{number} SETs are under way"));
            job.fail_batch(FailureCode::QueueFull, "again".into());
            all.add(job);
        }
        all.fail_batch(FailureCode::Io, "a sync".into());
        assert_eq!(all.failed_batches, BTreeMap::from([("io", 1), ("queue_full", 6)]));
        assert!(all.messages.iter().all(|message| message != "again"), "{:?}", all.messages);
    }
}
