//! How long operations waited, were in the device, and took in all.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::schedule::Class;
use crate::stats::LatencyHistogram;

/// Longest time told apart; what took longer counts as this.
const LONGEST_US: u64 = 600_000_000;
const SIGNIFICANT_DIGITS: u8 = 2;

/// Upper bounds of buckets.
const BUCKETS_US: [u64; 17] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// In the order of [`Class`].
const CLASSES: [&str; 3] = ["get", "delete", "set"];
const PHASES: [&str; 3] = ["wait", "device", "total"];

#[derive(Clone, Copy)]
pub(super) struct Timeline {
    pub(super) submitted: Instant,
    /// Its first piece was given to the device.
    pub(super) started: Option<Instant>,
    /// The device was done with its last piece.
    pub(super) moved: Option<Instant>,
}

/// Histograms of microseconds: by class, then queue wait, device time, total time.
pub(crate) struct Latencies {
    histograms: [[Histogram<u32>; 3]; 3],
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let empty = || {
            // The bounds are constants that the library accepts; a test makes one.
            #[expect(clippy::expect_used, reason = "cannot fail, see above")]
            Histogram::new_with_bounds(1, LONGEST_US, SIGNIFICANT_DIGITS).expect("valid bounds")
        };
        Self { histograms: std::array::from_fn(|_| std::array::from_fn(|_| empty())) }
    }

    /// Adds an operation that is answered now. What never reached the device has only a total.
    pub(super) fn record(&mut self, class: Class, timeline: Timeline, now: Instant) {
        let [wait, device, total] = &mut self.histograms[class as usize];
        if let Some(started) = timeline.started {
            wait.saturating_record(microseconds(started - timeline.submitted));
            if let Some(moved) = timeline.moved {
                device.saturating_record(microseconds(moved - started));
            }
        }
        total.saturating_record(microseconds(now - timeline.submitted));
    }

    pub(super) fn add(&mut self, other: &Self) {
        let pairs = self.histograms.iter_mut().flatten().zip(other.histograms.iter().flatten());
        for (mine, theirs) in pairs {
            // Never refused: the bounds are the same.
            let _ = mine.add(theirs);
        }
    }

    /// Quantiles in microseconds by name, `get_wait_us_p99` and the like; 0 where there was nothing.
    pub(crate) fn snapshot(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for (class, phases) in CLASSES.iter().zip(&self.histograms) {
            for (phase, histogram) in PHASES.iter().zip(phases) {
                for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
                    let value = histogram.value_at_quantile(quantile);
                    all.push((format!("{class}_{phase}_us_{name}"), value));
                }
                all.push((format!("{class}_{phase}_us_max"), histogram.max()));
            }
        }
        all
    }

    /// All of them in a few buckets. What only grows here only grows there.
    pub(crate) fn histograms(&self) -> Vec<LatencyHistogram> {
        let phases = CLASSES.iter().zip(&self.histograms).flat_map(|(class, phases)| {
            PHASES.iter().zip(phases).map(|(phase, histogram)| (*class, *phase, histogram))
        });
        phases.map(|(class, phase, histogram)| in_buckets(class, phase, histogram)).collect()
    }
}

fn in_buckets(
    class: &'static str,
    phase: &'static str,
    histogram: &Histogram<u32>,
) -> LatencyHistogram {
    let (mut counts, mut sum_us) = ([0; BUCKETS_US.len()], 0);
    for value in histogram.iter_recorded() {
        let (us, count) = (value.value_iterated_to(), value.count_since_last_iteration());
        sum_us += histogram.median_equivalent(us) * count;
        let least_us = histogram.lowest_equivalent(us);
        if let Some(bucket) = BUCKETS_US.iter().position(|bound| least_us <= *bound) {
            counts[bucket] += count;
        }
    }
    let mut up_to = 0;
    let cumulative = |(bound, count): (u64, u64)| {
        up_to += count;
        (bound, up_to)
    };
    let buckets = BUCKETS_US.into_iter().zip(counts).map(cumulative).collect();
    LatencyHistogram { class, phase, buckets, count: histogram.len(), sum_us }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(LONGEST_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_apart_and_reactors_add_up() {
        let submitted = Instant::now();
        let at = |ms| submitted + Duration::from_millis(ms);
        let (mut one, mut other) = (Latencies::new(), Latencies::new());
        let timeline = Timeline { submitted, started: Some(at(10)), moved: Some(at(30)) };
        one.record(Class::Get, timeline, at(31));
        other.record(Class::Set, Timeline { submitted, started: None, moved: None }, at(5));
        one.add(&other);
        let value = |name: &str| {
            let all = one.snapshot();
            let found = all.iter().find(|(other, _)| other == name);
            // Two significant digits.
            found.map(|(_, value)| (value + 500) / 1000).unwrap()
        };
        assert_eq!(value("get_wait_us_p50"), 10);
        assert_eq!(value("get_device_us_p99"), 20);
        assert_eq!(value("get_total_us_max"), 31);
        assert_eq!(value("set_total_us_p90"), 5);
        assert_eq!((value("set_wait_us_max"), value("delete_wait_us_p50")), (0, 0));
        let histograms = one.histograms();
        let of = |class: &str, phase: &str| {
            let found = histograms.iter().find(|one| (one.class, one.phase) == (class, phase));
            let found = found.unwrap();
            let first = found.buckets.iter().find(|(_, count)| *count > 0).map(|(bound, _)| *bound);
            (first, found.count, (found.sum_us + 500) / 1000)
        };
        assert_eq!(of("get", "wait"), (Some(10_000), 1, 10));
        assert_eq!(of("get", "total"), (Some(50_000), 1, 31));
        assert_eq!(of("set", "total"), (Some(5_000), 1, 5));
        assert_eq!(of("set", "device"), (None, 0, 0));
    }
}
