//! What a reactor takes up: of what is pending as much as it is about to begin, and what came for it alone.

use std::sync::Arc;
use std::time::Instant;
use std::{iter, mem};

use super::latency::Timeline;
use super::limits::MOST_IN_A_TURN;
use super::operation::{Active, Operation};
use super::state::Reactor;
use crate::key::Digest;
use crate::schedule::Line;

impl Reactor {
    /// Takes up what came for this reactor alone, as much of it as one turn may: [`ReactorGroup::has_work`] says whether there is more.
    pub(super) fn take_up(&mut self) {
        let group = Arc::clone(&self.group);
        let deleted = iter::from_fn(|| group.cache.deleted.pop());
        for (extent, since) in deleted.take(MOST_IN_A_TURN) {
            self.enqueue(Operation::Reclaim(extent), since);
        }
        // A SET that is not taken up yet looks itself whether loads wait for it.
        let awaited = &group.lanes[self.number].awaited;
        for digest in iter::from_fn(|| awaited.pop()).take(MOST_IN_A_TURN) {
            if let Some(id) = self.sets.get(&digest).copied() {
                self.promote(id, digest);
            }
        }
    }

    /// The lines of the scheduler that are empty although there is something to take up for them. Others can take up what this reactor
    /// does not, so it takes up what it is about to begin.
    pub(super) fn lines_to_fill(&self) -> impl Iterator<Item = Line> {
        let is_to_fill = |line: &Line| {
            self.group.pending.count(*line) > 0
                && self.scheduler.is_line_empty(*line)
                && (*line == Line::Get || !self.holds_sets())
        };
        [Line::Promoted, Line::Get, Line::Set].into_iter().filter(is_to_fill)
    }

    pub(super) fn fill_lines(&mut self) {
        let to_fill: Vec<Line> = self.lines_to_fill().collect();
        for line in to_fill {
            if line != Line::Set {
                self.group.note_taking_up(self.number);
            }
            let taken = self.group.pending.take(line);
            taken.into_iter().for_each(|operation| self.accept(operation));
        }
    }

    pub(super) fn holds_sets(&self) -> bool {
        self.awaits_growth || self.commit.has_too_many_files(self.group.cache.config.layout)
    }

    pub(super) fn accept(&mut self, operation: Operation) {
        let submitted = operation.submitted().unwrap_or_else(Instant::now);
        let digest = operation.set_digest();
        let id = self.enqueue(operation, submitted);
        if let Some(digest) = digest {
            self.sets.insert(digest, id);
            if self.group.cache.index.is_awaited(digest) {
                self.promote(id, digest);
            }
        }
    }

    /// Loads wait for SET `id`: it is served as they are, and counts as one of them until it is answered.
    fn promote(&mut self, id: usize, digest: Digest) {
        self.note_awaited(digest);
        let active = &mut self.active[id];
        if !mem::replace(&mut active.is_awaited, true) {
            self.awaited += 1;
            active.ticket = self.scheduler.promote(active.ticket);
        }
    }

    pub(super) fn enqueue(&mut self, operation: Operation, submitted: Instant) -> usize {
        self.has_changed = true;
        let (class, bytes) = (operation.class(), operation.bytes());
        let entry = self.active.vacant_entry();
        let id = entry.key();
        let ticket = self.scheduler.push(class, id, bytes, submitted);
        entry.insert(Active {
            operation,
            ticket,
            is_awaited: false,
            looks_again_for: None,
            timeline: Timeline { submitted, started: None, moved: None },
            waiting_bytes: bytes,
            unfinished: 0,
            checksum: 0,
            failure: None,
            failed_syncs: None,
            retries: 0,
            chunk_file: None,
        });
        id
    }

    /// Takes up the next chunk to be verified if there is nothing else to do.
    pub(super) fn verify_if_idle(&mut self, now: Instant) {
        if self.active.is_empty()
            && self.group.pending.is_empty()
            && let Some(read) = self.verification.next(now, &self.group.cache)
        {
            self.enqueue(Operation::Verify(read), now);
        }
    }
}
