//! How many reactors of a path take work, where the options leave it open: one to begin with, and a further one while those that
//! run are busy and it brings something.
//!
//! Whether it brings something is tried out: the work is done for a while with fewer reactors and with one more, in turns, and
//! what moved in each is compared. Only time in which work was pending counts, so short bursts add up.

use std::time::{Duration, Instant};

/// Reactors that have been busy for so long are joined by one more.
const BUSY_FOR: Duration = Duration::from_millis(50);

/// What was measured less often than this, as nothing came for a while, is not counted.
const LONGEST_STEP: Duration = Duration::from_millis(25);

/// A trial has so many legs: fewer reactors, one more, fewer, one more.
const LEGS: usize = 4;
const LEG: Duration = Duration::from_millis(50);

/// After each change, before it is measured.
const SETTLING: Duration = Duration::from_millis(10);

/// A trial that is not through by then says nothing: the load has changed. Bursts may lie far apart.
const LONGEST_TRIAL: Duration = Duration::from_secs(60);

/// One more stays if the rate with it is so many times the one without.
const WORTHWHILE_RATIO: f64 = 1.1;

/// After a trial in which one more brought nothing, the next one waits so long, twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
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
    pub(super) moved_bytes: u64,
    /// Whether operations are queued or under way.
    pub(super) is_pending: bool,
}

/// What was done in some time.
#[derive(Clone, Copy, Default)]
struct Measured {
    time_s: f64,
    processor_s: f64,
    moved_bytes: f64,
}

impl Measured {
    fn between(earlier: Sample, later: Sample) -> Self {
        Self {
            time_s: (later.at - earlier.at).as_secs_f64(),
            processor_s: later.processor.saturating_sub(earlier.processor).as_secs_f64(),
            moved_bytes: later.moved_bytes.saturating_sub(earlier.moved_bytes) as f64,
        }
    }

    fn add(&mut self, other: Self) {
        self.time_s += other.time_s;
        self.processor_s += other.processor_s;
        self.moved_bytes += other.moved_bytes;
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
    current: Measured,
    /// With fewer, and with one more.
    sides: [Measured; 2],
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
        let is_counted = last.is_pending && sample.is_pending;
        if !is_counted || sample.at.saturating_duration_since(last.at) > LONGEST_STEP {
            return active;
        }
        let measured = Measured::between(last, sample);
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
            let (settling, current) = Default::default();
            let sides = Default::default();
            self.trial =
                Some(Trial { began: now, fewer: active, leg: 0, settling, current, sides });
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
            trial.current.add(measured);
        }
        if let Some(leg) = trial.current.take_after(LEG) {
            trial.sides[trial.leg % 2].add(leg);
            trial.settling = Measured::default();
            trial.leg += 1;
        }
        if trial.leg < LEGS {
            let active = fewer + trial.leg % 2;
            self.trial = Some(trial);
            return active;
        }
        let [without, with] = trial.sides.map(|side| side.moved_bytes / side.time_s);
        (self.busy, self.spare) = Default::default();
        if with >= WORTHWHILE_RATIO * without {
            self.pause = FIRST_PAUSE;
            return fewer + 1;
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
    }

    impl Load {
        fn new(most: usize) -> Self {
            let (at, processor) = (Instant::now(), Duration::ZERO);
            let sample = Sample { at, processor, moved_bytes: 0, is_pending: true };
            Self { scaling: Scaling::new(most, 0.9), sample, active: 1 }
        }

        /// For so long all reactors are busy for a `share` of the time, and as many as `rates` has each move that much in a step.
        fn pass(&mut self, time: Duration, share: f64, rates: &[u64]) -> usize {
            let end = self.sample.at + time;
            let mut most_active = self.active;
            while self.sample.at < end {
                self.sample.at += STEP;
                self.sample.processor += STEP.mul_f64(share * self.active as f64);
                self.sample.moved_bytes += rates[self.active - 1];
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
        assert_eq!(load.pass(SECOND * 3 / 10, 1.0, &[100, 180, 190]), 2);
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
        assert_eq!(legs.len(), 8, "{legs:?}");
        for (leg, about) in legs.iter().zip([0, 0, 10, 10, 30, 30, 71, 71]) {
            assert!((about - 1..=about + 1).contains(leg), "{legs:?}");
        }
        assert_eq!(load.active, 1);
    }

    #[test]
    fn reactors_that_are_not_busy_get_no_help() {
        let mut load = Load::new(2);
        assert_eq!(load.pass(5 * SECOND, 0.8, &[100, 200]), 1);
        load.sample.is_pending = false;
        assert_eq!(load.pass(5 * SECOND, 1.0, &[100, 200]), 1, "nothing is asked of them");
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
        load.pass(SECOND * 3 / 20, 1.0, &[100, 200]);
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
        load.pass(SECOND * 3 / 20, 1.0, &[100, 200]);
        load.scaling.limit(1);
        load.active = 1;
        assert_eq!(load.pass(20 * SECOND, 1.0, &[100, 200]), 1);
    }
}
