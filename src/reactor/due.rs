//! What is due at a time although nothing has come: failed writes, SETs that waited for loads, and loads that are late. These are
//! misses: the engine computes again what it would have waited for.

use std::time::Instant;

use super::errnos::Failure;
use super::operations::Operations;
use crate::key::Digest;
use crate::schedule::Class;

impl Operations {
    /// When to look again although nothing has come: a failed write is to be tried again, a SET that waits for loads, however
    /// long these take, is due, or a chunk in doubt is to be read again. `now` is when the last pieces were started: what was
    /// due then waits for others to end.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Instant> {
        let load_is_late = self.next_late();
        let set_is_due = self.scheduler.next_due(now);
        let verify_is_due = self.verification.next_due().filter(|_| self.active.is_empty());
        let retries = self.retries.iter().map(|(due, _)| *due);
        retries.chain(set_is_due).chain(verify_is_due).chain(load_is_late).min()
    }

    pub(super) fn start_due(&mut self, now: Instant) {
        let (scheduler, active) = (&mut self.scheduler, &mut self.active);
        self.retries.retain(|(due, id)| {
            if *due <= now {
                let retried = &mut active[*id];
                retried.ticket = scheduler.push(Class::Set, *id, retried.waiting_bytes, now);
                if retried.is_awaited {
                    retried.ticket = scheduler.promote(retried.ticket);
                }
            }
            *due > now
        });
    }

    /// Loads wait for the SET of this key that is here.
    pub(super) fn note_awaited(&mut self, digest: Digest) {
        if let Some(deadline) = self.load_deadline {
            self.late_awaited.push_back((Instant::now() + deadline, digest));
        }
    }

    /// When the next load is late.
    fn next_late(&mut self) -> Option<Instant> {
        let deadline = self.load_deadline?;
        let queued = self.scheduler.oldest_unstarted_load().map(|since| since + deadline);
        queued.into_iter().chain(self.late_awaited.front().map(|(late, _)| *late)).min()
    }

    /// Answers the loads that are late: those in the queue, and those that wait for a SET of their key.
    pub(super) fn answer_late_loads(&mut self, now: Instant) {
        let Some(latest) = self.load_deadline.and_then(|deadline| now.checked_sub(deadline)) else {
            return;
        };
        for id in self.scheduler.take_late_loads(latest) {
            self.shared.cache.counters.get_late.add(1);
            self.active[id].failure = Some(Failure::Late);
            self.answer(id);
        }
        while let Some((late, digest)) = self.late_awaited.front().copied()
            && late <= now
        {
            self.late_awaited.pop_front();
            let cache = &self.shared.cache;
            for request in cache.index.take_late_gets(digest, |get| get.submitted <= latest) {
                cache.counters.get_late.add(1);
                cache.counters.get_misses.add(1);
                request.item.miss();
            }
        }
    }
}
