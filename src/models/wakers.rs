//! A reactor goes to sleep while others publish work for it.

use std::sync::Arc;

use super::{explore, spawn};
use crate::base::sync::SegQueue;
use crate::engine::Waker;

#[test]
fn published_work_wakes_the_sleeper() {
    explore(|| {
        let (work, waker) = (Arc::new(SegQueue::new()), Waker::new().unwrap());
        let others = [0, 1].map(|number| {
            let (work, waker) = (Arc::clone(&work), Arc::clone(&waker));
            spawn(move || {
                work.push(number);
                waker.wake();
            })
        });
        let mut done = 0;
        while done < 2 {
            // As a reactor does.
            waker.prepare_sleep();
            if work.is_empty() {
                waker.event.read().unwrap();
            }
            waker.awake();
            done += std::iter::from_fn(|| work.pop()).count();
        }
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
