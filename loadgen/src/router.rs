//! Completions from the one queue of the store to the jobs that wait for them.
//!
//! One job at a time drains: the first that has to wait takes on the role, sleeps in poll() on the store's eventfd, and
//! hands each completion to the job whose batch it answers. The others sleep until something has come for them, or the
//! role is free. With one job no other thread is involved.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvring::{Completion, Connector};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};

/// How often the one that waits looks whether there is still something to wait for.
const LOOK_INTERVAL_MS: u16 = 1000;

/// A store in which nothing has moved for this long hangs.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// The same once the run is to stop.
const STOPPING_STALL_LIMIT: Duration = Duration::from_secs(10);

/// A completion, and when it was drained.
pub(crate) struct Arrival {
    pub(crate) completion: Completion,
    pub(crate) at: Instant,
}

pub(crate) struct Router {
    state: Mutex<State>,
    /// One per job.
    wakeups: Vec<Condvar>,
}

struct State {
    /// Which job waits for which batch.
    owners: HashMap<u64, usize>,
    /// Drained before the thread that submitted it could say whose it is.
    unclaimed: HashMap<u64, Arrival>,
    /// One per job.
    mailboxes: Vec<Vec<Arrival>>,
    waiting: Vec<bool>,
    draining: bool,
    last_sign_of_life: Instant,
}

impl Router {
    pub(crate) fn new(jobs: usize) -> Self {
        let state = State {
            owners: HashMap::new(),
            unclaimed: HashMap::new(),
            mailboxes: (0..jobs).map(|_| Vec::new()).collect(),
            waiting: vec![false; jobs],
            draining: false,
            last_sign_of_life: Instant::now(),
        };
        Self { state: Mutex::new(state), wakeups: (0..jobs).map(|_| Condvar::new()).collect() }
    }

    /// Tells whose batch this is; to be called once for each, right after its submit.
    pub(crate) fn claim(&self, job: usize, future_id: u64) {
        let mut state = self.state.lock();
        match state.unclaimed.remove(&future_id) {
            Some(arrived) => state.mailboxes[job].push(arrived),
            None => {
                state.owners.insert(future_id, job);
            }
        }
    }

    /// Waits until completions of this job's batches have come, of which there must be some in flight. `stop` shortens
    /// the patience with a store that hangs.
    ///
    /// # Errors
    /// What is wrong, when the store gives no sign of life.
    pub(crate) fn wait(
        &self,
        job: usize,
        connector: &Connector,
        stop: &AtomicBool,
    ) -> Result<Vec<Arrival>, String> {
        let mut state = self.state.lock();
        // Between two waits nobody looked at the store, so that its silence says nothing.
        if !state.draining {
            state.last_sign_of_life = Instant::now();
        }
        let mut moved = (0, 0);
        loop {
            if !state.mailboxes[job].is_empty() {
                let mine = std::mem::take(&mut state.mailboxes[job]);
                self.pass_on_the_role(&state);
                return Ok(mine);
            }
            if state.draining {
                state.waiting[job] = true;
                self.wakeups[job].wait(&mut state);
                state.waiting[job] = false;
                continue;
            }
            state.draining = true;
            drop(state);
            let ready = wait_readable(connector);
            let mut completions = Vec::new();
            connector.drain(&mut completions);
            let at = Instant::now();
            let idle = completions.is_empty();
            let moved_until_now = if idle { work_done(connector) } else { moved };
            state = self.state.lock();
            state.draining = false;
            if !idle || moved_until_now != moved {
                state.last_sign_of_life = at;
                moved = moved_until_now;
            }
            for completion in completions {
                self.deliver(&mut state, Arrival { completion, at });
            }
            let silent = at.duration_since(state.last_sign_of_life);
            let stopping = stop.load(Ordering::Relaxed);
            let limit = if stopping { STOPPING_STALL_LIMIT } else { STALL_LIMIT };
            if let Err(error) = ready.and(check_silence(silent, limit)) {
                self.pass_on_the_role(&state);
                return Err(error);
            }
        }
    }

    fn deliver(&self, state: &mut State, arrived: Arrival) {
        let future_id = arrived.completion.future_id;
        match state.owners.remove(&future_id) {
            Some(job) => {
                state.mailboxes[job].push(arrived);
                if state.waiting[job] {
                    self.wakeups[job].notify_one();
                }
            }
            None => {
                state.unclaimed.insert(future_id, arrived);
            }
        }
    }

    /// Wakes somebody to drain, if nobody does and somebody waits.
    fn pass_on_the_role(&self, state: &State) {
        if !state.draining
            && let Some(next) = state.waiting.iter().position(|waits| *waits)
        {
            self.wakeups[next].notify_one();
        }
    }
}

/// Sleeps until the eventfd is readable, or it is time to look around.
fn wait_readable(connector: &Connector) -> Result<(), String> {
    let mut events = [PollFd::new(connector.event(), PollFlags::POLLIN)];
    match poll(&mut events, PollTimeout::from(LOOK_INTERVAL_MS)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(format!("poll of the store's event descriptor failed: {error}")),
    }
}

/// Keys in flight and transfers made: they change while the store works, even where a batch takes long.
fn work_done(connector: &Connector) -> (u64, u64) {
    let stats = connector.stats();
    let transfers = stats.counters.iter().find(|(name, _)| *name == "transfers");
    (stats.in_flight, transfers.map_or(0, |(_, count)| *count))
}

fn check_silence(silent: Duration, limit: Duration) -> Result<(), String> {
    if silent < limit {
        return Ok(());
    }
    Err(format!("nothing was completed for {} s: the store or its device hangs", silent.as_secs()))
}
