//! What one ring knows of registered memory.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::Waker;
use super::buffer_table;
use super::registered_memory::{Piece, RegisteredMemory, State};
use crate::base::sync::atomic::Ordering;

/// A ring's share of what is registered. Dropped, the ring is waited for no more.
pub(super) struct RingMemory {
    shared: Arc<RegisteredMemory>,
    id: u64,
    seen: u64,
    has_table: bool,
    /// Its entries and their numbers, by address.
    pieces: Vec<(usize, Piece)>,
}

impl RingMemory {
    pub(super) fn new(shared: &Arc<RegisteredMemory>, waker: &Arc<Waker>) -> Self {
        let id = shared.enlist(Arc::clone(waker));
        Self { shared: Arc::clone(shared), id, seen: 0, has_table: false, pieces: Vec::new() }
    }

    pub(super) fn is_outdated(&self) -> bool {
        self.shared.version() != self.seen
    }

    /// Makes the table of `ring` what is registered now. Call it on the ring's thread, with no entry in its queue that has yet to be seen by the
    /// kernel: it would name another buffer, or none.
    pub(super) fn synchronise(&mut self, ring: RawFd) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state.lock();
        let wanted: Vec<(usize, Piece)> = state.pieces().collect();
        let cloned = state.source().map(|source| buffer_table::clone(ring, source));
        if let Some(Ok(())) = cloned {
            (self.pieces, self.has_table) = (wanted, true);
        } else {
            self.pin(ring, &mut state, &wanted);
        }
        self.pieces.sort_unstable_by_key(|(_, piece)| piece.start);
        // It cannot change while the state is locked.
        self.seen = shared.version();
        shared.note_seen(&mut state, self.id, self.seen);
    }

    /// The same where the kernel cannot clone a table: what is new is pinned once more, and charged again.
    fn pin(&mut self, ring: RawFd, state: &mut State, wanted: &[(usize, Piece)]) {
        for (number, _) in self.pieces.extract_if(.., |own| !wanted.contains(own)) {
            // It can only fail for a table that is not there.
            let _ = buffer_table::clear(ring, number);
        }
        for &(number, piece) in wanted {
            if !self.pieces.contains(&(number, piece)) && self.add(ring, state, number, piece) {
                self.pieces.push((number, piece));
            }
        }
    }

    fn add(&mut self, ring: RawFd, state: &mut State, number: usize, piece: Piece) -> bool {
        if !self.has_table
            && let Err(error) = buffer_table::make_table(ring)
        {
            state.tell(&error, piece.length);
            return false;
        }
        self.has_table = true;
        let added = buffer_table::set(ring, number, piece.start, piece.length);
        added.inspect_err(|error| state.tell(error, piece.length)).is_ok()
    }

    /// Number of the buffer that has all of this memory.
    pub(super) fn find(&self, vector: libc::iovec) -> Option<u16> {
        let start = vector.iov_base.addr();
        let next = self.pieces.partition_point(|(_, piece)| piece.start <= start);
        let (number, piece) = self.pieces[..next].last()?;
        piece.holds(start, vector.iov_len).then(|| {
            self.shared.fixed_transfers.fetch_add(1, Ordering::Relaxed);
            *number as u16
        })
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        self.shared.discharge(self.id);
    }
}
