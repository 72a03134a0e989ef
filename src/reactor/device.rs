//! The bytes of one reactor: pieces in the kernel, bounce memory, isolated retries, checksums.
//!
//! What may be the fault of one sector is tried again alone, one read and one write at a time: the kernel joins requests for
//! neighbours and fails all of them for one bad sector. Apart from each other, those that are intact can be read, or written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ReactorGroup;
use super::io_error_policy::Direction;
use super::io_error_policy::{Attempt, Failure, Request, merits_retry};
use super::piece::{Piece, PieceProgress, PieceState};
use crate::base::buffer::BouncePool;
use crate::engine::{Engine, EngineError, Requests};
use crate::schedule::Grant;

/// A piece that has waited so long is not tried again: the device takes seconds to fail, and that must show.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

#[derive(Clone, Copy)]
struct FailedOnce {
    token: usize,
    errno: i32,
    since: Instant,
    /// Transfers that had succeeded in that direction until then.
    successes: u64,
}

/// Isolated retries in one direction, so that no load waits for stores.
#[derive(Default)]
struct IsolatedRetries {
    waiting: VecDeque<FailedOnce>,
    in_flight: Option<FailedOnce>,
}

pub(super) struct Checksummed {
    pub(super) grant: Grant,
    /// To be combined with those of the other pieces by XOR; 0 without one.
    pub(super) checksum: u64,
    pub(super) processed_bytes: u64,
}

pub(super) struct Device {
    group: Arc<ReactorGroup>,
    pub(super) requests: Requests<PieceState>,
    pub(super) pool: BouncePool,
    isolated: [IsolatedRetries; DIRECTIONS.len()],
    /// Pieces that the kernel is done with, and the processor is not: loads, and the rest.
    moved: [VecDeque<Piece>; 2],
    pub(super) moved_bytes: u64,
    /// Most bytes that may wait there, as loads hold bounce memory until then.
    pub(super) most_moved_bytes: u64,
    /// Pieces that failed, of which their operations do not know yet.
    pub(super) failed: VecDeque<(Grant, Failure)>,
    /// Nothing may be submitted any more.
    pub(super) is_stopping: bool,
}

impl Device {
    /// A device that takes this many transfers at a time, as the scheduler must make sure.
    pub(super) fn new(
        group: Arc<ReactorGroup>,
        engine: Box<dyn Engine>,
        most_transfers: usize,
        most_moved_bytes: u64,
    ) -> Self {
        Self {
            group,
            requests: Requests::new(engine, most_transfers),
            pool: BouncePool::default(),
            isolated: Default::default(),
            moved: Default::default(),
            moved_bytes: 0,
            most_moved_bytes,
            failed: VecDeque::new(),
            is_stopping: false,
        }
    }

    /// Gives the kernel a piece. One that it refuses has failed.
    pub(super) fn start(&mut self, piece: Piece) -> Result<(), EngineError> {
        let token = self.requests.insert(piece);
        self.submit(token)
    }

    fn submit(&mut self, token: usize) -> Result<(), EngineError> {
        self.group.cache.counters.transfers.add(1);
        let place = self.requests.about_mut(token).attempt();
        let submitted = self.requests.start(token, place);
        submitted.inspect_err(|_| self.fail(token, Failure::Closed))
    }

    fn fail(&mut self, token: usize, failure: Failure) {
        let piece = self.requests.remove(token);
        self.failed.push_back((piece.grant, failure));
        piece.memory.release(&mut self.pool);
    }

    /// Takes a result, and says whether the piece is moved. Its memory is still to be looked at then: see
    /// [`Device::next_checksummed`]. `is_wanted`: the operation of the piece has not failed; `is_load`: somebody waits for its bytes.
    pub(super) fn complete(
        &mut self,
        (token, result): (usize, i32),
        (is_wanted, is_load): (bool, bool),
        now: Instant,
    ) -> Result<bool, EngineError> {
        // If it was an isolated retry: how many had succeeded in its direction when the first attempt failed.
        let take = |line: &mut IsolatedRetries| line.in_flight.take_if(|own| own.token == token);
        let isolated = self.isolated.iter_mut().find_map(take).map(|own| own.successes);
        let piece = self.requests.idle_mut(token);
        match piece.advance(result) {
            PieceProgress::Done => {
                let direction = piece.target.request.direction();
                if self.group.health.note_success(direction) && direction == Direction::Write {
                    // The device had failed, and not the extents.
                    self.group.cache.store.retry_bad_extents();
                }
                let piece = self.requests.remove(token);
                self.moved_bytes += piece.grant.length_bytes;
                self.moved[usize::from(!is_load)].push_back(piece);
                return Ok(true);
            }
            // Also a failure: it may only be that it was cancelled, which says nothing about the chunk.
            _ if self.is_stopping => self.fail(token, Failure::Closed),
            PieceProgress::Again => {
                self.group.cache.counters.transfers_resumed.add(1);
                self.submit(token)?;
            }
            PieceProgress::Failed(errno) => {
                self.retry_or_fail((token, errno), isolated, is_wanted, now);
            }
        }
        Ok(false)
    }

    fn retry_or_fail(
        &mut self,
        (token, errno): (usize, i32),
        isolated: Option<u64>,
        is_wanted: bool,
        now: Instant,
    ) {
        let direction = self.request_of(token).direction();
        let successes = self.group.health.successes(direction);
        let attempt = match isolated {
            None if is_wanted && self.merits_retry(token, errno) => {
                let failed = FailedOnce { token, errno, since: now, successes };
                return self.isolated[direction as usize].waiting.push_back(failed);
            }
            None => Attempt::First,
            Some(before) if successes > before => Attempt::AmongSuccesses,
            Some(_) => Attempt::Alone,
        };
        self.fail_for_good(token, errno, attempt, now);
    }

    fn request_of(&self, token: usize) -> Request {
        self.requests.about(token).target.request
    }

    fn merits_retry(&self, token: usize, errno: i32) -> bool {
        let request = self.request_of(token);
        merits_retry(request, errno, self.group.health.state(request.direction()))
    }

    fn fail_for_good(&mut self, token: usize, errno: i32, attempt: Attempt, now: Instant) {
        let request = self.request_of(token);
        let path = self.group.cache.config.path();
        self.fail(token, self.group.health.judge(request, errno, attempt, path, now));
    }

    /// Gives the kernel the next isolated retries, one in each direction. Those fail without one whose operations are not wanted
    /// any more, or that have waited too long.
    pub(super) fn start_isolated(
        &mut self,
        is_wanted: impl Fn(usize) -> bool,
        now: Instant,
    ) -> Result<(), EngineError> {
        for direction in DIRECTIONS {
            while self.isolated[direction as usize].in_flight.is_none()
                && let Some(next) = self.isolated[direction as usize].waiting.pop_front()
            {
                let FailedOnce { token, errno, since, .. } = next;
                let id = self.requests.about(token).grant.id;
                if now.saturating_duration_since(since) > LONGEST_WAIT
                    || !is_wanted(id)
                    || self.failed.iter().any(|(grant, _)| grant.id == id)
                    || !self.merits_retry(token, errno)
                {
                    self.fail_for_good(token, errno, Attempt::First, now);
                    continue;
                }
                self.group.cache.counters.transfers_resumed.add(1);
                self.submit(token)?;
                self.isolated[direction as usize].in_flight = Some(next);
            }
        }
        Ok(())
    }

    /// Fails the pieces that wait for an isolated retry.
    pub(super) fn drop_isolated(&mut self) {
        let waiting = self.isolated.iter_mut().flat_map(|line| line.waiting.drain(..));
        let tokens: Vec<usize> = waiting.map(|failed| failed.token).collect();
        tokens.into_iter().for_each(|token| self.fail(token, Failure::Closed));
    }

    pub(super) fn has_checksums_to_do(&self) -> bool {
        self.moved_bytes > 0
    }

    /// Copies the next piece that the kernel is done with to where its bytes belong, and computes its checksum, loads first.
    pub(super) fn next_checksummed(&mut self) -> Option<Checksummed> {
        let piece = self.moved.iter_mut().find_map(VecDeque::pop_front)?;
        let grant = piece.grant;
        self.moved_bytes -= grant.length_bytes;
        piece.memory.deliver();
        let checksum = piece.checksum();
        let summed_bytes = if checksum.is_some() { grant.length_bytes } else { 0 };
        let processed_bytes = piece.memory.bounced_bytes() as u64 + summed_bytes;
        piece.memory.release(&mut self.pool);
        Some(Checksummed { grant, checksum: checksum.unwrap_or(0), processed_bytes })
    }
}
