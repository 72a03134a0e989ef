//! Second attempts at transfers that have failed, one read and one write at a time. The kernel joins requests for neighbours
//! and fails all of them for one bad sector: apart from each other, those that are intact can be read, or written.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::errnos::{Attempt, Verdict, judge, lacks_blocks};
use super::health::{State, Way};
use super::steps::Failure;
use super::work::Work;
use crate::engine::{Engine, EngineError};
use crate::error::StoreError;

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
    /// Transfers that had succeeded that way until then.
    successes: u64,
}

/// Pieces that go one way.
#[derive(Default)]
struct Line {
    waiting: VecDeque<FailedOnce>,
    /// The one that the kernel has.
    under_way: Option<FailedOnce>,
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

    /// Takes note that the kernel is done with a piece; says, if that was its second attempt, how many transfers had succeeded
    /// that way until the first one failed.
    pub(super) fn end(&mut self, token: usize) -> Option<u64> {
        let take = |line: &mut Line| line.under_way.take_if(|own| own.token == token);
        self.lines.iter_mut().find_map(take).map(|own| own.successes)
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
    /// A piece has failed: it is tried again alone, or fails its operation. `second`: what [`SecondAttempts::end`] says of it.
    pub(super) fn fail_piece(
        &mut self,
        token: usize,
        errno: i32,
        second: Option<u64>,
        now: Instant,
        shared: &Shared,
    ) {
        let way = self.pieces[token].request().way();
        let attempt = match second {
            None => Attempt::First,
            Some(before) if shared.health.successes(way) > before => Attempt::AmongSuccesses,
            Some(_) => Attempt::Alone,
        };
        if self.merits_second_attempt(token, errno, attempt, shared) {
            let successes = shared.health.successes(way);
            let failed = FailedOnce { token, errno, since: now, successes };
            return self.second_attempts.lines[way as usize].waiting.push_back(failed);
        }
        self.end_failed(token, errno, attempt, now, shared);
    }

    /// Whether a piece that has failed may go through by itself, and its operation with it.
    fn merits_second_attempt(
        &self,
        token: usize,
        errno: i32,
        attempt: Attempt,
        shared: &Shared,
    ) -> bool {
        let piece = &self.pieces[token];
        let request = piece.request();
        let state = shared.health.state(request.way());
        judge(request, errno, attempt, state) == Verdict::RetryAlone
            && self.active[piece.grant.id].failure.is_none()
    }

    /// A piece has failed for good.
    fn end_failed(
        &mut self,
        token: usize,
        errno: i32,
        attempt: Attempt,
        now: Instant,
        shared: &Shared,
    ) {
        let request = self.pieces[token].request();
        // One that merits no second attempt any more says nothing of its place.
        let state = match attempt {
            Attempt::First => State::Fails,
            _ => shared.health.state(request.way()),
        };
        let failure = match lacks_blocks(request, errno) {
            true => Failure::NoRoom(StoreError::NoBlocks {
                path: shared.config.path().to_owned(),
                source: Arc::new(io::Error::from_raw_os_error(errno)),
            }),
            false => Failure::of(request, errno, attempt, state),
        };
        shared.health.note_failure(request, errno, now);
        self.end_piece(token, Some(failure), now, shared);
    }

    /// Gives the device the next ones; what has lost its merit meanwhile fails without it.
    pub(super) fn start_second_attempts(
        &mut self,
        now: Instant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        for way in WAYS {
            while let Some(failed) = self.second_attempts.next(way) {
                let FailedOnce { token, errno, since, .. } = failed;
                let is_late = now.saturating_duration_since(since) > LONGEST_WAIT;
                if is_late || !self.merits_second_attempt(token, errno, Attempt::First, shared) {
                    self.end_failed(token, errno, Attempt::First, now, shared);
                    continue;
                }
                self.second_attempts.lines[way as usize].under_way = Some(failed);
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
