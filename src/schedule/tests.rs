//! The scheduler against what its first lines say.

mod due;
mod late;
mod model;

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const LOADS_ELSEWHERE: Elsewhere = Elsewhere {
    are_loads_present: true,
    loads: InFlight { pieces: 0, bytes: 0 },
    sets: InFlight { pieces: 0, bytes: 0 },
};

const LIMITS: Limits = Limits {
    queue_depth: 4,
    max_io_bytes: 1000,
    max_in_flight_bytes: 4000,
    set_in_flight_bytes: 3000,
    set_in_flight_between_loads_bytes: 2000,
    set_in_flight_while_loading_bytes: 1000,
    set_max_wait: Duration::from_millis(100),
};

/// Pieces granted and not finished.
fn pieces_in_flight(scheduler: &Scheduler) -> usize {
    scheduler.in_flight.iter().map(|line| line.pieces).sum()
}

/// A scheduler with a clock that the test turns.
struct Clocked {
    scheduler: Scheduler,
    now: Instant,
}

impl Clocked {
    fn new(limits: Limits) -> Self {
        Self { scheduler: Scheduler::new(limits), now: Instant::now() }
    }

    fn push(&mut self, class: Class, id: usize, bytes: u64) -> Ticket {
        self.scheduler.push(class, id, bytes, self.now)
    }

    fn grant(&mut self) -> Option<Grant> {
        self.scheduler.next_grant(self.now, &Elsewhere::default())
    }

    /// Ids of everything that may start now.
    fn grants(&mut self) -> Vec<usize> {
        std::iter::from_fn(|| self.grant()).map(|grant| grant.id).collect()
    }

    /// Takes a SET back whose first piece was granted, as a reactor does that does not begin it.
    fn take_back(&mut self, ticket: Ticket, first: Grant, bytes: u64) -> Ticket {
        self.scheduler.finish(first);
        self.scheduler.cancel_rest(ticket);
        self.scheduler.push_first(first.id, bytes, self.now)
    }

    fn wait(&mut self, wait_ms: u64) {
        self.now += Duration::from_millis(wait_ms);
    }
}

#[test]
fn what_is_given_back_is_next_again_and_loads_go_before_it() {
    let mut clocked = Clocked::new(Limits { set_in_flight_while_loading_bytes: 0, ..LIMITS });
    let ticket = clocked.push(Class::Set, 1, 2500);
    clocked.push(Class::Set, 2, 10);
    let first = clocked.grant().unwrap();
    let ticket = clocked.take_back(ticket, first, 2500);
    assert_eq!(clocked.grant(), Some(first));
    clocked.take_back(ticket, first, 2500);
    clocked.push(Class::Get, 3, 10);
    let load = clocked.grant().unwrap();
    assert_eq!((load.id, clocked.grant()), (3, None), "the SET waits while something is loaded");
    clocked.scheduler.finish(load);
    assert_eq!(clocked.grant(), Some(first));
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
    clocked.push(Class::Get, 4, 900);
    assert_eq!(clocked.grants(), [4], "alone in its class");
}

#[test]
fn a_class_leaves_the_others_their_room() {
    let mut clocked = Clocked::new(LIMITS);
    for id in 0..9 {
        clocked.push(Class::Set, id, 1000);
    }
    assert_eq!(clocked.grants(), [0, 1, 2]);
    for id in 10..14 {
        clocked.push(Class::Get, id, 1000);
    }
    assert_eq!(clocked.grants(), [10, 11, 12, 13], "loads beside stores");

    let mut clocked = Clocked::new(LIMITS);
    for id in 0..4 {
        clocked.push(Class::Get, id, 1000);
    }
    clocked.push(Class::Set, 4, 1000);
    assert_eq!(clocked.grants(), [0, 1, 2, 3, 4], "a store beside loads");
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
    // Nobody looks meanwhile: it is the end of the load that counts.
    clocked.wait(300);
    clocked.scheduler.finish(load);
    assert_eq!(clocked.grants(), [3], "two soon after it");
    clocked.wait(249);
    assert!(clocked.grants().is_empty(), "a quarter of a second is not over");
    clocked.wait(1);
    assert_eq!(clocked.grants(), [4], "three long after it");
}

#[test]
fn loads_elsewhere_count_as_loads() {
    let mut clocked = Clocked::new(LIMITS);
    for id in 1..4 {
        clocked.push(Class::Set, id, 1000);
    }
    assert_eq!(
        clocked.scheduler.next_grant(clocked.now, &LOADS_ELSEWHERE).map(|grant| grant.id),
        Some(1)
    );
    clocked.wait(300);
    assert_eq!(clocked.scheduler.next_grant(clocked.now, &LOADS_ELSEWHERE), None);
    clocked.wait(249);
    assert_eq!(clocked.grants(), [2]);
    clocked.wait(1);
    assert_eq!(clocked.grants(), [3]);
}

#[test]
fn without_a_budget_for_it_a_set_waits_for_loads_but_not_between_them() {
    let mut clocked = Clocked::new(Limits {
        set_in_flight_between_loads_bytes: 0,
        set_in_flight_while_loading_bytes: 999,
        ..LIMITS
    });
    clocked.push(Class::Get, 1, 10);
    clocked.push(Class::Set, 2, 1000);
    clocked.push(Class::Set, 3, 1000);
    let load = clocked.grant().unwrap();
    assert_eq!(clocked.grant(), None, "although nothing of it is in flight");
    clocked.scheduler.finish(load);
    assert_eq!(clocked.grants(), [2], "one goes if none is in flight");
}

#[test]
fn freeing_goes_on_while_loads_fill_the_device() {
    let mut clocked = Clocked::new(LIMITS);
    for id in 0..9 {
        clocked.push(Class::Get, id, 1000);
    }
    for id in 9..15 {
        clocked.push(Class::Delete, id, 0);
    }
    clocked.push(Class::Set, 15, 1);
    assert_eq!(clocked.grants(), [0, 1, 2, 3, 9, 10, 11, 12, 13, 14]);
}

#[test]
fn the_rest_of_a_failed_operation_is_taken_back_and_nothing_else() {
    let mut clocked = Clocked::new(LIMITS);
    let tickets = [1, 2, 3].map(|id| clocked.scheduler.push(Class::Set, id, 1500, clocked.now));
    let failed = clocked.grant().unwrap();
    clocked.scheduler.finish(failed);
    clocked.scheduler.cancel_rest(tickets[0]);
    let next = [clocked.grant().unwrap(), clocked.grant().unwrap()];
    assert_eq!(next.map(|grant| (grant.id, grant.offset_bytes)), [(2, 0), (2, 1000)]);
    // Of this one nothing is left in the queue.
    clocked.scheduler.cancel_rest(tickets[1]);
    assert_eq!(clocked.grant().map(|grant| (grant.id, grant.offset_bytes)), Some((3, 0)));
}

#[test]
fn clearing_takes_everything_that_waits() {
    let mut clocked = Clocked::new(LIMITS);
    for class in [Class::Get, Class::Delete, Class::Set] {
        clocked.push(class, class as usize, 1500);
    }
    let piece = clocked.grant().unwrap();
    clocked.scheduler.clear();
    assert_eq!((clocked.grant(), clocked.scheduler.is_empty()), (None, true));
    assert_eq!(pieces_in_flight(&clocked.scheduler), 1, "what is granted is to be finished");
    clocked.scheduler.finish(piece);
    assert_eq!(pieces_in_flight(&clocked.scheduler), 0);
}

/// Who holds a ticket of what was cleared takes nothing of what came since.
#[test]
fn tickets_of_what_was_cleared_are_nobody_s() {
    let mut clocked = Clocked::new(LIMITS);
    let push = |clocked: &mut Clocked, id| clocked.scheduler.push(Class::Set, id, 500, clocked.now);
    let before = [1, 2, 3].map(|id| push(&mut clocked, id));
    clocked.scheduler.clear();
    (4..10).for_each(|id| _ = push(&mut clocked, id));
    before.into_iter().for_each(|ticket| clocked.scheduler.cancel_rest(ticket));
    assert_eq!(clocked.grants(), [4, 5, 6, 7]);
}

/// A SET that was under way when the queues were cleared may come back.
#[test]
fn what_is_taken_back_after_a_clearing_is_the_next() {
    let mut clocked = Clocked::new(LIMITS);
    let ticket = clocked.push(Class::Set, 1, 500);
    let grant = clocked.grant().unwrap();
    clocked.scheduler.clear();
    clocked.take_back(ticket, grant, 500);
    assert_eq!(clocked.grants(), [1]);
}

proptest! {
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

#[test]
fn a_set_that_is_taken_back_is_the_next_again() {
    let mut clocked = Clocked::new(LIMITS);
    let tickets = [1, 2, 3].map(|id| clocked.push(Class::Set, id, 1500));
    let first = clocked.grant().unwrap();
    assert_eq!((first.id, first.length_bytes), (1, 1000));
    // In part, and as a whole.
    assert_eq!(clocked.take_back(tickets[0], first, 1500), tickets[0]);
    let grants: Vec<Grant> = std::iter::from_fn(|| clocked.grant()).take(2).collect();
    assert_eq!(grants[0], first);
    clocked.scheduler.finish(grants[1]);
    let whole = Grant { length_bytes: 1000, ..grants[0] };
    assert_eq!(clocked.take_back(tickets[0], whole, 1500), tickets[0]);
    clocked.scheduler.hold_sets(true);
    assert_eq!(clocked.grant(), None);
}

/// What is put in front has the number of one that is gone: who holds its ticket takes nothing.
#[test]
fn a_ticket_of_what_is_not_in_the_queue_is_nobody_s() {
    let mut clocked = Clocked::new(LIMITS);
    let [first, _] = [0, 1].map(|id| clocked.scheduler.push(Class::Set, id, 1000, clocked.now));
    let granted = clocked.grant().unwrap();
    clocked.scheduler.finish(granted);
    let put_in_front = clocked.scheduler.push_first(2, 1000, clocked.now);
    clocked.scheduler.cancel_rest(first);
    assert_ne!(put_in_front, first);
    assert_eq!(clocked.grants(), [2, 1]);
}

#[test]
fn what_others_have_in_the_device_counts_but_one_piece_goes() {
    let mut clocked = Clocked::new(LIMITS);
    let in_flight = |pieces, bytes| InFlight { pieces, bytes };
    let full =
        Elsewhere { loads: in_flight(1, LIMITS.max_in_flight_bytes), ..Elsewhere::default() };
    (0..4).for_each(|id| _ = clocked.push(Class::Get, id, 1000));
    let mut grant = |elsewhere: &Elsewhere| {
        clocked.scheduler.next_grant(clocked.now, elsewhere).map(|grant| grant.id)
    };
    assert_eq!((grant(&full), grant(&full)), (Some(0), None), "bytes");
    let deep = Elsewhere { loads: in_flight(LIMITS.queue_depth - 1, 1), ..full };
    assert_eq!(grant(&deep), None, "transfers");
    let deep = Elsewhere { loads: in_flight(LIMITS.queue_depth - 2, 1), ..full };
    assert_eq!(grant(&deep), Some(1));
    let of_sets = Elsewhere { sets: full.loads, ..Elsewhere::default() };
    assert_eq!(grant(&of_sets), Some(2), "loads have their own");
}
