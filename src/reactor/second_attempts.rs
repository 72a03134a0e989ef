//! Second attempts at transfers that have failed, one read and one write at a time. The kernel joins requests for neighbours
//! and fails all of them for one bad sector: alone, those that are intact can be read, or written.

use std::collections::VecDeque;
use std::time::Instant;

use super::Shared;
use super::health::{Way, may_be_one_sector};
use super::steps::failure_of;
use super::work::Work;
use crate::engine::Engine;
use crate::error::EngineError;

/// The ways that pieces go.
const WAYS: [Way; 2] = [Way::Read, Way::Write];

/// Pieces, by their token, that go one way.
#[derive(Default)]
struct Line {
    /// With the errno of the first attempt.
    waiting: VecDeque<(usize, i32)>,
    /// The one that the kernel has.
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

    pub(super) fn add(&mut self, token: usize, way: Way, errno: i32) {
        self.lines[way as usize].waiting.push_back((token, errno));
    }

    /// Takes note that the kernel is done with a piece; says whether that was its second attempt.
    pub(super) fn end(&mut self, token: usize) -> bool {
        self.lines.iter_mut().any(|line| line.under_way.take_if(|own| *own == token).is_some())
    }

    /// Forgets those that wait.
    pub(super) fn drain(&mut self) -> Vec<usize> {
        let waiting = self.lines.iter_mut().flat_map(|line| line.waiting.drain(..));
        waiting.map(|(token, _)| token).collect()
    }

    /// The next one to be given to the device, if it has none that goes this way.
    fn next(&mut self, way: Way) -> Option<(usize, i32)> {
        let line = &mut self.lines[way as usize];
        match line.under_way {
            Some(_) => None,
            None => line.waiting.pop_front(),
        }
    }
}

impl Work {
    /// Whether a piece that has failed once may go through by itself.
    pub(super) fn merits_second_attempt(&self, token: usize, errno: i32, shared: &Shared) -> bool {
        may_be_one_sector(errno) && !shared.health.fails_in_a_row(self.pieces[token].way())
    }

    /// Gives the device the next ones. Where everything fails, they fail without it.
    pub(super) fn start_second_attempts(
        &mut self,
        now: Instant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        for way in WAYS {
            while let Some((token, errno)) = self.second_attempts.next(way) {
                if shared.health.fails_in_a_row(way) {
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
