//! GETs that have waited for too long.

use std::time::Instant;

use super::{Line, Scheduler};

impl Scheduler {
    /// Takes the GETs that came by `latest`, and of which nothing is granted.
    pub fn take_late_loads(&mut self, latest: Instant) -> Vec<usize> {
        let mut late = Vec::new();
        while let Some((number, since)) = self.first_unstarted_load()
            && since <= latest
        {
            self.late_until = number + 1;
            late.extend(self.queues[Line::Get as usize].take(number).map(|waiting| waiting.id));
        }
        late
    }

    /// When the first GET came of which nothing is granted.
    pub fn oldest_unstarted_load(&mut self) -> Option<Instant> {
        self.first_unstarted_load().map(|(_, since)| since)
    }

    fn first_unstarted_load(&mut self) -> Option<(u64, Instant)> {
        let queue = &self.queues[Line::Get as usize];
        // Only the front may have started.
        let begun = queue.front().is_some_and(|front| front.granted_bytes > 0);
        self.late_until = self.late_until.max(queue.first + u64::from(begun));
        let offset = (self.late_until - queue.first) as usize;
        let mut rest = queue.waiting.iter().skip(offset);
        let (skipped, waiting) =
            rest.by_ref().enumerate().find_map(|(skipped, one)| Some((skipped, one.as_ref()?)))?;
        self.late_until += skipped as u64;
        Some((self.late_until, waiting.since))
    }
}
