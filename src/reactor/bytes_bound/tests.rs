//! The bound on devices that are simulated: what moves in a step follows from the bound.

use super::*;

const STEP: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

const LOADS: usize = 0;
const STORES: usize = 1;

/// A load on a device, as time passes by in steps.
struct Load {
    bound: BytesBound,
    now: Instant,
    told: OfLoadsAndStores<Saturated>,
    bytes: u64,
    /// How far the rate is off at most, for 40 ms each time.
    noise: f64,
    random: u64,
    factor: f64,
    steps: u64,
}

impl Load {
    fn new() -> Self {
        Self {
            bound: BytesBound::new(48 * MIB, 6 * MIB, 192 * MIB),
            now: Instant::now(),
            told: Default::default(),
            bytes: 48 * MIB,
            noise: 0.0,
            random: 1,
            factor: 1.0,
            steps: 0,
        }
    }

    /// For so long more of a class is queued than goes in, and so many bytes of it move in a second. Returns every bound that
    /// held, each once in a row.
    fn pass(&mut self, time: Duration, class: usize, rate: impl Fn(u64) -> f64) -> Vec<u64> {
        self.pass_unsteadily(time, class, rate, true)
    }

    fn pass_unsteadily(
        &mut self,
        time: Duration,
        class: usize,
        rate: impl Fn(u64) -> f64,
        is_steady: bool,
    ) -> Vec<u64> {
        let mut bounds = vec![self.bytes / MIB];
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.told[class].time += STEP;
            let rate = rate(self.bytes) * self.noise_factor();
            self.told[class].moved_bytes += (rate * STEP.as_secs_f64()) as u64;
            self.bytes = self.bound.step(self.now, self.told, is_steady);
            bounds.push(self.bytes / MIB);
        }
        bounds.dedup();
        bounds
    }

    fn noise_factor(&mut self) -> f64 {
        self.steps += 1;
        if self.steps.is_multiple_of(8) {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.factor = 1.0 + self.noise * (2.0 * (self.random % 1000) as f64 / 999.0 - 1.0);
        }
        self.factor
    }

    /// The bound while nothing is tried, in MiB.
    fn found(&self, class: usize) -> u64 {
        self.bound.searches[class].bound_bytes / MIB
    }
}

/// A device that gains by depth up to this.
fn gains_until(most_bytes: u64) -> impl Fn(u64) -> f64 {
    move |bytes| bytes.min(most_bytes) as f64 * 100.0
}

fn flat(_: u64) -> f64 {
    5e9
}

#[test]
fn a_device_that_gains_by_depth_gets_as_much_as_it_gains_from() {
    let mut load = Load::new();
    let bounds = load.pass(2 * SECOND, LOADS, gains_until(96 * MIB));
    assert!(bounds.starts_with(&[48, 96, 48, 96, 192, 96]), "tried, kept, tried again: {bounds:?}");
    load.pass(20 * SECOND, LOADS, gains_until(96 * MIB));
    assert_eq!(load.found(LOADS), 96);
    assert_eq!(load.found(STORES), 48, "nothing was stored");

    let mut load = Load::new();
    load.pass(20 * SECOND, LOADS, gains_until(1 << 40));
    assert_eq!(load.found(LOADS), 192, "and not more than goes into the device");
}

#[test]
fn a_flat_device_gets_little_and_is_asked_less_and_less_often() {
    let mut load = Load::new();
    load.pass(30 * SECOND, STORES, flat);
    assert_eq!((load.found(STORES), load.bytes / MIB), (6, 6));
    let mut trials = Vec::new();
    for second in 30..330 {
        let before = load.bytes;
        if before == 6 * MIB && load.pass(SECOND, STORES, flat) != [6] {
            trials.push(second);
        } else if before != 6 * MIB {
            load.pass(SECOND, STORES, flat);
        }
    }
    let gaps: Vec<i32> =
        trials.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 5).collect();
    assert!(gaps.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2), "{trials:?}");
    assert!((2..=4).contains(&gaps.len()), "{trials:?}");
}

#[test]
fn a_device_that_needs_what_it_has_keeps_it() {
    let mut load = Load::new();
    let bounds = load.pass(20 * SECOND, LOADS, gains_until(48 * MIB));
    assert!(bounds.contains(&96) && bounds.contains(&24), "{bounds:?}");
    assert_eq!(load.found(LOADS), 48);
}

#[test]
fn noise_of_three_percent_decides_nothing() {
    for seed in 1..50 {
        let noisy = || Load { noise: 0.03, random: seed, ..Load::new() };
        let mut load = noisy();
        load.pass(60 * SECOND, LOADS, gains_until(48 * MIB));
        assert_eq!(load.found(LOADS), 48, "seed {seed}");
        let mut load = noisy();
        load.pass(60 * SECOND, LOADS, flat);
        assert!(load.found(LOADS) <= 48, "seed {seed}: {}", load.found(LOADS));
        let mut load = noisy();
        load.pass(60 * SECOND, LOADS, gains_until(96 * MIB));
        assert_eq!(load.found(LOADS), 96, "seed {seed}");
    }
}

#[test]
fn half_that_seems_faster_for_a_moment_is_measured_for_longer() {
    let mut load = Load::new();
    while load.bytes >= 48 * MIB {
        load.pass(STEP, STORES, flat);
    }
    // Time for two rounds.
    load.pass(
        2 * SECOND,
        STORES,
        |bytes| if bytes < 48 * MIB { 2.0 * flat(bytes) } else { flat(bytes) },
    );
    assert_eq!(load.found(STORES), 48);
    load.pass(5 * SECOND, STORES, gains_until(48 * MIB));
    assert_eq!(load.found(STORES), 48);
}

#[test]
fn a_device_whose_bound_holds_nothing_back_is_left_alone() {
    let mut load = Load::new();
    for _ in 0..1000 {
        load.now += STEP;
        assert_eq!(load.bound.step(load.now, load.told, true), 48 * MIB);
    }
    load.pass(SATURATED_FOR - STEP, LOADS, flat);
    assert_eq!(load.bytes, 48 * MIB);
}

#[test]
fn loads_and_stores_have_their_own() {
    let mut load = Load::new();
    load.pass(20 * SECOND, STORES, flat);
    assert_eq!(load.found(STORES), 6);
    load.pass(20 * SECOND, LOADS, gains_until(48 * MIB));
    assert_eq!((load.found(LOADS), load.found(STORES)), (48, 6));
    assert_eq!(load.bytes, 48 * MIB);
    load.pass(STEP, STORES, flat);
    assert_eq!(load.bytes, 6 * MIB, "stores are under way");
}

#[test]
fn what_else_moves_during_a_trial_does_not_count() {
    let mut load = Load::new();
    // Loads gain nothing; stores move fast, and only while more is tried for loads.
    for _ in 0..4000 {
        load.pass(5 * STEP, LOADS, gains_until(48 * MIB));
        if load.bytes > 48 * MIB {
            load.pass(STEP, STORES, |_| 1e12);
        }
    }
    assert_eq!(load.found(LOADS), 48);
}

#[test]
fn a_trial_ends_without_a_word_when_reactors_come_or_the_load_goes() {
    let mut load = Load::new();
    load.pass(SECOND * 3 / 10, LOADS, gains_until(1 << 40));
    assert_eq!(load.bytes, 96 * MIB, "in the middle of the trial");
    load.pass_unsteadily(STEP, LOADS, gains_until(1 << 40), false);
    assert_eq!((load.bytes, load.found(LOADS)), (48 * MIB, 48));
    load.pass(SECOND * 3 / 10, LOADS, gains_until(1 << 40));
    assert_eq!(load.bytes, 96 * MIB, "it is made anew");
    load.now += 2 * LONGEST_TRIAL;
    load.pass(STEP, LOADS, gains_until(1 << 40));
    assert_eq!((load.bytes, load.found(LOADS)), (48 * MIB, 48));
}

#[test]
fn loads_need_not_wait_for_the_trial_of_stores_to_end() {
    let mut load = Load::new();
    load.pass(SECOND * 3 / 10, STORES, gains_until(1 << 40));
    assert_eq!(load.bytes, 96 * MIB, "in the middle of the trial");
    load.pass(SECOND, LOADS, gains_until(96 * MIB));
    assert_eq!((load.found(LOADS), load.found(STORES)), (96, 48));
    load.pass(SECOND, STORES, gains_until(96 * MIB));
    assert_eq!(load.found(STORES), 96);
}

#[test]
fn an_account_counts_from_when_as_much_has_moved_as_is_under_way() {
    let mut account = Account::default();
    let start = Instant::now();
    let mut moved = [0, 0];
    let mut look = |ms: u64, bytes: u64, held_back| {
        moved[LOADS] += bytes;
        moved[STORES] += 1;
        account.look(start + Duration::from_millis(ms), moved, held_back, 100);
        account.totals[LOADS]
    };
    let loads = Some(Class::Get);
    look(0, 1000, loads);
    assert_eq!(look(10, 60, loads), Saturated::default());
    assert_eq!(look(20, 60, loads), Saturated::default());
    let expected = Saturated { time: Duration::from_millis(10), moved_bytes: 60 };
    assert_eq!(look(30, 60, None), expected);
    assert_eq!(look(40, 60, loads), expected, "nothing was held back");
    assert_eq!(look(50, 60, loads), expected, "it begins anew");
    assert_eq!(account.totals[STORES], Saturated::default());
}
