//! How many reactors of a path take work, where the options leave it open: one to begin with, and a further one while those that
//! run are busy and it brings something.
//!
//! Whether it brings something is tried out: the work is done for a while with fewer reactors and with one more, in turns, and
//! what moved in each is compared. Only time in which work was pending counts, so short bursts add up; and loads are compared with
//! loads, stores with stores.

use std::time::{Duration, Instant};

use super::bytes_bound::OfLoadsAndStores;

/// Reactors that have been busy for so long are joined by one more.
const BUSY_FOR: Duration = Duration::from_millis(50);

/// What was measured less often than this, as nothing came for a while, is not counted.
const LONGEST_STEP: Duration = Duration::from_millis(25);

/// The legs of a trial: fewer reactors, one more, fewer, one more.
const LEGS: [Duration; 4] = [
    Duration::from_millis(25),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(50),
];

/// After two legs one more stays without the others if the rate with it is so many times the one without.
const CLEAR_RATIO: f64 = 1.4;

/// What was measured for less than so long on either side does not count.
const LEAST_COMPARED: Duration = Duration::from_millis(12);

/// From this share on of what moved it was loads, or stores; else it was both.
const MOSTLY: f64 = 0.8;

/// After each change, before it is measured.
const SETTLING: Duration = Duration::from_millis(10);

/// A trial that is not through by then says nothing: the load has changed. Bursts may lie far apart.
const LONGEST_TRIAL: Duration = Duration::from_secs(60);

/// One more stays if the rate with it is so many times the one without.
const WORTHWHILE_RATIO: f64 = 1.1;

/// After a trial in which one more brought nothing, the next one waits so long, twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(320);

/// Where one reactor less would have been busy for less than this share of so much time, one parks.
const SPARE_SHARE: f64 = 0.7;
const SPARE_FOR: Duration = Duration::from_secs(1);

/// What all reactors of a path have done until now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// Processor time.
    pub(super) processor: Duration,
    pub(super) moved_bytes: OfLoadsAndStores<u64>,
    /// Whether operations are queued or under way.
    pub(super) is_pending: bool,
}

/// What was done in some time.
#[derive(Clone, Copy, Default)]
struct Measured {
    time_s: f64,
    processor_s: f64,
    moved_bytes: OfLoadsAndStores<f64>,
}

impl Measured {
    fn between(earlier: Sample, later: Sample) -> Self {
        Self {
            time_s: (later.at - earlier.at).as_secs_f64(),
            processor_s: later.processor.saturating_sub(earlier.processor).as_secs_f64(),
            moved_bytes: [0, 1].map(|place| {
                later.moved_bytes[place].saturating_sub(earlier.moved_bytes[place]) as f64
            }),
        }
    }

    fn add(&mut self, other: Self) {
        self.time_s += other.time_s;
        self.processor_s += other.processor_s;
        (0..2).for_each(|place| self.moved_bytes[place] += other.moved_bytes[place]);
    }

    fn all_bytes(self) -> f64 {
        self.moved_bytes.iter().sum()
    }

    /// What it was that moved: loads, stores or both.
    fn kind(self) -> usize {
        let is_mostly = |bytes: &f64| *bytes >= MOSTLY * self.all_bytes();
        self.moved_bytes.iter().position(is_mostly).unwrap_or(2)
    }

    /// What was gathered, once it is of so much time; it begins anew then.
    fn take_after(&mut self, time: Duration) -> Option<Self> {
        (self.time_s >= time.as_secs_f64()).then(|| std::mem::take(self))
    }
}

struct Trial {
    began: Instant,
    fewer: usize,
    leg: usize,
    settling: Measured,
    leg_time_s: f64,
    /// Of loads, stores and both: with fewer, and with one more.
    kinds: [[Measured; 2]; 3],
}

impl Trial {
    fn new(began: Instant, fewer: usize) -> Self {
        let (leg, settling, leg_time_s, kinds) = Default::default();
        Self { began, fewer, leg, settling, leg_time_s, kinds }
    }

    fn active(&self) -> usize {
        self.fewer + self.leg % 2
    }

    /// How many times the rate without one more that with it is: the mean over what both sides have done, by time. `None` if they
    /// have done nothing that can be compared.
    fn ratio(&self) -> Option<f64> {
        let least_s = LEAST_COMPARED.as_secs_f64();
        let (mut sum, mut weights) = (0.0, 0.0);
        for [without, with] in self.kinds {
            let weight = without.time_s.min(with.time_s);
            let rates = [without, with].map(|side| side.all_bytes() / side.time_s);
            if weight >= least_s && rates[0] > 0.0 {
                sum += weight * rates[1] / rates[0];
                weights += weight;
            }
        }
        (weights > 0.0).then(|| sum / weights)
    }
}

/// Decides how many reactors take work.
pub(super) struct Scaling {
    most: usize,
    /// Share of its time in which a reactor that is busy has the processor.
    busy_share: f64,
    last: Option<Sample>,
    busy: Measured,
    spare: Measured,
    trial: Option<Trial>,
    paused_until: Option<Instant>,
    pause: Duration,
}

impl Scaling {
    pub(super) fn new(most: usize, busy_share: f64) -> Self {
        Self {
            most,
            busy_share,
            last: None,
            busy: Measured::default(),
            spare: Measured::default(),
            trial: None,
            paused_until: None,
            pause: FIRST_PAUSE,
        }
    }

    /// One of them could not be started: none beyond `count` is tried any more.
    pub(super) fn limit(&mut self, count: usize) {
        self.most = count;
        self.trial = None;
    }

    /// Whether it is being tried out how many reactors bring something.
    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// How many reactors are to take work from now on, after `active` of them have until now.
    pub(super) fn step(&mut self, sample: Sample, active: usize) -> usize {
        let Some(last) = self.last.replace(sample) else { return active };
        let measured = Measured::between(last, sample);
        // Where all that was asked for is answered at once, nothing is pending when that is told.
        let is_counted = last.is_pending && sample.is_pending || measured.all_bytes() > 0.0;
        if !is_counted || sample.at.saturating_duration_since(last.at) > LONGEST_STEP {
            return active;
        }
        match self.trial.take() {
            Some(trial) => self.go_on(trial, measured, sample.at),
            None => self.watch(measured, sample.at, active),
        }
    }

    fn watch(&mut self, measured: Measured, now: Instant, active: usize) -> usize {
        self.busy.add(measured);
        self.spare.add(measured);
        if let Some(spare) = self.spare.take_after(SPARE_FOR)
            && active > 1
            && spare.processor_s < SPARE_SHARE * spare.time_s * (active - 1) as f64
        {
            return active - 1;
        }
        if let Some(busy) = self.busy.take_after(BUSY_FOR)
            && busy.processor_s >= self.busy_share * busy.time_s * active as f64
            && active < self.most
            && self.paused_until.is_none_or(|until| now >= until)
        {
            self.trial = Some(Trial::new(now, active));
        }
        active
    }

    fn go_on(&mut self, mut trial: Trial, measured: Measured, now: Instant) -> usize {
        let fewer = trial.fewer;
        if now.saturating_duration_since(trial.began) > LONGEST_TRIAL {
            return fewer;
        }
        if trial.settling.time_s < SETTLING.as_secs_f64() {
            trial.settling.add(measured);
        } else {
            trial.kinds[measured.kind()][trial.leg % 2].add(measured);
            trial.leg_time_s += measured.time_s;
        }
        if trial.leg_time_s >= LEGS[trial.leg].as_secs_f64() {
            trial.settling = Measured::default();
            trial.leg_time_s = 0.0;
            trial.leg += 1;
        }
        let is_through = trial.leg == LEGS.len();
        let is_to_be_judged = is_through || trial.leg == 2 && trial.leg_time_s == 0.0;
        let ratio = trial.ratio().filter(|_| is_to_be_judged);
        let threshold = if is_through { WORTHWHILE_RATIO } else { CLEAR_RATIO };
        (self.busy, self.spare) = Default::default();
        if ratio.is_some_and(|ratio| ratio >= threshold) {
            self.pause = FIRST_PAUSE;
            return fewer + 1;
        }
        if !is_through || ratio.is_none() {
            if is_through {
                trial = Trial { began: trial.began, ..Trial::new(now, fewer) };
            }
            let active = trial.active();
            self.trial = Some(trial);
            return active;
        }
        self.paused_until = Some(now + self.pause);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        fewer
    }
}

#[cfg(test)]
mod tests {
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
                load.pass(2 * STEP, 1.0, &[100, 105]);
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
            for number in 0..20 {
                load.place = number % 2;
                load.pass(Duration::from_millis(burst), 1.0, &[[300, 300], [100, 100]][load.place]);
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
}
