//! Completions that were taken from a connector and not asked for yet, and threads that wait for theirs.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvring::{Completion, Connector};

/// How soon a waiting thread sees that the connector is closed, which rings no descriptor.
const TICK: Duration = Duration::from_millis(100);

/// Completions by task.
pub(crate) type ByTask = HashMap<u64, Completion>;

/// Completions of a connector's common queue, by task. Nobody else takes any from there.
#[derive(Default)]
pub(crate) struct CompletedTasks {
    state: Mutex<State>,
    /// Completions have come, or the thread that polled polls no more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    completions: ByTask,
    /// One waiting thread polls the eventfd; the others wait for it.
    is_polled: bool,
}

/// How a moment of waiting ended.
pub(crate) enum Step<T> {
    Found(T),
    Closed,
    Pending,
}

impl CompletedTasks {
    /// Takes what has completed, and lets `of` look at all that is there. No Python may run in it: another thread could wait for the
    /// lock with the GIL.
    pub(crate) fn take<T>(&self, core: &Connector, of: impl FnOnce(&mut ByTask) -> T) -> T {
        let mut state = self.locked();
        self.collect(core, &mut state, |core, taken| core.take(false, taken));
        of(&mut state.completions)
    }

    /// Waits until `of` finds what it looks for. None if the connector is closed before; then nothing of it moves any more.
    pub(crate) fn wait<T>(
        &self,
        core: &Connector,
        mut of: impl FnMut(&mut ByTask) -> Option<T>,
    ) -> Option<T> {
        loop {
            match self.wait_step(core, TICK, &mut of) {
                Step::Found(found) => return Some(found),
                Step::Closed => return None,
                Step::Pending => {}
            }
        }
    }

    /// The same for a moment, for [`TICK`] and `timeout` at most.
    pub(crate) fn wait_step<T>(
        &self,
        core: &Connector,
        timeout: Duration,
        mut of: impl FnMut(&mut ByTask) -> Option<T>,
    ) -> Step<T> {
        let timeout = timeout.min(TICK);
        let mut state = self.locked();
        self.collect(core, &mut state, |core, taken| core.take(false, taken));
        if let Some(found) = of(&mut state.completions) {
            return Step::Found(found);
        }
        if core.is_closed() {
            drop(state);
            core.close();
            core.wait_for_memory();
            return Step::Closed;
        }
        if state.is_polled {
            drop(self.changed.wait_timeout(state, timeout));
            return Step::Pending;
        }
        state.is_polled = true;
        drop(state);
        // An error is as good as a ring: what is there is taken all the same.
        let _ = core.wait(timeout);
        state = self.locked();
        state.is_polled = false;
        // It alone clears the eventfd, so that no ring is lost while another thread takes.
        self.collect(core, &mut state, Connector::drain);
        self.changed.notify_all();
        Step::Pending
    }

    fn collect(
        &self,
        core: &Connector,
        state: &mut State,
        take: impl Fn(&Connector, &mut Vec<Completion>),
    ) {
        let mut taken = Vec::new();
        // With the lock, so that nobody misses what is taken here.
        take(core, &mut taken);
        if !taken.is_empty() {
            state.completions.extend(taken.into_iter().map(|one| (one.future_id, one)));
            self.changed.notify_all();
        }
    }

    /// A panic leaves the map as it was before a step, or after it.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
