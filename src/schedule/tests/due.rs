//! SETs that have waited for so long that they go ahead of loads.

use super::*;

#[test]
fn a_set_that_has_waited_long_enough_goes_ahead_of_few_loads_one_piece_at_a_time() {
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

/// However many loads there are: an eighth of the bytes in the device.
#[test]
fn sets_that_are_due_have_an_eighth_of_what_is_in_the_device() {
    let mut clocked = Clocked::new(Limits {
        queue_depth: 100,
        max_in_flight_bytes: 40_000,
        set_in_flight_while_loading_bytes: 0,
        ..LIMITS
    });
    for id in 0..100 {
        clocked.push(Class::Set, 1000 + id, 500);
    }
    let mut in_flight: VecDeque<Grant> = VecDeque::new();
    let (mut loaded_bytes, mut stored_bytes) = (0, 0);
    // More than the device takes.
    (0..60).for_each(|id| _ = clocked.push(Class::Get, 2000 + id, 1000));
    for turn in 0..1000 {
        clocked.push(Class::Get, 3000 + turn, 1000);
        if turn == 100 {
            assert_eq!(stored_bytes, 0, "no SET goes before it is due");
            clocked.wait(100);
        }
        in_flight.extend(std::iter::from_fn(|| clocked.grant()));
        let sum = |class| -> u64 {
            let same = in_flight.iter().filter(|grant| grant.class == class);
            same.map(|grant| grant.length_bytes).sum()
        };
        let (loads, sets) = (sum(Class::Get), sum(Class::Set));
        if turn >= 100 && clocked.scheduler.has_waiting_sets() {
            assert!(sets * 7 <= loads && (sets + 500) * 7 > loads, "{sets} beside {loads}");
        }
        // A device that does what it has in the order in which it came.
        let done = in_flight.pop_front().unwrap();
        clocked.scheduler.finish(done);
        match done.class {
            Class::Set => stored_bytes += done.length_bytes,
            _ => loaded_bytes += done.length_bytes,
        }
    }
    assert_eq!(stored_bytes, 100 * 500);
    assert!(loaded_bytes >= 7 * stored_bytes);
}

/// Whoever sleeps until then finds that the SET goes, also if a load stays in the device all the time.
#[test]
fn it_is_known_when_a_set_is_due() {
    let mut clocked = Clocked::new(Limits { set_in_flight_while_loading_bytes: 0, ..LIMITS });
    assert_eq!(clocked.scheduler.next_due(clocked.now), None);
    clocked.push(Class::Get, 1, 10);
    clocked.push(Class::Set, 2, 10);
    clocked.push(Class::Set, 3, 10);
    assert_eq!(clocked.grants(), [1]);
    let due = clocked.scheduler.next_due(clocked.now).unwrap();
    assert_eq!(due, clocked.now + LIMITS.set_max_wait);
    clocked.now = due;
    let piece = clocked.grant().unwrap();
    assert_eq!((piece.id, clocked.grant()), (2, None));
    assert_eq!(clocked.scheduler.next_due(due), None, "the next one waits for this to end");
    clocked.scheduler.finish(piece);
    assert_eq!(clocked.grants(), [3]);
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
