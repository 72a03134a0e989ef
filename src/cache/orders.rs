//! Orders of a thread that works in the background and waits for them.

use std::time::Instant;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex};

/// How much longer than it has worked it rests.
const RESTS: u32 = 4;

/// What a thread is to do: of several orders, the greatest.
#[derive(Default)]
pub(super) struct Orders<T> {
    state: Mutex<OrdersState<T>>,
    changed: Condvar,
    /// From an order until all is done that was ordered.
    is_under_way: AtomicBool,
}

#[derive(Default)]
struct OrdersState<T> {
    ends: bool,
    order: Option<T>,
}

impl<T: Ord> Orders<T> {
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

    /// Takes what is ordered. [`Orders::note_done`] follows.
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

    /// Waits for an order, or until something else is due. False if the thread is to end.
    pub(super) fn wait(&self, due: Instant) -> bool {
        let (mut state, mut is_due) = (self.state.lock(), false);
        while !state.ends && state.order.is_none() && !is_due {
            (state, is_due) = self.changed.wait_until(state, due);
        }
        !state.ends
    }

    /// Rests for four times as long as the `slice` of work took that ends now. Says whether to go on: not if the thread is to
    /// end, nor, if it `yields`, while something is ordered.
    pub(super) fn rest(&self, slice: &mut Instant, yields: bool) -> bool {
        let stops = |state: &OrdersState<T>| state.ends || yields && state.order.is_some();
        let mut state = self.state.lock();
        if !stops(&state) {
            let rested = Instant::now() + slice.elapsed() * RESTS;
            (state, _) = self.changed.wait_until(state, rested);
        }
        *slice = Instant::now();
        !stops(&state)
    }
}
