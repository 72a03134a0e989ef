//! Reads that have failed, and are done once more, one at a time. The kernel joins requests for neighbours and fails all of
//! them for one bad sector: alone, those that are intact can be read.

use std::collections::VecDeque;
use std::time::Instant;

use super::Shared;
use super::health::{Way, may_be_one_sector};
use super::steps::failure_of;
use super::work::Work;
use crate::engine::Engine;
use crate::error::EngineError;

/// Pieces, by their token, that wait for their second read, with the errno of the first one.
#[derive(Default)]
pub(super) struct Rereads {
    waiting: VecDeque<(usize, i32)>,
    /// The one that the kernel has.
    under_way: Option<usize>,
}

impl Rereads {
    /// How many pieces are not in the kernel.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn add(&mut self, token: usize, errno: i32) {
        self.waiting.push_back((token, errno));
    }

    /// Takes note that the kernel is done with a piece; says whether that was its second read.
    pub(super) fn end(&mut self, token: usize) -> bool {
        self.under_way.take_if(|own| *own == token).is_some()
    }

    /// Forgets those that wait.
    pub(super) fn drain(&mut self) -> VecDeque<(usize, i32)> {
        std::mem::take(&mut self.waiting)
    }
}

impl Work {
    /// Whether a piece that has failed may be intact all the same.
    pub(super) fn may_be_reread(&self, token: usize, errno: i32, shared: &Shared) -> bool {
        may_be_one_sector(errno)
            && self.pieces[token].way() == Way::Read
            && !shared.health.fails_in_a_row(Way::Read)
    }

    /// Gives the device the next one, if it has none. Where everything fails, they fail without it.
    pub(super) fn reread_next(
        &mut self,
        now: Instant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        while self.rereads.under_way.is_none()
            && let Some((token, errno)) = self.rereads.waiting.pop_front()
        {
            if shared.health.fails_in_a_row(Way::Read) {
                shared.health.note_error(Way::Read, errno, now);
                self.end_piece(token, Some(failure_of(errno)), now, shared);
                continue;
            }
            self.rereads.under_way = Some(token);
            shared.counters.transfers_resumed.add(1);
            let submitted = self.submit(token, shared, engine);
            if submitted.is_err() {
                self.rereads.under_way = None;
                return submitted;
            }
        }
        Ok(())
    }
}
