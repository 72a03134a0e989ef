//! Second attempts at transfers that have failed, one read and one write at a time. The kernel joins requests for neighbours
//! and fails all of them for one bad sector: apart from each other, those that are intact can be read, or written.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Shared;
use super::health::{Way, may_be_one_sector};
use super::steps::failure_of;
use super::work::Work;
use crate::engine::Engine;
use crate::error::EngineError;

/// Who has waited so long has no second attempt any more: the device takes seconds to fail, and is to be found out.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The ways that pieces go.
const WAYS: [Way; 2] = [Way::Read, Way::Write];

/// A piece that has failed once.
#[derive(Clone, Copy)]
struct FailedOnce {
    token: usize,
    errno: i32,
    since: Instant,
}

/// Pieces that go one way.
#[derive(Default)]
struct Line {
    waiting: VecDeque<FailedOnce>,
    /// The one that the kernel has, by its token.
    under_way: Option<usize>,
}

/// Pieces that wait for their second attempt, or are at it: a line for each way, so that no load waits for stores.
#[derive(Default)]
pub(super) struct SecondAttempts {
    lines: [Line; WAYS.len()],
}

impl SecondAttempts {
    /// How many pieces are not in the kernel.
    pub(super) fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    pub(super) fn add(&mut self, token: usize, way: Way, errno: i32, now: Instant) {
        self.lines[way as usize].waiting.push_back(FailedOnce { token, errno, since: now });
    }

    /// Takes note that the kernel is done with a piece; says whether that was its second attempt.
    pub(super) fn end(&mut self, token: usize) -> bool {
        self.lines.iter_mut().any(|line| line.under_way.take_if(|own| *own == token).is_some())
    }

    /// Forgets those that wait.
    pub(super) fn drain(&mut self) -> Vec<usize> {
        let waiting = self.lines.iter_mut().flat_map(|line| line.waiting.drain(..));
        waiting.map(|piece| piece.token).collect()
    }

    /// The next one to be given to the device, if it has none that goes this way.
    fn next(&mut self, way: Way) -> Option<FailedOnce> {
        let line = &mut self.lines[way as usize];
        match line.under_way {
            Some(_) => None,
            None => line.waiting.pop_front(),
        }
    }
}

impl Work {
    /// Whether a piece that has failed once may go through by itself, and its operation with it.
    pub(super) fn merits_second_attempt(&self, token: usize, errno: i32, shared: &Shared) -> bool {
        let piece = &self.pieces[token];
        may_be_one_sector(errno)
            && !shared.health.fails_in_a_row(piece.way())
            && self.active[piece.grant.id].failure.is_none()
    }

    /// Gives the device the next ones; what has lost its merit meanwhile fails without it.
    pub(super) fn start_second_attempts(
        &mut self,
        now: Instant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        for way in WAYS {
            while let Some(FailedOnce { token, errno, since }) = self.second_attempts.next(way) {
                let is_late = now.saturating_duration_since(since) > LONGEST_WAIT;
                if is_late || !self.merits_second_attempt(token, errno, shared) {
                    shared.health.note_error(way, errno, now);
                    self.end_piece(token, Some(failure_of(errno)), now, shared);
                    continue;
                }
                self.second_attempts.lines[way as usize].under_way = Some(token);
                shared.counters.transfers_resumed.add(1);
                let submitted = self.submit(token, shared, engine);
                if submitted.is_err() {
                    self.second_attempts.end(token);
                    return submitted;
                }
            }
        }
        Ok(())
    }
}
