//! SETs that loads wait for.

use super::*;

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
    assert_eq!(
        clocked.grants_beside_loads(),
        [(4, 0, 1000), (4, 1000, 500), (0, 1000, 500)],
        "whatever others have in flight"
    );
    clocked.scheduler.finish(first);
    clocked.wait(99);
    assert!(clocked.grants_beside_loads().is_empty(), "the others wait");
}

/// SETs that are due come first, one at a time; so does what a load waits for, if it is too long to go beside another.
#[test]
fn sets_that_are_due_do_not_hold_up_what_a_load_waits_for() {
    for queue_depth in [1, 4] {
        let mut clocked = Clocked::new(Limits {
            queue_depth,
            set_in_flight_between_loads_bytes: 10,
            set_in_flight_while_loading_bytes: 0,
            ..LIMITS
        });
        let tickets: Vec<Ticket> =
            (0..50).map(|id| clocked.scheduler.push(Class::Set, id, 1000, clocked.now)).collect();
        clocked.wait(100);
        clocked.scheduler.promote(tickets[40]);
        let mut started = Vec::new();
        let mut flying = VecDeque::new();
        while !started.contains(&40) {
            while let Some(grant) = clocked.scheduler.next_grant(clocked.now, &LOADS_ELSEWHERE) {
                started.push(grant.id);
                flying.push_back(grant);
            }
            clocked.scheduler.finish(flying.pop_front().unwrap());
            assert!(started.len() <= 2, "{started:?} before it");
        }
    }
}

/// However many SETs loads wait for: of eight pieces one is due.
#[test]
fn what_loads_wait_for_does_not_hold_up_sets_that_are_due() {
    for queue_depth in [1, 4] {
        let limits = Limits { queue_depth, set_in_flight_while_loading_bytes: 0, ..LIMITS };
        let mut clocked = Clocked::new(limits);
        let push = |clocked: &mut Clocked, id, is_promoted: bool| {
            let ticket = clocked.scheduler.push(Class::Set, id, 1000, clocked.now);
            if is_promoted {
                clocked.scheduler.promote(ticket);
            }
        };
        (0..20).for_each(|id| push(&mut clocked, id, false));
        clocked.wait(100);
        let mut started = Vec::new();
        let mut flying = VecDeque::new();
        for turn in 0..200 {
            (0..queue_depth).for_each(|_| push(&mut clocked, 1000 + turn, true));
            while let Some(grant) = clocked.scheduler.next_grant(clocked.now, &LOADS_ELSEWHERE) {
                started.push(grant.id);
                flying.push_back(grant);
            }
            clocked.scheduler.finish(flying.pop_front().unwrap());
        }
        let is_due = |id: &usize| *id < 20;
        let due: Vec<usize> = started.iter().copied().filter(is_due).collect();
        assert_eq!(due, (0..20).collect::<Vec<_>>());
        let last = started.iter().rposition(is_due).unwrap();
        assert!(last < 20 * 8, "the last one of 20 after {last} pieces");
    }
}

#[test]
fn the_rest_of_a_promoted_set_is_taken_back() {
    let mut clocked = Clocked::new(LIMITS);
    let tickets: Vec<Ticket> =
        (0..3).map(|id| clocked.scheduler.push(Class::Set, id, 1500, clocked.now)).collect();
    let first = clocked.grant().unwrap();
    clocked.scheduler.finish(first);
    clocked.scheduler.promote(tickets[2]);
    let rest = clocked.scheduler.promote(tickets[0]);
    clocked.scheduler.cancel_rest(rest);
    let left: Vec<_> = std::iter::from_fn(|| {
        let grant = clocked.grant()?;
        clocked.scheduler.finish(grant);
        Some((grant.id, grant.offset_bytes))
    })
    .collect();
    assert_eq!(left, [(2, 0), (2, 1000), (1, 0), (1, 1000)]);
}

/// What is put in front has the number of one that is gone: who holds its ticket takes and promotes nothing.
#[test]
fn a_ticket_of_what_is_not_in_the_queue_is_nobody_s() {
    let mut clocked = Clocked::new(LIMITS);
    let [first, _] = [0, 1].map(|id| clocked.scheduler.push(Class::Set, id, 1000, clocked.now));
    let granted = clocked.grant().unwrap();
    clocked.scheduler.finish(granted);
    let put_in_front = clocked.scheduler.push_first(2, 1000, clocked.now, false);
    clocked.scheduler.cancel_rest(first);
    clocked.scheduler.promote(first);
    assert_eq!(clocked.grants_beside_loads(), [(2, 0, 1000)]);
    assert_ne!(put_in_front, first);
    clocked.scheduler.push_first(3, 1000, clocked.now, true);
    assert_eq!(clocked.grants(), [3]);
}
