//! The scheduler against what its first lines say.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    queue_depth: 4,
    max_io_bytes: 1000,
    max_in_flight_bytes: 4000,
    set_in_flight_bytes: 3000,
    set_in_flight_between_loads_bytes: 2000,
    set_in_flight_while_loading_bytes: 1000,
    set_max_wait: Duration::from_millis(100),
};

/// A scheduler with a clock that the test turns.
struct Clocked {
    scheduler: Scheduler,
    now: Instant,
}

impl Clocked {
    fn new(limits: Limits) -> Self {
        Self { scheduler: Scheduler::new(limits), now: Instant::now() }
    }

    fn push(&mut self, class: Class, id: usize, bytes: u64) {
        self.scheduler.push(class, id, bytes, self.now);
    }

    fn grant(&mut self) -> Option<Grant> {
        self.scheduler.next_grant(self.now, false)
    }

    /// Ids of everything that may start now.
    fn grants(&mut self) -> Vec<usize> {
        std::iter::from_fn(|| self.grant()).map(|grant| grant.id).collect()
    }

    fn wait(&mut self, wait_ms: u64) {
        self.now += Duration::from_millis(wait_ms);
    }
}

#[test]
fn classes_overtake_in_the_middle_of_a_long_set() {
    let mut clocked = Clocked::new(Limits {
        set_in_flight_bytes: 1000,
        set_in_flight_between_loads_bytes: 1000,
        ..LIMITS
    });
    clocked.push(Class::Set, 1, 2500);
    let first = clocked.grant().unwrap();
    assert_eq!((first.id, first.offset_bytes, first.length_bytes), (1, 0, 1000));
    assert_eq!(clocked.grant(), None, "the budget of SETs is used up");
    clocked.push(Class::Delete, 2, 0);
    clocked.push(Class::Get, 3, 10);
    assert_eq!(clocked.grants(), [3, 2]);
    clocked.scheduler.finish(first);
    let second = clocked.grant().unwrap();
    assert_eq!((second.id, second.offset_bytes), (1, 1000));
}

#[test]
fn a_piece_larger_than_the_bound_still_goes_alone() {
    let mut clocked =
        Clocked::new(Limits { max_in_flight_bytes: 10, set_in_flight_bytes: 10, ..LIMITS });
    clocked.push(Class::Get, 1, 900);
    clocked.push(Class::Get, 2, 1);
    let large = clocked.grant().unwrap();
    assert_eq!(clocked.grant(), None);
    clocked.scheduler.finish(large);
    let small = clocked.grant().unwrap();
    assert_eq!(small.id, 2);
    clocked.scheduler.finish(small);
    clocked.push(Class::Set, 3, 900);
    assert_eq!(clocked.grants(), [3]);
}

#[test]
fn sets_have_less_room_while_loads_wait_or_are_under_way() {
    let mut clocked = Clocked::new(LIMITS);
    clocked.push(Class::Get, 1, 10);
    for id in 2..6 {
        clocked.push(Class::Set, id, 1000);
    }
    let load = clocked.grant().unwrap();
    assert_eq!(clocked.grants(), [2], "one piece beside a load");
    clocked.scheduler.finish(load);
    assert_eq!(clocked.grants(), [3], "two soon after it");
    clocked.wait(LOADS_RECUR_WITHIN.as_millis() as u64);
    assert_eq!(clocked.grants(), [4], "three long after it");
}

#[test]
fn loads_elsewhere_count_as_loads() {
    let mut clocked = Clocked::new(LIMITS);
    clocked.push(Class::Set, 1, 1000);
    clocked.push(Class::Set, 2, 1000);
    assert_eq!(clocked.scheduler.next_grant(clocked.now, true).map(|grant| grant.id), Some(1));
    assert_eq!(clocked.scheduler.next_grant(clocked.now, true), None);
    assert_eq!(clocked.grants(), [2]);
}

#[test]
fn a_set_that_has_waited_long_enough_goes_ahead_of_loads_one_piece_at_a_time() {
    let mut clocked = Clocked::new(Limits { set_in_flight_while_loading_bytes: 0, ..LIMITS });
    clocked.push(Class::Set, 1, 1500);
    for id in 2..5 {
        clocked.push(Class::Get, id, 10);
    }
    let load = clocked.grant().unwrap();
    assert_eq!(load.id, 2);
    clocked.wait(99);
    assert_eq!(clocked.grant().unwrap().id, 3);
    clocked.wait(1);
    let piece = clocked.grant().unwrap();
    assert_eq!((piece.id, piece.offset_bytes), (1, 0));
    assert_eq!(clocked.grants(), [4], "the second piece waits for the first");
    clocked.scheduler.finish(piece);
    assert_eq!(clocked.grants(), [1]);
}

#[test]
fn freeing_goes_on_while_loads_fill_the_device() {
    let mut clocked = Clocked::new(LIMITS);
    for id in 0..9 {
        clocked.push(Class::Get, id, 1000);
    }
    clocked.push(Class::Delete, 9, 0);
    clocked.push(Class::Set, 10, 1);
    assert_eq!(clocked.grants(), [0, 1, 2, 3, 9]);
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Get), Just(Class::Delete), Just(Class::Set)]
}

/// What one random step does: queue something, take some grants, let time pass.
fn step() -> impl Strategy<Value = (Class, u64, usize, u64)> {
    (class(), 1_u64..5000, 0_usize..4, 0_u64..30)
}

proptest! {
    /// Limits hold, pieces cover each operation once and in order, FIFO holds inside a class, no SET goes while a load
    /// waits unless it is due, and nothing is lost or stuck.
    #[test]
    fn order_and_bounds(steps in prop::collection::vec(step(), 1..200)) {
        let mut clocked = Clocked::new(LIMITS);
        let mut waiting: [VecDeque<(usize, u64, Instant)>; 3] = Default::default();
        let mut offsets: HashMap<usize, u64> = HashMap::new();
        let mut flying: VecDeque<Grant> = VecDeque::new();
        let mut queued = 0;
        for (id, (class, bytes, takes, wait_ms)) in steps.into_iter().enumerate() {
            let bytes = if class == Class::Delete { 0 } else { bytes };
            clocked.push(class, id, bytes);
            waiting[class as usize].push_back((id, bytes, clocked.now));
            queued += 1;
            clocked.wait(wait_ms);
            for _ in 0..takes {
                let loads = waiting[Class::Get as usize].len()
                    + flying.iter().filter(|grant| grant.class == Class::Get).count();
                let Some(grant) = clocked.grant() else {
                    let Some(done) = flying.pop_front() else { break };
                    clocked.scheduler.finish(done);
                    continue;
                };
                let front = waiting[grant.class as usize].front().copied();
                let (front_id, total, since) = front.expect("granted from an empty class");
                prop_assert_eq!(grant.id, front_id);
                let is_due = clocked.now - since >= LIMITS.set_max_wait;
                if grant.class == Class::Set && !waiting[Class::Get as usize].is_empty() {
                    prop_assert!(is_due);
                }
                let offset = offsets.entry(grant.id).or_default();
                prop_assert_eq!(grant.offset_bytes, *offset);
                prop_assert!(grant.length_bytes <= LIMITS.max_io_bytes);
                *offset += grant.length_bytes;
                if *offset == total {
                    waiting[grant.class as usize].pop_front();
                    queued -= 1;
                }
                if grant.length_bytes == 0 {
                    clocked.scheduler.finish(grant);
                    continue;
                }
                flying.push_back(grant);
                let same: Vec<_> =
                    flying.iter().filter(|other| other.class == grant.class).collect();
                prop_assert!(same.len() <= LIMITS.queue_depth);
                let bytes: u64 = same.iter().map(|grant| grant.length_bytes).sum();
                prop_assert!(same.len() == 1 || bytes <= LIMITS.max_in_flight_bytes);
                let sets = flying.iter().filter(|grant| grant.class == Class::Set);
                let set_bytes: u64 = sets.map(|grant| grant.length_bytes).sum();
                if grant.class == Class::Set {
                    let budget = match loads {
                        0 => LIMITS.set_in_flight_bytes,
                        _ => LIMITS.set_in_flight_while_loading_bytes,
                    };
                    prop_assert!(set_bytes <= budget || set_bytes == grant.length_bytes);
                }
            }
        }
        while queued > 0 || !flying.is_empty() {
            if let Some(grant) = clocked.grant() {
                let taken = offsets.entry(grant.id).or_default();
                *taken += grant.length_bytes;
                let front = waiting[grant.class as usize].front();
                if front.is_some_and(|(_, total, _)| *total == *taken) {
                    waiting[grant.class as usize].pop_front();
                    queued -= 1;
                }
                flying.push_back(grant);
            } else {
                let done = flying.pop_front();
                prop_assert!(done.is_some(), "stuck with {} queued", queued);
                done.into_iter().for_each(|done| clocked.scheduler.finish(done));
            }
        }
        prop_assert!(clocked.scheduler.is_empty() && clocked.scheduler.in_flight() == 0);
    }

    /// Under endless loads every SET is through after its wait, as fast as the device takes one piece after the other.
    #[test]
    fn no_set_starves(lengths in prop::collection::vec(1_u64..5000, 1..20)) {
        let mut clocked = Clocked::new(Limits { set_in_flight_while_loading_bytes: 0, ..LIMITS });
        let mut left: u64 = lengths.iter().sum();
        let pieces: u64 = lengths.iter().map(|length| length.div_ceil(LIMITS.max_io_bytes)).sum();
        for (id, length) in lengths.iter().enumerate() {
            clocked.push(Class::Set, id, *length);
        }
        clocked.wait(100);
        let mut flying = VecDeque::new();
        let mut turns = 0;
        while left > 0 {
            clocked.push(Class::Get, 1000 + turns as usize, 1000);
            while let Some(grant) = clocked.grant() {
                left -= if grant.class == Class::Set { grant.length_bytes } else { 0 };
                flying.push_back(grant);
            }
            let done = flying.pop_front().expect("something in flight");
            clocked.scheduler.finish(done);
            turns += 1;
            prop_assert!(turns <= (pieces + 1) * (LIMITS.queue_depth as u64 + 1), "starved");
        }
    }
}
