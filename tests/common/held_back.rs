//! An engine that does real I/O and holds transfers of one kind back until a test lets them go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvring::testing::{Action, Engine, Reaped, Transfer, Waker};
use kvring::{Config, EngineError};
use parking_lot::Mutex;

use super::{Client, eventually, real_engine};

/// What the test says, and what it sees.
#[derive(Default)]
struct State {
    holds: Option<Action>,
    /// Transfers of the held kind that may go.
    permits: usize,
    /// Lengths of the transfers of this kind that the engine was given, in order.
    given_bytes: Vec<usize>,
    engines: Vec<(Arc<Waker>, Arc<AtomicUsize>)>,
}

/// The test's hand on its engines.
#[derive(Clone, Default)]
pub(crate) struct HeldBack(Arc<Mutex<State>>);

impl HeldBack {
    /// A store whose transfers the test can hold back.
    pub(crate) fn open(config: Config) -> (Client, Self) {
        let held = Self::default();
        (Client::over(config, held.engines()), held)
    }

    /// Makes engines below this hand.
    pub(crate) fn engines(
        &self,
    ) -> impl FnMut(usize, Arc<Waker>) -> Result<HoldingEngine, EngineError> + use<> {
        let held = self.clone();
        move |queue_depth, waker| {
            Ok(held.above(real_engine(queue_depth, Arc::clone(&waker))?, waker))
        }
    }

    /// The same above another engine, which gets what is held once it may go.
    pub(crate) fn above(&self, real: Box<dyn Engine>, waker: Arc<Waker>) -> HoldingEngine {
        let turns = Arc::new(AtomicUsize::new(0));
        self.0.lock().engines.push((waker, Arc::clone(&turns)));
        HoldingEngine { real, state: self.clone(), held: VecDeque::new(), turns }
    }

    /// From now on transfers of this kind wait.
    pub(crate) fn hold(&self, action: Action) {
        let mut state = self.0.lock();
        (state.holds, state.permits) = (Some(action), 0);
        state.given_bytes.clear();
    }

    /// Lets so many of them go, the oldest first.
    pub(crate) fn permit(&self, count: usize) {
        self.0.lock().permits += count;
        self.wake();
    }

    /// Lets all of them go.
    pub(crate) fn release(&self) {
        self.0.lock().holds = None;
        self.wake();
    }

    /// Lengths of the transfers of the held kind that the engines were given since, in order.
    pub(crate) fn given_bytes(&self) -> Vec<usize> {
        self.0.lock().given_bytes.clone()
    }

    /// Returns when the engines were given so many of them.
    pub(crate) fn until_given(&self, count: usize) {
        eventually("the transfers", || self.given_bytes().len() >= count);
    }

    /// Returns when every reactor knows what was submitted before.
    pub(crate) fn until_all_have_looked(&self) {
        let turns = || -> Vec<usize> {
            self.0.lock().engines.iter().map(|(_, turns)| turns.load(Ordering::SeqCst)).collect()
        };
        let before = turns();
        eventually("the turns", || {
            self.wake();
            // The next one may have begun already.
            turns().iter().zip(&before).all(|(now, before)| *now >= before + 2)
        });
    }

    fn wake(&self) {
        let engines = self.0.lock().engines.clone();
        engines.iter().for_each(|(waker, _)| waker.wake());
    }
}

pub(crate) struct HoldingEngine {
    real: Box<dyn Engine>,
    state: HeldBack,
    held: VecDeque<Transfer>,
    turns: Arc<AtomicUsize>,
}

impl HoldingEngine {
    /// The oldest transfer that may go now.
    fn next_permitted(&mut self) -> Option<Transfer> {
        let mut state = self.state.0.lock();
        if state.holds.is_some() {
            state.permits = state.permits.checked_sub(usize::from(!self.held.is_empty()))?;
        }
        self.held.pop_front()
    }
}

impl Engine for HoldingEngine {
    fn description(&self) -> String {
        format!("holding {}", self.real.description())
    }

    fn depth(&self) -> usize {
        self.real.depth()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        let mut state = self.state.0.lock();
        if state.holds != Some(transfer.action) {
            drop(state);
            // SAFETY: the contract of this function.
            return unsafe { self.real.submit(transfer) };
        }
        let vectors = match transfer.action {
            // SAFETY: the caller vouches for the vectors.
            Action::Read | Action::Write => unsafe {
                std::slice::from_raw_parts(transfer.vectors, transfer.vector_count)
            },
            _ => &[],
        };
        state.given_bytes.push(vectors.iter().map(|vector| vector.iov_len).sum());
        drop(state);
        self.held.push_back(transfer);
        Ok(())
    }

    /// Waits as long as it is told to: what is held back must not make the reactor look again.
    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        self.turns.fetch_add(1, Ordering::SeqCst);
        while let Some(transfer) = self.next_permitted() {
            // SAFETY: what was submitted and not reaped is still valid.
            unsafe { self.real.submit(transfer) }?;
        }
        self.real.reap(timeout, reaped)
    }

    fn cancel_all(&mut self) {
        self.state.release();
        self.real.cancel_all();
    }
}
