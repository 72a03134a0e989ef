//! Memory that callers have registered: which there is, and which rings know it.
//!
//! A ring without queues pins it, on the thread that registers. The rings that move bytes take it over from there at their next turn, on the
//! thread that owns them: SINGLE_ISSUER lets nobody else change their tables. `version` tells them that there is something to take over.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::buffer_table::{self, MAX_PIECE_BYTES, MAX_PIECES};
use super::{Refusal, Waker};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::base::system::fork::ClosedOnFork;

/// How long rings are waited for. One that is late takes a change over before its next transfer all the same.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Memory that cannot be registered as it was asked for.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the message of each error says what it means")]
pub enum MemoryError {
    #[error("memory to register has 0 bytes; it needs 1 byte or more")]
    Empty,
    #[error(
        "memory to register of {length_bytes} bytes at {address:#x} ends beyond the address space"
    )]
    TooLong { address: usize, length_bytes: usize },
    #[error(
        "memory to register of {length_bytes} bytes at {address:#x} overlaps with memory that is registered; close that first"
    )]
    Overlap { address: usize, length_bytes: usize },
}

/// Registered memory, or a part of it that has an entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: usize,
    pub(super) length: usize,
    /// Tells it from others that had the same entry.
    since: u64,
}

impl Piece {
    pub(super) fn holds(&self, start: usize, length: usize) -> bool {
        start >= self.start && length <= self.length && start - self.start <= self.length - length
    }
}

#[derive(Default)]
struct Entry {
    piece: Option<Piece>,
    /// Version that set or cleared it.
    changed: u64,
}

struct Ring {
    id: u64,
    waker: Arc<Waker>,
    /// Version that it has taken over.
    seen: u64,
}

#[derive(Default)]
pub(super) struct State {
    source: Option<ClosedOnFork<OwnedFd>>,
    entries: Vec<Entry>,
    rings: Vec<Ring>,
    last_id: u64,
    has_told: bool,
    #[cfg(test)]
    pub(super) cannot_clone: bool,
}

impl State {
    pub(super) fn source(&self) -> Option<RawFd> {
        #[cfg(test)]
        if self.cannot_clone {
            return None;
        }
        self.source.as_ref().map(|source| source.as_raw_fd())
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, Piece)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(number, entry)| entry.piece.map(|piece| (number, piece)))
    }

    fn overlaps(&self, start: usize, length: usize) -> bool {
        self.pieces()
            .any(|(_, piece)| start < piece.start + piece.length && piece.start < start + length)
    }

    /// Pins a piece. An entry that was cleared is taken when all rings have cleared it too.
    fn pin(&mut self, start: usize, length: usize, version: u64) -> io::Result<usize> {
        if self.rings.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let source = match &self.source {
            Some(source) => source.as_raw_fd(),
            None => {
                let source = ClosedOnFork::new(buffer_table::ring_without_queues()?);
                buffer_table::make_table(source.as_raw_fd())?;
                self.source.insert(source).as_raw_fd()
            }
        };
        let seen = self.rings.iter().map(|ring| ring.seen).min().unwrap_or(0);
        let is_free = |entry: &Entry| entry.piece.is_none() && entry.changed <= seen;
        let number = self.entries.iter().position(is_free).unwrap_or(self.entries.len());
        if number == MAX_PIECES {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        buffer_table::set(source, number, start, length)?;
        if number == self.entries.len() {
            self.entries.push(Entry::default());
        }
        let piece = Some(Piece { start, length, since: version });
        self.entries[number] = Entry { piece, changed: version };
        Ok(number)
    }

    /// Says once why memory is not registered, and what to do.
    pub(super) fn tell(&mut self, error: &io::Error, length_bytes: usize) {
        if !std::mem::replace(&mut self.has_told, true) {
            let refusal = Refusal::of_memory(error, length_bytes);
            log::warn!("memory is not registered, and transfers go on without that: {refusal}");
        }
    }
}

/// The registered memory of one connector.
#[derive(Default)]
pub(crate) struct RegisteredMemory {
    version: AtomicU64,
    bytes: AtomicU64,
    pub(super) fixed_transfers: AtomicU64,
    pub(super) state: Mutex<State>,
    seen: Condvar,
}

impl RegisteredMemory {
    /// Bytes that are registered now.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Transfers that needed no page looked up.
    pub(crate) fn fixed_transfers(&self) -> u64 {
        self.fixed_transfers.load(Ordering::Relaxed)
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Registers what the system lets it; see [`MemoryHandle::registered_bytes`].
    pub(crate) fn register(
        self: &Arc<Self>,
        address: usize,
        length_bytes: usize,
    ) -> Result<MemoryHandle, MemoryError> {
        if length_bytes == 0 {
            return Err(MemoryError::Empty);
        }
        if address.checked_add(length_bytes).is_none() {
            return Err(MemoryError::TooLong { address, length_bytes });
        }
        let mut state = self.state.lock();
        if state.overlaps(address, length_bytes) {
            return Err(MemoryError::Overlap { address, length_bytes });
        }
        let version = self.version.load(Ordering::Relaxed) + 1;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes < length_bytes {
            let length = (length_bytes - bytes).min(MAX_PIECE_BYTES);
            match state.pin(address + bytes, length, version) {
                Ok(entry) => entries.push(entry),
                Err(error) => {
                    state.tell(&error, length_bytes);
                    break;
                }
            }
            bytes += length;
        }
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.announce(state, version);
        let (memory, process_id) = (Arc::clone(self), std::process::id());
        Ok(MemoryHandle { memory, entries: Mutex::new(entries), bytes: bytes as u64, process_id })
    }

    fn unregister(&self, entries: &[usize], bytes: u64) {
        let mut state = self.state.lock();
        let version = self.version.load(Ordering::Relaxed) + 1;
        for &number in entries {
            state.entries[number] = Entry { piece: None, changed: version };
            if let Some(source) = &state.source {
                // It can only fail for a table that is not there, and then nothing is pinned.
                let _ = buffer_table::clear(source.as_raw_fd(), number);
            }
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.announce(state, version);
    }

    /// Lets the rings know of `version`, and waits for them.
    fn announce(&self, mut state: MutexGuard<'_, State>, version: u64) {
        // Before they are woken: a ring that is about to sleep looks at it, or is woken.
        self.version.store(version, Ordering::Release);
        state.rings.iter().for_each(|ring| ring.waker.wake());
        let deadline = Instant::now() + LONGEST_WAIT;
        let mut is_late = false;
        while !is_late && state.rings.iter().any(|ring| ring.seen < version) {
            (state, is_late) = self.seen.wait_until(state, deadline);
        }
    }

    /// A ring that takes over what is registered from now on, and is woken by `waker` for it. Returns its number.
    pub(super) fn enlist(&self, waker: Arc<Waker>) -> u64 {
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.rings.push(Ring { id, waker, seen: 0 });
        id
    }

    pub(super) fn note_seen(&self, state: &mut State, id: u64, version: u64) {
        state.rings.iter_mut().filter(|ring| ring.id == id).for_each(|ring| ring.seen = version);
        self.seen.notify_all();
    }

    pub(super) fn discharge(&self, id: u64) {
        self.state.lock().rings.retain(|ring| ring.id != id);
        self.seen.notify_all();
    }

    /// Unpins all of it, when no ring is left; handles stay without effect.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.source = None;
        state.entries.iter_mut().for_each(|entry| entry.piece = None);
    }
}

/// Registered memory; see [`crate::Connector::register_memory`]. Dropped, it is closed.
pub struct MemoryHandle {
    memory: Arc<RegisteredMemory>,
    entries: Mutex<Vec<usize>>,
    bytes: u64,
    process_id: u32,
}

impl MemoryHandle {
    /// Bytes, from the start on, that were registered; less than were asked for where the system refused. The log says why.
    pub fn registered_bytes(&self) -> u64 {
        self.bytes
    }

    /// Unregisters the memory. No transfer begins to use the registration after it. One that is in the kernel keeps its pages pinned to its
    /// end, as its batch keeps the memory. It waits for the reactors to take note, for 1 s at most: a later one does so before its next transfer.
    /// In a fork of the owner it does nothing.
    pub fn close(&self) {
        // Before the lock: one that another thread held during fork() stays held in the child for ever.
        if self.process_id == std::process::id() {
            let entries = std::mem::take(&mut *self.entries.lock());
            if !entries.is_empty() {
                self.memory.unregister(&entries, self.bytes);
            }
        }
    }
}

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        self.close();
    }
}

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

#[cfg(test)]
mod tests;
