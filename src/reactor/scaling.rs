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

/// A trial has legs with fewer reactors and with one more in turns, the first two of them short.
const SHORT_LEG: Duration = Duration::from_millis(25);
const LEG: Duration = Duration::from_millis(50);

/// When a trial is judged: after so many legs, one more stays where the rate with it is that many times the one without, and goes
/// where it is not that many times. In between the trial goes on.
const VERDICTS: [(usize, f64, f64); 3] = [(2, 1.4, 0.0), (4, 1.2, 1.0), (8, 1.1, 1.1)];

/// What was measured for less than so long on either side does not count.
const LEAST_COMPARED: Duration = Duration::from_millis(12);

/// From this share on of what moved it was loads, or stores; else it was both.
const MOSTLY: f64 = 0.8;

/// After each change, before it is measured.
const SETTLING: Duration = Duration::from_millis(10);

/// A trial that is not through by then says nothing: the load has changed. Bursts may lie far apart.
const LONGEST_TRIAL: Duration = Duration::from_secs(60);

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

    /// What it was that moved, if anything did: loads, stores or both.
    fn kind(self) -> Option<usize> {
        let all_bytes = self.all_bytes();
        let is_mostly = |bytes: &f64| *bytes >= MOSTLY * all_bytes;
        (all_bytes > 0.0).then(|| self.moved_bytes.iter().position(is_mostly).unwrap_or(2))
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
    /// What moved last.
    kind: usize,
    /// Of loads, stores and both: with fewer, and with one more.
    kinds: [[Measured; 2]; 3],
}

impl Trial {
    fn new(began: Instant, fewer: usize) -> Self {
        let (leg, settling, leg_time_s, kind, kinds) = Default::default();
        Self { began, fewer, leg, settling, leg_time_s, kind, kinds }
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

    /// After a leg: whether one more stays, once that is known.
    fn verdict(&self) -> Option<bool> {
        let (_, stays_from, goes_below) =
            VERDICTS.into_iter().find(|(legs, ..)| *legs == self.leg)?;
        let ratio = self.ratio()?;
        (ratio >= stays_from || ratio < goes_below).then_some(ratio >= stays_from)
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
            trial.kind = measured.kind().unwrap_or(trial.kind);
            trial.kinds[trial.kind][trial.leg % 2].add(measured);
            trial.leg_time_s += measured.time_s;
        }
        let leg = if trial.leg < 2 { SHORT_LEG } else { LEG };
        let mut verdict = None;
        if trial.leg_time_s >= leg.as_secs_f64() {
            (trial.settling, trial.leg_time_s) = Default::default();
            trial.leg += 1;
            verdict = trial.verdict();
            if verdict.is_none() && trial.leg == VERDICTS[VERDICTS.len() - 1].0 {
                trial = Trial { began: trial.began, ..Trial::new(now, fewer) };
            }
        }
        let Some(stays) = verdict else {
            let active = trial.active();
            self.trial = Some(trial);
            return active;
        };
        (self.busy, self.spare) = Default::default();
        if stays {
            self.pause = FIRST_PAUSE;
            return fewer + 1;
        }
        self.paused_until = Some(now + self.pause);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        fewer
    }
}

#[cfg(test)]
mod tests;
