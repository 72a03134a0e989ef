//! The condition variable that costs nothing while nobody waits.

use std::sync::Arc;

use super::{explore, spawn};
use crate::base::sequencer::Sequencer;
use crate::base::sync::{Condvar, Mutex};

/// Two threads wait for one each, and `give` adds two.
fn two_take_what_is_given(give: fn(&Mutex<u32>, &Condvar)) {
    explore(move || {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let waiting = [0, 1].map(|_| {
            let shared = Arc::clone(&shared);
            spawn(move || {
                let (value, changed) = &*shared;
                let mut value = value.lock();
                while *value == 0 {
                    value = changed.wait(value);
                }
                *value -= 1;
            })
        });
        let (value, changed) = &*shared;
        give(value, changed);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*value.lock(), 0);
    });
}

#[test]
fn whoever_waits_is_notified() {
    two_take_what_is_given(|value, changed| {
        *value.lock() += 2;
        changed.notify_all();
    });
}

#[test]
fn one_notification_each_is_enough() {
    two_take_what_is_given(|value, changed| {
        for _ in 0..2 {
            *value.lock() += 1;
            changed.notify_one();
        }
    });
}

#[test]
fn sequencer_is_seen_by_whoever_waits_for_it() {
    explore(|| {
        let sequencer = Arc::new(Sequencer::default());
        sequencer.note_queued();
        sequencer.note_queued();
        let ticket = sequencer.ticket();
        let waiting = spawn({
            let sequencer = Arc::clone(&sequencer);
            move || sequencer.wait(ticket, None)
        });
        sequencer.note_done(1);
        sequencer.note_done(1);
        assert!(waiting.join().unwrap());
    });
}
