//! Turns of threads: of the reactors of a simulated store, and of the test that uses it, one goes on at a time, and a
//! seed says which is the next. So a seed replays, however many reactors there are.
//!
//! A reactor takes its turn from one look at its engine to the next. The test takes turns only while it has joined;
//! otherwise it may do what it likes, one thing at a time, and the reactors take turns among themselves.
#![allow(dead_code, reason = "each test program uses its own part of it")]

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use kvring::testing::Waker;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::common::random::Random;

const HANG_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reactor {
    /// It has not looked at its engine yet, or it is its turn.
    Runs,
    Ready,
    /// Until its waker rings.
    Sleeps,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Nobody,
    Test,
    Reactor(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Test {
    Away,
    Runs,
    Ready,
    /// Until the reactors have nothing to do.
    WaitsForIdle,
}

struct State {
    random: Random,
    reactors: Vec<(Reactor, Arc<Waker>)>,
    test: Test,
    turn: Who,
}

pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

impl Turns {
    pub(crate) fn new() -> Self {
        let state = State {
            random: Random::new(0),
            reactors: Vec::new(),
            test: Test::Away,
            turn: Who::Nobody,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The store is about to be opened.
    pub(crate) fn begin(&self, random: Random) {
        let mut state = self.state.lock();
        (state.random, state.turn, state.test) = (random, Who::Nobody, Test::Away);
        state.reactors.clear();
    }

    /// The next reactor; returns its number.
    pub(crate) fn add_reactor(&self, waker: Arc<Waker>) -> usize {
        let mut state = self.state.lock();
        state.reactors.push((Reactor::Runs, waker));
        state.reactors.len() - 1
    }

    /// A reactor is about to do something: its turn begins unless it has begun.
    pub(crate) fn take(&self, number: usize) {
        let mut state = self.state.lock();
        if state.turn != Who::Reactor(number) {
            self.wait(&mut state, |state| state.turn == Who::Nobody);
            state.turn = Who::Reactor(number);
        }
    }

    /// A reactor has something to go on with; returns with its next turn.
    pub(crate) fn pass(&self, number: usize) {
        let mut state = self.state.lock();
        self.put_down(&mut state, number, Reactor::Ready);
        self.wait_for_turn(&mut state, number);
    }

    /// A reactor sleeps until its waker rings; returns with its next turn.
    pub(crate) fn sleep(&self, number: usize, timeout: Option<Duration>) {
        let mut state = self.state.lock();
        self.put_down(&mut state, number, Reactor::Sleeps);
        let waker = Arc::clone(&state.reactors[number].1);
        drop(state);
        rings(waker.descriptor(), timeout);
        let mut state = self.state.lock();
        if state.turn != Who::Reactor(number) {
            state.reactors[number].0 = Reactor::Ready;
        }
        self.wait_for_turn(&mut state, number);
        if rings(waker.descriptor(), Some(Duration::ZERO)) {
            // SAFETY: the waker keeps its descriptor open while it lives, and it is borrowed here.
            let event = unsafe { BorrowedFd::borrow_raw(waker.descriptor()) };
            nix::unistd::read(event, &mut [0; 8]).unwrap();
        }
    }

    /// A reactor ends.
    pub(crate) fn leave(&self, number: usize) {
        let mut state = self.state.lock();
        // The store may have been opened again.
        if state.reactors.get(number).is_some() {
            self.put_down(&mut state, number, Reactor::Gone);
        }
    }

    /// The test takes turns from now on, and it is its turn.
    pub(crate) fn join(&self) {
        let mut state = self.state.lock();
        self.wait(&mut state, State::is_idle);
        (state.test, state.turn) = (Test::Runs, Who::Test);
    }

    /// Lets others go on; returns with the test's next turn.
    pub(crate) fn pass_of_test(&self, until_idle: bool) {
        let mut state = self.state.lock();
        state.test = if until_idle { Test::WaitsForIdle } else { Test::Ready };
        state.turn = Who::Nobody;
        state.choose();
        self.changed.notify_all();
        self.wait(&mut state, |state| {
            // Somebody may have gone to sleep between two turns.
            if state.turn == Who::Nobody {
                state.choose();
            }
            state.turn == Who::Test
        });
        state.test = Test::Runs;
    }

    /// The test takes no turns any more.
    pub(crate) fn part(&self) {
        let mut state = self.state.lock();
        (state.test, state.turn) = (Test::Away, Who::Nobody);
        state.choose();
        self.changed.notify_all();
    }

    /// Waits until all reactors sleep.
    pub(crate) fn wait_idle(&self) {
        self.wait(&mut self.state.lock(), State::is_idle);
    }

    fn put_down(&self, state: &mut State, number: usize, reactor: Reactor) {
        state.reactors[number].0 = reactor;
        if state.turn == Who::Reactor(number) {
            state.turn = Who::Nobody;
        }
        if state.turn == Who::Nobody {
            state.choose();
        }
        self.changed.notify_all();
    }

    fn wait_for_turn(&self, state: &mut MutexGuard<'_, State>, number: usize) {
        self.wait(state, |state| {
            if state.turn == Who::Nobody {
                state.choose();
            }
            state.turn == Who::Reactor(number)
        });
        state.reactors[number].0 = Reactor::Runs;
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>, mut holds: impl FnMut(&mut State) -> bool) {
        let waited = self.changed.wait_while_for(state, |state| !holds(state), HANG_TIMEOUT);
        assert!(!waited.timed_out(), "the reactors hang");
        self.changed.notify_all();
    }
}

impl State {
    fn is_ready(&self, number: usize) -> bool {
        let (reactor, waker) = &self.reactors[number];
        match reactor {
            Reactor::Ready => true,
            Reactor::Sleeps => rings(waker.descriptor(), Some(Duration::ZERO)),
            Reactor::Runs | Reactor::Gone => false,
        }
    }

    /// Whose turn is next, if it is nobody's.
    fn choose(&mut self) {
        let ready = (0..self.reactors.len()).filter(|number| self.is_ready(*number));
        let mut candidates: Vec<Who> = ready.map(Who::Reactor).collect();
        if self.test == Test::Ready || self.test == Test::WaitsForIdle && self.is_idle() {
            candidates.push(Who::Test);
        }
        if !candidates.is_empty() {
            self.turn = candidates[self.random.below(candidates.len() as u64) as usize];
        }
    }

    fn is_idle(&mut self) -> bool {
        let is_at_rest = |number: usize| {
            matches!(self.reactors[number].0, Reactor::Sleeps | Reactor::Gone)
                && !self.is_ready(number)
        };
        self.turn == Who::Nobody && (0..self.reactors.len()).all(is_at_rest)
    }
}

/// Waits until there is something to read, or the time is over. Says whether there is.
fn rings(event: RawFd, timeout: Option<Duration>) -> bool {
    // SAFETY: a waker keeps its descriptor open while it lives, and the callers hold it.
    let event = unsafe { BorrowedFd::borrow_raw(event) };
    let limit = timeout.map_or(PollTimeout::NONE, |timeout| {
        let rounded_up_ms = timeout.as_micros().div_ceil(1000) as i32;
        PollTimeout::try_from(rounded_up_ms).unwrap_or(PollTimeout::MAX)
    });
    poll(&mut [PollFd::new(event, PollFlags::POLLIN)], limit) == Ok(1)
}
