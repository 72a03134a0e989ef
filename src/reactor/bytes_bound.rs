//! How many bytes are in the device at a time: as many as its depth lets expect to begin with, then as many as still raise
//! throughput.
//!
//! While more is queued than the bound lets into the device, a trial compares the present bound with twice of it, in turns. Where
//! that brings nothing it is compared with half of it: fewer bytes in the device are shorter waits of loads behind stores, and less
//! bounce memory. Loads and stores have a bound each, as a device may gain from depth in one direction alone. The bound of the path
//! is that of the class that last had more queued than it lets in.

use std::mem;
use std::time::{Duration, Instant};

use crate::schedule::Class;

/// After so much time with more queued than goes in, a trial begins.
const SATURATED_FOR: Duration = Duration::from_millis(50);

/// After each change, before it is measured: other reactors tell of what was before it until then.
const SETTLING: Duration = Duration::from_millis(10);

/// The bound that is tried in each leg of a round: the present one (0) or the other (1). A load that grows or falls steadily favours
/// neither.
const LEGS: [usize; 4] = [0, 1, 1, 0];

/// The rounds of a trial: least time of a leg, how many times the larger bound moves in it at least, and how far from the threshold
/// a ratio decides. Some disks answer all that they have at once, so a leg may be off by one such answer. Closer ratios are measured
/// again, for longer, and so is what speaks for fewer bytes; the last round decides.
const ROUNDS: [(Duration, u64, f64); 3] = [
    (Duration::from_millis(50), 8, 0.1),
    (Duration::from_millis(200), 16, 0.03),
    (Duration::from_millis(800), 32, 0.0),
];

/// A trial that is not through by then says nothing: the load has changed, or the device is too slow to tell.
const LONGEST_TRIAL: Duration = Duration::from_secs(300);

/// Twice the bytes stay if throughput is so many times the one without; half of them if it is still so much of it.
const RAISING_RATIO: f64 = 1.05;
const LOWERING_RATIO: f64 = 0.98;

/// After trials of both directions that brought nothing the next one waits so long, twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(320);

/// Time in which more of a class was queued than the bound let into the device, and what moved of it in that time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Saturated {
    pub(super) time: Duration,
    pub(super) moved_bytes: u64,
}

impl Saturated {
    fn since(self, earlier: Self) -> Self {
        Self {
            time: self.time.saturating_sub(earlier.time),
            moved_bytes: self.moved_bytes.saturating_sub(earlier.moved_bytes),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { time: self.time + other.time, moved_bytes: self.moved_bytes + other.moved_bytes }
    }

    fn add(&mut self, other: Self) {
        *self = self.plus(other);
    }

    fn bytes_per_s(self) -> f64 {
        self.moved_bytes as f64 / self.time.as_secs_f64()
    }
}

/// Loads and stores have their own.
pub(super) type OfLoadsAndStores<T> = [T; 2];

pub(super) fn place_of(class: Class) -> usize {
    usize::from(class != Class::Get)
}

/// What one reactor has to tell.
#[derive(Default)]
pub(super) struct Account {
    /// The class that the bound holds back now.
    place: Option<usize>,
    looked_at: Option<Instant>,
    moved_bytes: u64,
    /// Bytes that are still to move before the rest counts: what was under way when this began.
    unsteady_bytes: u64,
    pub(super) totals: OfLoadsAndStores<Saturated>,
}

impl Account {
    /// Counts what was since the last look, in which nothing has changed in between. `held_back` is the class that the bound of
    /// `bound_bytes` holds back from here on; `moved_bytes` is what moved of each until now.
    pub(super) fn look(
        &mut self,
        now: Instant,
        moved_bytes: OfLoadsAndStores<u64>,
        held_back: Option<Class>,
        bound_bytes: u64,
    ) {
        if let (Some(place), Some(before)) = (self.place, self.looked_at) {
            let moved = moved_bytes[place] - self.moved_bytes;
            let time = now.saturating_duration_since(before);
            if self.unsteady_bytes == 0 {
                self.totals[place].add(Saturated { time, moved_bytes: moved });
            }
            self.unsteady_bytes = self.unsteady_bytes.saturating_sub(moved);
        }
        let place = held_back.map(place_of);
        if mem::replace(&mut self.place, place) != place {
            self.unsteady_bytes = bound_bytes;
        }
        self.looked_at = Some(now);
        self.moved_bytes = place.map_or(0, |place| moved_bytes[place]);
    }

    /// There is another bound: what moves at first is still under the old one.
    pub(super) fn begin_anew(&mut self) {
        self.place = None;
    }
}

struct Trial {
    began: Instant,
    tried_bytes: u64,
    round: usize,
    leg: usize,
    settling: Duration,
    current: Saturated,
    sides: [Saturated; 2],
}

/// What is found for loads, or for stores.
struct Search {
    least_bytes: u64,
    most_bytes: u64,
    bound_bytes: u64,
    /// More has brought nothing: less is tried next.
    lowers_next: bool,
    saturated: Duration,
    trial: Option<Trial>,
    paused_until: Option<Instant>,
    pause: Duration,
}

/// Decides how many bytes are in the device at a time.
pub(super) struct BytesBound {
    searches: OfLoadsAndStores<Search>,
    /// Whose bound holds.
    place: usize,
    told: OfLoadsAndStores<Saturated>,
}

impl BytesBound {
    pub(super) fn new(first_bytes: u64, least_bytes: u64, most_bytes: u64) -> Self {
        let searches = [(); 2].map(|()| Search {
            least_bytes,
            most_bytes,
            bound_bytes: first_bytes,
            lowers_next: false,
            saturated: Duration::ZERO,
            trial: None,
            paused_until: None,
            pause: FIRST_PAUSE,
        });
        Self { searches, place: 0, told: Default::default() }
    }

    /// How many bytes are to be in the device from now on. `told` is what all reactors have told until now; `is_steady` says that as
    /// many of them take work as at the last step, and will.
    pub(super) fn step(
        &mut self,
        now: Instant,
        told: OfLoadsAndStores<Saturated>,
        is_steady: bool,
    ) -> u64 {
        let before = mem::replace(&mut self.told, told);
        let measured = [told[0].since(before[0]), told[1].since(before[1])];
        let place = usize::from(measured[1].time > measured[0].time);
        if !is_steady {
            self.searches.iter_mut().for_each(|search| search.trial = None);
        } else if !measured[place].time.is_zero() {
            let is_other = mem::replace(&mut self.place, place) != place;
            self.searches[place].step(measured[place], now, is_other);
        }
        self.searches[self.place].bytes()
    }
}

impl Search {
    /// The bound that holds now.
    fn bytes(&self) -> u64 {
        match &self.trial {
            Some(trial) if LEGS[trial.leg] == 1 => trial.tried_bytes,
            _ => self.bound_bytes,
        }
    }

    /// Takes what was measured. `comes_back`: the other class was measured before.
    fn step(&mut self, measured: Saturated, now: Instant, comes_back: bool) {
        match self.trial.take() {
            None => self.watch(measured.time, now),
            Some(trial) if now.saturating_duration_since(trial.began) > LONGEST_TRIAL => {
                self.pause_from(now);
            }
            Some(mut trial) => {
                if comes_back {
                    trial.settling = Duration::ZERO;
                }
                self.go_on(trial, measured, now);
            }
        }
    }

    fn watch(&mut self, time: Duration, now: Instant) {
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        self.saturated += time;
        if self.saturated < SATURATED_FOR {
            return;
        }
        self.saturated = Duration::ZERO;
        self.lowers_next |= self.bound_bytes >= self.most_bytes;
        let tried_bytes = match self.lowers_next {
            true => (self.bound_bytes / 2).max(self.least_bytes),
            false => (self.bound_bytes * 2).min(self.most_bytes),
        };
        if tried_bytes == self.bound_bytes {
            return self.pause_from(now);
        }
        let (settling, current, sides) = Default::default();
        let (round, leg) = (0, 0);
        self.trial = Some(Trial { began: now, tried_bytes, round, leg, settling, current, sides });
    }

    fn go_on(&mut self, mut trial: Trial, measured: Saturated, now: Instant) {
        let (leg_time, turns, margin) = ROUNDS[trial.round];
        let turn_bytes = trial.tried_bytes.max(self.bound_bytes);
        if trial.settling < SETTLING {
            trial.settling += measured.time;
        } else {
            trial.current.add(measured);
        }
        if trial.current.time >= leg_time && trial.current.moved_bytes >= turns * turn_bytes {
            let side = LEGS[trial.leg];
            trial.sides[side].add(mem::take(&mut trial.current));
            trial.leg += 1;
            if LEGS.get(trial.leg) != Some(&side) {
                trial.settling = Duration::ZERO;
            }
        }
        if trial.leg < LEGS.len() {
            self.trial = Some(trial);
            return;
        }
        let [present, tried] = mem::take(&mut trial.sides).map(Saturated::bytes_per_s);
        let ratio = tried / present;
        let threshold = if self.lowers_next { LOWERING_RATIO } else { RAISING_RATIO };
        // Fewer bytes move no more: where they seem to, it is noise.
        let is_plausible = !self.lowers_next || ratio < threshold;
        let is_clear = is_plausible && (ratio - threshold).abs() >= margin;
        if !is_clear && trial.round + 1 < ROUNDS.len() {
            (trial.leg, trial.round) = (0, trial.round + 1);
            self.trial = Some(trial);
        } else if ratio >= threshold {
            (self.bound_bytes, self.pause) = (trial.tried_bytes, FIRST_PAUSE);
        } else if self.lowers_next {
            self.pause_from(now);
        } else {
            self.lowers_next = true;
        }
    }

    /// No trial has brought anything.
    fn pause_from(&mut self, now: Instant) {
        self.lowers_next = false;
        self.paused_until = Some(now + self.pause);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests;
