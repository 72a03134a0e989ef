//! The completion queue and its eventfd.

use std::sync::Arc;
use std::time::Instant;

use super::{explore, spawn};
use crate::batch::completion_queue::{Completion, CompletionQueue};

fn completion(future_id: u64) -> Completion {
    Completion {
        future_id,
        ok: true,
        code: None,
        error: String::new(),
        results: Vec::new(),
        completed_at: Instant::now(),
        keep_alive: None,
    }
}

/// Whoever drains when the eventfd is readable gets all completions: none stays behind without a ring.
fn drained(queue: &CompletionQueue, count: usize) -> Vec<u64> {
    let mut taken = Vec::new();
    while taken.len() < count {
        queue.event.wait_readable();
        queue.drain(&mut taken);
    }
    let mut ids: Vec<u64> = taken.iter().map(|completion| completion.future_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn each_completion_is_drained_or_the_eventfd_is_readable() {
    explore(|| {
        let queue = Arc::new(CompletionQueue::new().unwrap());
        let reactors = [0, 1].map(|future_id| {
            let queue = Arc::clone(&queue);
            spawn(move || {
                queue.push(completion(future_id));
                queue.announce();
            })
        });
        assert_eq!(drained(&queue, 2), [0, 1]);
        reactors.into_iter().for_each(|reactor| reactor.join().unwrap());
    });
}

/// A reactor pushes several completions, and announces them once, while another announces as well.
#[test]
fn one_ring_stands_for_several_completions() {
    explore(|| {
        let queue = Arc::new(CompletionQueue::new().unwrap());
        let reactor = spawn({
            let queue = Arc::clone(&queue);
            move || {
                queue.push(completion(0));
                queue.push(completion(1));
                queue.announce();
            }
        });
        let other = spawn({
            let queue = Arc::clone(&queue);
            move || queue.announce()
        });
        assert_eq!(drained(&queue, 2), [0, 1]);
        reactor.join().unwrap();
        other.join().unwrap();
    });
}
