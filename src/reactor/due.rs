//! What is due at a time although nothing has come: failed writes, SETs that waited for loads, and loads that are late. These are
//! misses: the engine computes again what it would have waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::io_error_policy::Failure;
use super::limits::MOST_IN_A_TURN;
use super::responsiveness::SILENCE;
use super::state::Reactor;
use crate::schedule::Class;

/// A reactor that looks so much later than it meant to was not running.
const LATENESS: Duration = Duration::from_secs(1);

impl Reactor {
    /// When to look again although nothing has come: a failed write is to be tried again, a SET that waits for loads, however
    /// long these take, is due, or a chunk in doubt is to be read again. `now` is when the last pieces were started: what was
    /// due then waits for others to end.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Instant> {
        let load_is_late = if self.late.is_empty() { self.next_late() } else { Some(now) };
        let set_is_due = self.scheduler.next_due(now);
        let verify_is_due = self.verification.next_due().filter(|_| self.active.is_empty());
        let is_busy = self.device.requests.in_flight() > 0;
        // What came after the last look is younger than that.
        let silence_is_due = is_busy.then(|| match self.silence_due > now {
            true => self.silence_due,
            false => now + SILENCE,
        });
        let retries = self.retries.iter().map(|(due, _)| *due);
        retries
            .chain(set_is_due)
            .chain(verify_is_due)
            .chain(load_is_late)
            .chain(silence_is_due)
            .min()
    }

    pub(super) fn start_due(&mut self, now: Instant) {
        let (scheduler, active) = (&mut self.scheduler, &mut self.active);
        self.retries.retain(|(due, id)| {
            if *due <= now {
                let retried = &mut active[*id];
                retried.ticket = scheduler.push(Class::Set, *id, retried.waiting_bytes, now);
            }
            *due > now
        });
    }

    /// When the next load is late.
    fn next_late(&mut self) -> Option<Instant> {
        let deadline = self.load_deadline?;
        let oldest = [self.scheduler.oldest_unstarted_load(), self.group.pending.oldest_load()];
        oldest.into_iter().flatten().map(|since| since + deadline).min()
    }

    /// Answers the loads in the queue that are late, as many as one turn may; the others there do not wait for these any more.
    pub(super) fn answer_late_loads(&mut self, now: Instant) {
        let is_silent = self.group.responsiveness.misses_loads();
        let deadline = if is_silent { Some(Duration::ZERO) } else { self.load_deadline };
        let latest = deadline.and_then(|deadline| now.checked_sub(deadline));
        let pending = latest.map(|at| self.group.pending.take_late_loads(at)).unwrap_or_default();
        let were_pending = !pending.is_empty();
        pending.into_iter().for_each(|load| self.accept(load));
        self.late.extend(latest.into_iter().flat_map(|at| self.scheduler.take_late_loads(at)));
        let most = self.late.len().min(MOST_IN_A_TURN);
        for id in self.late.drain(..most).collect::<Vec<_>>() {
            self.group.cache.counters.get_late.add(1);
            self.active[id].failure = Some(Failure::Late);
            self.answer(id);
        }
        if were_pending {
            // There may be more; and SETs of other reactors may have waited for these.
            self.has_changed = true;
            self.group.wake_waiting_sets();
        }
    }

    /// Looks whether the drive has fallen silent, when that is due. While it is, nothing that has not begun waits for it.
    pub(super) fn look_for_silence(&mut self, now: Instant) {
        if now < self.silence_due {
            return;
        }
        let is_late = now > self.silence_due + LATENESS;
        self.silence_due = now + SILENCE;
        if is_late {
            // This process was stopped (SIGSTOP, a frozen container), and what came back meanwhile is not looked at yet.
            return;
        }
        let group = Arc::clone(&self.group);
        for (is_write, what) in [(false, "reads"), (true, "writes")] {
            let Some(oldest) = self.device.requests.oldest(is_write) else { continue };
            match group.responsiveness.look(is_write, oldest, now) {
                Ok(due) => self.silence_due = self.silence_due.min(due),
                Err(age) => {
                    self.has_changed = true;
                    log::error!(
                        "{}: the drive answers nothing: the oldest of its {what} is under way for {} s; until it answers, \
                         nothing is stored{}; look at the kernel's log for the device",
                        group.cache.config.path().display(),
                        age.as_secs(),
                        if is_write { "" } else { ", and loads miss" }
                    );
                }
            }
        }
    }
}
