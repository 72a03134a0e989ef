//! What a turn starts, and what may start when something has ended elsewhere.

use std::time::Instant;

use super::limits::{BEGUN_TURN_BYTES, CHECKSUM_TURN_BYTES};
use super::state::Reactor;
use crate::base::sync::atomic::Ordering;
use crate::engine::EngineError;
use crate::schedule::Grant;

impl Reactor {
    /// Starts what the scheduler allows now. Says whether it stopped before the end, as the turn is over.
    pub(super) fn start_some(&mut self, now: Instant) -> Result<bool, EngineError> {
        self.has_changed = false;
        self.note_work();
        self.elsewhere = self.group.elsewhere(self.number);
        self.elsewhere.are_loads_present |= self.awaited > 0;
        (self.processed_bytes, self.begun_bytes) = (0, 0);
        self.awaits_growth &= self.group.cache.is_growing();
        self.scheduler.hold_sets(self.holds_sets());
        self.look_for_room_again();
        self.go_on_failing();
        let mut outcome = Ok(false);
        loop {
            self.fill_lines();
            let Some(grant) = self.scheduler.next_grant(now, &self.elsewhere) else { break };
            if let Err(error) = self.start(grant, now) {
                outcome = Err(error);
                break;
            }
            if self.processed_bytes >= CHECKSUM_TURN_BYTES || self.begun_bytes >= BEGUN_TURN_BYTES {
                outcome = Ok(true);
                break;
            }
        }
        self.note_work();
        self.has_changed |= !self.failing.is_empty();
        outcome
    }

    /// After the kernel was given what this turn began: whether all of it is back, or more than can be summed up at once.
    pub(super) fn note_processor_bound(&self) {
        let is_lagging = self.device.moved_bytes >= CHECKSUM_TURN_BYTES;
        if is_lagging || self.begun_bytes > 0 {
            let is_all_back = self.device.requests.in_flight() == 0;
            self.group.note_processor_bound(is_lagging || is_all_back);
        }
    }

    fn note_work(&mut self) {
        let loads = self.scheduler.loads() + self.awaited;
        self.group.note_work(self.number, loads, &self.scheduler);
    }

    /// Whether something that it waits for has come since `start_some` looked. To be asked once more before sleeping: others
    /// wake only a reactor that sleeps.
    pub(super) fn can_go_on(&self) -> bool {
        let loads_ended = self.elsewhere.are_loads_present
            && self.scheduler.has_waiting_sets()
            && !self.group.elsewhere(self.number).are_loads_present;
        let has_grown = self.awaits_growth && !self.group.cache.is_growing();
        let is_extent_free = |grant: &Grant| !self.active[grant.id].awaits_extent();
        let awaits_records =
            !self.awaiting_extents.is_empty() || self.commit.awaited_records.is_some();
        self.group.lanes[self.number].awaits_records.store(awaits_records, Ordering::SeqCst);
        let can_go_on = |id: &usize| {
            let file = self.active[*id].chunk_file.as_ref();
            file.is_none_or(|file| file.can_go_on(&*self.group.cache.store))
        };
        loads_ended
            || self.lines_to_fill().next().is_some()
            || has_grown
            || self.room_may_have_come()
            || self.awaiting_extents.front().is_some_and(is_extent_free)
            || self.group_can_go_on()
            || self.due_chunk_files.iter().any(can_go_on)
            || (awaits_records || !self.due_chunk_files.is_empty())
                && self.group.cache.refusal().is_some()
    }
}
