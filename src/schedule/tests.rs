//! The scheduler against what its first lines say.

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

    /// The same while others load, with the place and length of each piece.
    fn grants_beside_loads(&mut self) -> Vec<(usize, u64, u64)> {
        let grants = std::iter::from_fn(|| self.scheduler.next_grant(self.now, true));
        grants.map(|grant| (grant.id, grant.offset_bytes, grant.length_bytes)).collect()
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
    assert_eq!(clocked.scheduler.next_grant(clocked.now, true).map(|grant| grant.id), Some(1));
    clocked.wait(300);
    assert_eq!(clocked.scheduler.next_grant(clocked.now, true), None);
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
    clocked.push(Class::Set, 5, 10);
    clocked.wait(1);
    let piece = clocked.grant().unwrap();
    assert_eq!((piece.id, piece.offset_bytes), (1, 0));
    assert_eq!(clocked.grants(), [4], "the second piece waits for the first");
    clocked.scheduler.finish(piece);
    assert_eq!(clocked.grants(), [1]);
}

#[test]
fn a_set_that_is_due_and_does_not_fit_holds_no_load_up() {
    let mut clocked = Clocked::new(Limits {
        set_in_flight_bytes: 9000,
        set_in_flight_between_loads_bytes: 9000,
        set_in_flight_while_loading_bytes: 9000,
        ..LIMITS
    });
    for id in 0..5 {
        clocked.push(Class::Set, id, 1000);
    }
    assert_eq!(clocked.grants(), [0, 1, 2, 3], "the device is full of SETs");
    clocked.wait(100);
    clocked.push(Class::Get, 5, 10);
    assert_eq!(clocked.grants(), [5]);
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
    for id in 1..4 {
        clocked.push(Class::Set, id, 1500);
    }
    let failed = clocked.grant().unwrap();
    clocked.scheduler.finish(failed);
    clocked.scheduler.cancel_rest(Class::Set, 1);
    let next = [clocked.grant().unwrap(), clocked.grant().unwrap()];
    assert_eq!(next.map(|grant| (grant.id, grant.offset_bytes)), [(2, 0), (2, 1000)]);
    // Of this one nothing is left in the queue.
    clocked.scheduler.cancel_rest(Class::Set, 2);
    assert_eq!(clocked.grant().map(|grant| (grant.id, grant.offset_bytes)), Some((3, 0)));
}

#[test]
fn what_a_load_waits_for_goes_ahead_of_other_sets_and_beside_loads() {
    let mut clocked = Clocked::new(Limits { set_in_flight_while_loading_bytes: 0, ..LIMITS });
    let tickets: Vec<Ticket> =
        (0..6).map(|id| clocked.scheduler.push(Class::Set, id, 1500, clocked.now)).collect();
    let first = clocked.grant().unwrap();
    assert_eq!(first.id, 0);
    // Of the first one what is not granted yet.
    for ticket in [tickets[4], tickets[0], tickets[4]] {
        clocked.scheduler.promote(ticket);
    }
    assert_eq!(clocked.grants_beside_loads(), [(4, 0, 1000)], "1000 bytes of 2000 are in flight");
    clocked.scheduler.finish(first);
    assert_eq!(clocked.grants_beside_loads(), [(4, 1000, 500), (0, 1000, 500)]);
    clocked.wait(99);
    assert!(clocked.grants_beside_loads().is_empty(), "the others wait");
}

#[test]
fn the_rest_of_a_promoted_set_is_taken_back() {
    let mut clocked = Clocked::new(LIMITS);
    let tickets: Vec<Ticket> =
        (0..3).map(|id| clocked.scheduler.push(Class::Set, id, 1500, clocked.now)).collect();
    let first = clocked.grant().unwrap();
    clocked.scheduler.finish(first);
    clocked.scheduler.promote(tickets[2]);
    clocked.scheduler.promote(tickets[0]);
    clocked.scheduler.cancel_rest(Class::Set, 0);
    let left: Vec<_> = std::iter::from_fn(|| {
        let grant = clocked.grant()?;
        clocked.scheduler.finish(grant);
        Some((grant.id, grant.offset_bytes))
    })
    .collect();
    assert_eq!(left, [(2, 0), (2, 1000), (1, 0), (1, 1000)]);
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
    assert_eq!(clocked.scheduler.in_flight(), 1, "what is granted is to be finished");
    clocked.scheduler.finish(piece);
    assert_eq!(clocked.scheduler.in_flight(), 0);
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Get), Just(Class::Delete), Just(Class::Set)]
}

/// What one random step does: queue something, promote some SET, take some grants, let time pass.
fn step() -> impl Strategy<Value = (Class, u64, Option<prop::sample::Index>, usize, u64)> {
    let promoted = prop::option::weighted(0.3, any::<prop::sample::Index>());
    (class(), 1_u64..5000, promoted, 0_usize..4, 0_u64..60)
}

fn limits() -> impl Strategy<Value = Limits> {
    let budgets = (0_u64..5000, 0_u64..5000, 0_u64..3000);
    (1_usize..6, 300_u64..2000, 1_u64..6000, budgets, 0_u64..300).prop_map(
        |(queue_depth, max_io_bytes, max_in_flight_bytes, (idle, between, loading), wait_ms)| {
            Limits {
                queue_depth,
                max_io_bytes,
                max_in_flight_bytes,
                set_in_flight_bytes: idle,
                set_in_flight_between_loads_bytes: between,
                set_in_flight_while_loading_bytes: loading,
                set_max_wait: Duration::from_millis(wait_ms),
            }
        },
    )
}

/// An operation that waits, or waits with its rest.
#[derive(Clone, Copy)]
struct Left {
    id: usize,
    offset_bytes: u64,
    total_bytes: u64,
    since: Instant,
}

/// What the scheduler should know, and what it must not grant.
struct Model {
    limits: Limits,
    waiting: [VecDeque<Left>; 3],
    promoted: VecDeque<Left>,
    flying: VecDeque<Grant>,
    last_load: Option<Instant>,
    load_ended: bool,
}

impl Model {
    fn promote(&mut self, id: usize) {
        let sets = &mut self.waiting[Class::Set as usize];
        if let Some(position) = sets.iter().position(|set| set.id == id) {
            self.promoted.extend(sets.remove(position));
        }
    }

    /// Where a SET that was granted a piece waited: promoted, or not.
    fn queue_of(&mut self, grant: Grant) -> &mut VecDeque<Left> {
        let promoted = self.promoted.front();
        match promoted.is_some_and(|one| one.id == grant.id) && grant.class == Class::Set {
            true => &mut self.promoted,
            false => &mut self.waiting[grant.class as usize],
        }
    }

    fn in_flight(&self, class: Class) -> (usize, u64) {
        let same = self.flying.iter().filter(|grant| grant.class == class);
        (same.clone().count(), same.map(|grant| grant.length_bytes).sum())
    }

    fn loads(&self) -> usize {
        self.waiting[Class::Get as usize].len() + self.in_flight(Class::Get).0
    }

    fn length_of(&self, left: &Left) -> u64 {
        (left.total_bytes - left.offset_bytes).min(self.limits.max_io_bytes)
    }

    fn next_length(&self, class: Class) -> Option<u64> {
        Some(self.length_of(self.waiting[class as usize].front()?))
    }

    /// Whether the device takes the next piece of this class.
    fn device_fits(&self, class: Class, length_bytes: u64) -> bool {
        let (pieces, bytes) = self.in_flight(class);
        pieces == 0
            || pieces < self.limits.queue_depth
                && bytes + length_bytes <= self.limits.max_in_flight_bytes
    }

    fn set_budget_bytes(&self, now: Instant) -> u64 {
        match self.last_load {
            _ if self.loads() > 0 => self.limits.set_in_flight_while_loading_bytes,
            Some(last) if now - last < Duration::from_millis(250) => {
                self.limits.set_in_flight_between_loads_bytes
            }
            _ => self.limits.set_in_flight_bytes,
        }
    }

    /// Takes a grant into account, if it is one that may be given.
    fn take(&mut self, grant: Grant, now: Instant) -> Result<(), TestCaseError> {
        let Grant { class, length_bytes, .. } = grant;
        let front = self.queue_of(grant).front().copied();
        prop_assert!(front.is_some(), "granted from an empty class");
        let front = front.unwrap();
        let is_promoted = self.promoted.front().is_some_and(|one| one.id == front.id);
        prop_assert_eq!((grant.id, grant.offset_bytes), (front.id, front.offset_bytes));
        prop_assert_eq!(length_bytes, self.length_of(&front));
        prop_assert!(class == Class::Delete || self.device_fits(class, length_bytes));
        let waits = |class: Class| !self.waiting[class as usize].is_empty();
        let is_due = now - front.since >= self.limits.set_max_wait;
        if is_promoted {
            let (pieces, bytes) = self.in_flight(Class::Set);
            let budget_bytes = self.limits.set_in_flight_between_loads_bytes;
            prop_assert!(pieces == 0 || bytes + length_bytes <= budget_bytes);
        } else if class == Class::Set {
            prop_assert!(is_due || !waits(Class::Get) && !waits(Class::Delete));
            prop_assert!(is_due || self.promoted.is_empty(), "ahead of what a load waits for");
            let (pieces, bytes) = self.in_flight(Class::Set);
            let goes_alone = pieces == 0 && (is_due || self.loads() == 0);
            prop_assert!(goes_alone || bytes + length_bytes <= self.set_budget_bytes(now));
        }
        if class == Class::Delete && waits(Class::Get) {
            let length_bytes = self.next_length(Class::Get).unwrap_or(0);
            prop_assert!(!self.device_fits(Class::Get, length_bytes), "ahead of a load");
        }
        let queue = self.queue_of(grant);
        queue[0].offset_bytes += length_bytes;
        if queue[0].offset_bytes == queue[0].total_bytes {
            queue.pop_front();
        }
        self.flying.push_back(grant);
        Ok(())
    }

    fn finish_oldest(&mut self) -> Option<Grant> {
        let done = self.flying.pop_front()?;
        self.load_ended |= done.class == Class::Get;
        Some(done)
    }

    /// Asks for a grant. The end of a load is known from then on.
    fn ask(&mut self, clocked: &mut Clocked) -> Option<Grant> {
        if std::mem::take(&mut self.load_ended) {
            self.last_load = Some(clocked.now);
        }
        clocked.grant()
    }

    fn is_same(&self, scheduler: &Scheduler) -> bool {
        scheduler.in_flight() == self.flying.len()
            && scheduler.loads() == self.loads()
            && scheduler.has_waiting_sets() != self.waiting[Class::Set as usize].is_empty()
            && scheduler.is_empty()
                == (self.waiting.iter().all(VecDeque::is_empty) && self.promoted.is_empty())
    }
}

proptest! {
    /// Whatever the limits are, they hold; pieces cover each operation once and in order, FIFO holds inside a class,
    /// classes are served in their order but for SETs that are due, and nothing is lost or stuck.
    #[test]
    fn order_and_bounds(limits in limits(), steps in prop::collection::vec(step(), 1..200)) {
        let mut clocked = Clocked::new(limits);
        let mut model = Model {
            limits,
            waiting: Default::default(),
            promoted: VecDeque::new(),
            flying: VecDeque::new(),
            last_load: None,
            load_ended: false,
        };
        let mut tickets = Vec::new();
        for (id, (class, bytes, promoted, takes, wait_ms)) in steps.into_iter().enumerate() {
            let total_bytes = if class == Class::Delete { 0 } else { bytes };
            let ticket = clocked.scheduler.push(class, id, total_bytes, clocked.now);
            if class == Class::Set {
                tickets.push((id, ticket));
            }
            let left = Left { id, offset_bytes: 0, total_bytes, since: clocked.now };
            model.waiting[class as usize].push_back(left);
            // Also what was promoted before, or has been granted.
            if let Some((id, ticket)) = promoted.filter(|_| !tickets.is_empty()).map(|which| *which.get(&tickets)) {
                clocked.scheduler.promote(ticket);
                model.promote(id);
            }
            clocked.wait(wait_ms);
            for _ in 0..takes {
                if let Some(grant) = model.ask(&mut clocked) {
                    model.take(grant, clocked.now)?;
                } else if let Some(done) = model.finish_oldest() {
                    clocked.scheduler.finish(done);
                }
                prop_assert!(model.is_same(&clocked.scheduler));
            }
        }
        loop {
            if let Some(grant) = model.ask(&mut clocked) {
                model.take(grant, clocked.now)?;
            } else if let Some(done) = model.finish_oldest() {
                clocked.scheduler.finish(done);
            } else {
                break;
            }
            prop_assert!(model.is_same(&clocked.scheduler));
        }
        prop_assert!(clocked.scheduler.is_empty(), "stuck");
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
