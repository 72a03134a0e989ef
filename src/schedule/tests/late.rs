//! Loads that have waited for too long.

use super::*;

#[test]
fn loads_that_have_not_started_are_late_in_their_order() {
    let mut clocked = Clocked::new(Limits { queue_depth: 1, ..LIMITS });
    for id in 0..5 {
        clocked.push(Class::Get, id, 2000);
        clocked.wait(10);
    }
    let begin = clocked.now - Duration::from_millis(50);
    let after = |wait_ms: u64| begin + Duration::from_millis(wait_ms);
    assert_eq!(clocked.scheduler.oldest_unstarted_load(), Some(after(0)));
    let first = clocked.grant().unwrap();
    // It has started, though there is more of it.
    assert_eq!(clocked.scheduler.oldest_unstarted_load(), Some(after(10)));
    assert_eq!(clocked.scheduler.take_late_loads(after(9)), []);
    assert_eq!(clocked.scheduler.take_late_loads(after(20)), [1, 2]);
    assert_eq!(clocked.scheduler.take_late_loads(after(20)), []);
    assert_eq!(clocked.scheduler.oldest_unstarted_load(), Some(after(30)));
    clocked.scheduler.finish(first);
    let rest = clocked.grant().unwrap();
    assert_eq!((rest.id, rest.offset_bytes), (0, 1000));
    clocked.scheduler.finish(rest);
    // The next one starts in its turn.
    let next = clocked.grant().unwrap();
    assert_eq!((next.id, next.offset_bytes), (3, 0));
    assert_eq!(clocked.scheduler.take_late_loads(after(1000)), [4]);
    assert_eq!(clocked.scheduler.oldest_unstarted_load(), None);
    clocked.push(Class::Get, 7, 10);
    assert_eq!(clocked.scheduler.oldest_unstarted_load(), Some(clocked.now));
}

#[test]
fn late_loads_are_found_behind_one_that_was_taken_back() {
    let mut clocked = Clocked::new(Limits { queue_depth: 1, ..LIMITS });
    let tickets = [0, 1, 2].map(|id| clocked.scheduler.push(Class::Get, id, 2000, clocked.now));
    let begun = clocked.grant().unwrap();
    clocked.scheduler.cancel_rest(tickets[1]);
    assert_eq!((begun.id, clocked.scheduler.take_late_loads(clocked.now)), (0, vec![2]));
}
