//! A batch counts down its keys on several threads.

use std::sync::Arc;

use super::{explore, spawn};
use crate::batch::completion_queue::{Completion, CompletionQueue};
use crate::batch::responder::{Batch, Responder};

fn started(size: usize) -> (Arc<CompletionQueue>, Vec<Responder>) {
    let queue = Arc::new(CompletionQueue::new().unwrap());
    let items = Batch::start(7, size, Box::new(()), &queue).collect();
    (queue, items)
}

fn taken(queue: &CompletionQueue) -> Vec<Completion> {
    let mut all = Vec::new();
    queue.take(&mut all);
    all
}

#[test]
fn one_completion_has_the_answers_of_all_threads() {
    explore(|| {
        let (queue, items) = started(3);
        let answer = |item: Responder, number: usize| match number {
            0 => item.succeed(),
            1 => item.miss(),
            _ => item.succeed(),
        };
        let mut items = items.into_iter().enumerate();
        let (last, mine) = items.next_back().unwrap();
        let threads: Vec<_> =
            items.map(|(number, item)| spawn(move || answer(item, number))).collect();
        answer(mine, last);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let all = taken(&queue);
        assert_eq!(all.len(), 1);
        assert!(all[0].ok && all[0].keep_alive.is_some());
        assert_eq!(all[0].results, [true, false, true]);
        assert_eq!(queue.unanswered(), 0);
    });
}

#[test]
fn a_dropped_key_fails_the_batch_and_rings() {
    explore(|| {
        let (queue, mut items) = started(2);
        let dropped = items.pop().unwrap();
        let thread = spawn(move || drop(dropped));
        items.pop().unwrap().succeed();
        queue.announce();
        queue.event.wait_readable();
        let all = taken(&queue);
        assert_eq!(all.len(), 1);
        assert!(!all[0].ok);
        assert_eq!(all[0].results, [true, false]);
        thread.join().unwrap();
    });
}

/// What `close` and the statistics go by.
#[test]
fn where_no_key_is_unanswered_each_completion_is_there() {
    explore(|| {
        let (queue, items) = started(2);
        let threads: Vec<_> = items.into_iter().map(|item| spawn(move || item.succeed())).collect();
        if queue.unanswered() == 0 {
            assert_eq!(taken(&queue).len(), 1);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
