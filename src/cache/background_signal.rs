//! What a thread that works in the background is to do, and when it rests.

use std::time::Instant;

use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{Condvar, Mutex};

/// How much longer than it has worked it rests.
const RESTS: u32 = 4;

/// What a thread is to do: of several orders, the greatest.
#[derive(Default)]
pub(super) struct BackgroundSignal<T> {
    state: Mutex<BackgroundSignalState<T>>,
    changed: Condvar,
    /// From an order until all is done that was ordered.
    is_under_way: AtomicBool,
}

#[derive(Default)]
struct BackgroundSignalState<T> {
    ends: bool,
    order: Option<T>,
}

impl<T: Ord> BackgroundSignal<T> {
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::SeqCst)
    }

    /// False if nobody does it any more.
    pub(super) fn order(&self, order: T) -> bool {
        let mut state = self.state.lock();
        if !state.ends {
            state.order = state.order.take().max(Some(order));
            self.is_under_way.store(true, Ordering::SeqCst);
            self.changed.notify_all();
        }
        !state.ends
    }

    /// Takes what is ordered. [`BackgroundSignal::note_done`] follows.
    pub(super) fn take(&self) -> Option<T> {
        self.state.lock().order.take()
    }

    pub(super) fn note_done(&self) {
        let state = self.state.lock();
        if state.order.is_none() {
            self.is_under_way.store(false, Ordering::SeqCst);
        }
    }

    /// Orders the thread to end. What it has not begun is not done.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        (state.ends, state.order) = (true, None);
        self.is_under_way.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }

    pub(super) fn are_to_end(&self) -> bool {
        self.state.lock().ends
    }

    /// Waits for an order, or until something else is due, if anything is. False if the thread is to end.
    pub(super) fn wait(&self, due: Option<Instant>) -> bool {
        let (mut state, mut is_due) = (self.state.lock(), false);
        while !state.ends && state.order.is_none() && !is_due {
            match due {
                Some(due) => (state, is_due) = self.changed.wait_until(state, due),
                None => state = self.changed.wait(state),
            }
        }
        !state.ends
    }

    /// Rests for four times as long as the `slice` of work took that ends now. Says whether to go on: not if the thread is to
    /// end, nor, if it `yields`, while something is ordered.
    pub(super) fn rest(&self, slice: &mut Instant, yields: bool) -> bool {
        let stops =
            |state: &BackgroundSignalState<T>| state.ends || yields && state.order.is_some();
        let mut state = self.state.lock();
        if !stops(&state) {
            let rested = Instant::now() + slice.elapsed() * RESTS;
            (state, _) = self.changed.wait_until(state, rested);
        }
        *slice = Instant::now();
        !stops(&state)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_is_under_way_until_the_last_order_is_done() {
        let signal = BackgroundSignal::default();
        assert!(!signal.is_under_way());
        assert!(signal.order(1) && signal.order(3) && signal.order(2));
        assert!(signal.is_under_way());
        assert_eq!(signal.take(), Some(3));
        assert!(signal.order(4));
        signal.note_done();
        assert!(signal.is_under_way(), "one came meanwhile");
        assert_eq!(signal.take(), Some(4));
        assert!(signal.is_under_way(), "it is being done");
        signal.note_done();
        assert!(!signal.is_under_way() && !signal.are_to_end());
        signal.end();
        assert!(signal.are_to_end() && !signal.order(5) && !signal.is_under_way());
        assert_eq!(signal.take(), None);
    }

    #[test]
    fn it_waits_until_something_is_due_or_ordered() {
        let signal = BackgroundSignal::default();
        let due = Instant::now() + Duration::from_millis(20);
        assert!(signal.wait(Some(due)) && Instant::now() >= due);
        let late = Some(Instant::now() + Duration::from_secs(3600));
        assert!(signal.order(1) && signal.wait(late) && signal.wait(None));
        signal.end();
        assert!(!signal.wait(late) && !signal.wait(None));
    }

    #[test]
    fn it_rests_four_times_as_long_as_it_worked_unless_it_is_wanted() {
        let signal = BackgroundSignal::default();
        let rest = |yields| {
            let begun = Instant::now();
            let mut slice = begun - Duration::from_millis(20);
            let goes_on = signal.rest(&mut slice, yields);
            assert!(slice >= begun, "the next slice begins");
            (goes_on, begun.elapsed() >= Duration::from_millis(80))
        };
        assert_eq!((rest(true), rest(false)), ((true, true), (true, true)));
        assert!(signal.order(1));
        // Not before the rest is over: some work is as urgent.
        assert_eq!(rest(false), (true, true));
        let mut slice = Instant::now() - Duration::from_secs(3600);
        assert!(!signal.rest(&mut slice, true));
        signal.end();
        assert!(!signal.rest(&mut slice, false) && !signal.rest(&mut slice, true));
    }
}
