//! Loads that pass by in steps, and how many reactors take work.

use super::*;

const STEP: Duration = Duration::from_millis(5);

/// A load on reactors, as time passes by in steps.
struct Load {
    scaling: Scaling,
    sample: Sample,
    active: usize,
    /// Loads (0), or stores.
    place: usize,
}

impl Load {
    fn new(most: usize) -> Self {
        let (at, processor) = (Instant::now(), Duration::ZERO);
        let sample = Sample { at, processor, moved_bytes: [0; 2], is_pending: true };
        Self { scaling: Scaling::new(most, 0.9), sample, active: 1, place: 0 }
    }

    /// For so long all reactors are busy for a `share` of the time, and as many as `rates` has each move that much in a step.
    fn pass(&mut self, time: Duration, share: f64, rates: &[u64]) -> usize {
        let end = self.sample.at + time;
        let mut most_active = self.active;
        while self.sample.at < end {
            self.sample.at += STEP;
            self.sample.processor += STEP.mul_f64(share * self.active as f64);
            self.sample.moved_bytes[self.place] += rates[self.active - 1];
            self.active = self.scaling.step(self.sample, self.active);
            most_active = most_active.max(self.active);
        }
        most_active
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn one_more_stays_where_it_brings_something() {
    let mut load = Load::new(3);
    assert_eq!(load.pass(SECOND * 3 / 20, 1.0, &[100, 180, 190]), 2);
    assert_eq!(load.active, 2);
    assert_eq!(load.pass(2 * SECOND, 1.0, &[100, 180, 190]), 3, "it is tried out");
    assert_eq!(load.active, 2, "and brings too little");
}

#[test]
fn one_that_brings_nothing_goes_and_is_tried_less_and_less_often() {
    let mut load = Load::new(2);
    // A trial has two legs with one more, within a quarter of a second.
    let mut legs = Vec::new();
    for second in 0..80 {
        for _ in 0..100 {
            let before = load.active;
            load.pass(2 * STEP, 1.0, &[100, 99]);
            if before < load.active {
                legs.push(second);
            }
        }
    }
    assert_eq!(legs.len(), 12, "{legs:?}");
    for (leg, about) in legs.iter().zip([0, 0, 2, 2, 6, 6, 15, 15, 31, 31, 63, 63]) {
        assert!((about - 1..=about + 1).contains(leg), "{legs:?}");
    }
    assert_eq!(load.active, 1);
}

#[test]
fn reactors_that_are_not_busy_get_no_help() {
    let mut load = Load::new(2);
    assert_eq!(load.pass(5 * SECOND, 0.8, &[100, 200]), 1);
    load.sample.is_pending = false;
    assert_eq!(load.pass(5 * SECOND, 1.0, &[0, 0]), 1, "nothing is asked of them");
}

#[test]
fn short_bursts_add_up() {
    let mut load = Load::new(2);
    for _ in 0..60 {
        load.sample.is_pending = true;
        load.pass(4 * STEP, 1.0, &[100, 200]);
        load.sample.is_pending = false;
        load.pass(6 * STEP, 0.0, &[0, 0]);
    }
    assert_eq!(load.active, 2);
}

/// Each takes longer than a leg, and stores move at a third of the rate: loads with one reactor move more than stores with two.
#[test]
fn loads_are_compared_with_loads() {
    for burst in [60, 85, 110, 135] {
        let mut load = Load::new(2);
        for number in 0..20 {
            load.place = number % 2;
            let rates = [[300, 390], [100, 130]][load.place];
            load.pass(Duration::from_millis(burst), 1.0, &rates);
        }
        assert_eq!(load.active, 2, "bursts of {burst} ms");

        let mut load = Load::new(2);
        for number in 0..15 {
            load.place = number % 2;
            load.pass(Duration::from_millis(burst), 1.0, &[[300, 297], [100, 99]][load.place]);
        }
        assert_eq!(load.active, 1, "bursts of {burst} ms");
        assert!(load.scaling.paused_until.is_some());
    }
}

#[test]
fn what_is_clear_is_decided_soon() {
    let mut load = Load::new(2);
    load.pass(Duration::from_millis(130), 1.0, &[100, 190]);
    assert!(load.active == 2 && load.scaling.trial.is_none());
}

#[test]
fn one_that_is_not_needed_parks_and_comes_back() {
    let mut load = Load::new(2);
    load.pass(SECOND, 1.0, &[100, 200]);
    assert_eq!(load.active, 2);
    load.pass(2 * SECOND, 0.3, &[100, 100]);
    assert_eq!(load.active, 1);
    load.pass(SECOND, 1.0, &[100, 200]);
    assert_eq!(load.active, 2);
    load.sample.is_pending = false;
    load.pass(10 * SECOND, 0.0, &[0, 0]);
    assert_eq!(load.active, 2, "a pause tells nothing");
}

#[test]
fn a_trial_that_the_load_does_not_last_for_is_given_up() {
    let mut load = Load::new(2);
    load.pass(SECOND / 10, 1.0, &[100, 200]);
    assert_eq!(load.active, 2, "in the middle of the trial");
    load.sample.is_pending = false;
    load.pass(2 * LONGEST_TRIAL, 0.0, &[0, 0]);
    load.sample.is_pending = true;
    load.pass(SECOND / 25, 1.0, &[100, 200]);
    assert_eq!(load.active, 1);
    load.pass(SECOND, 1.0, &[100, 200]);
    assert_eq!(load.active, 2, "and made anew");
}

#[test]
fn one_that_cannot_be_started_is_not_asked_for_again() {
    let mut load = Load::new(2);
    load.pass(SECOND / 10, 1.0, &[100, 200]);
    load.scaling.limit(1);
    load.active = 1;
    assert_eq!(load.pass(20 * SECOND, 1.0, &[100, 200]), 1);
}
