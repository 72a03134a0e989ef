//! An engine and what its requests name, which neither moves nor is freed before the kernel is done with it.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use slab::Slab;

use super::piece_memory::{NO_VECTORS, PieceMemory, Vectors};
use super::{Action, Engine, EngineError, Reaped, Transfer};

/// Memory, and what its owner knows of it.
pub(crate) struct Held<T> {
    pub(crate) memory: PieceMemory,
    /// Of a write, as [`Transfer::write_stream`].
    pub(crate) write_stream: u8,
    about: T,
    /// When the engine got it last.
    since: Option<Instant>,
}

impl<T> Held<T> {
    pub(crate) fn new(memory: PieceMemory, about: T) -> Self {
        Self { memory, write_stream: 0, about, since: None }
    }

    fn pending(&self) -> Option<Pending> {
        Some(Pending { since: self.since?, is_write: self.memory.is_write() })
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.about
    }
}

impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.about
    }
}

/// A request that the engine has, or whose result is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) since: Instant,
    pub(crate) is_write: bool,
}

/// Dropped with requests under way, it leaks what the kernel has.
pub(crate) struct Requests<T> {
    engine: ManuallyDrop<Box<dyn Engine>>,
    pieces: ManuallyDrop<Slab<Held<T>>>,
    /// The vectors of each piece that is under way, by token. A raw pointer, as no reference to them may be made meanwhile.
    vectors: *mut Vectors,
    most_pieces: usize,
    /// Names of files that are being opened, by token.
    names: ManuallyDrop<HashMap<usize, CString>>,
    /// What else was asked of the file system, but for syncs, by token: since when, and whether it writes.
    others: HashMap<usize, Pending>,
    /// Files that were opened, by token, until somebody takes them.
    opened: HashMap<usize, OwnedFd>,
    reaped: Vec<Reaped>,
    in_flight: usize,
}

impl<T> Requests<T> {
    pub(crate) fn new(engine: Box<dyn Engine>, most_pieces: usize) -> Self {
        Self {
            engine: ManuallyDrop::new(engine),
            pieces: ManuallyDrop::new(Slab::with_capacity(most_pieces)),
            vectors: Box::into_raw(vec![NO_VECTORS; most_pieces].into_boxed_slice()).cast(),
            most_pieces,
            names: ManuallyDrop::default(),
            others: HashMap::new(),
            opened: HashMap::new(),
            reaped: Vec::new(),
            in_flight: 0,
        }
    }

    /// Requests that the engine has, or whose results nobody has taken.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a piece, and returns its token.
    pub(crate) fn insert(&mut self, piece: Held<T>) -> usize {
        let token = self.pieces.insert(piece);
        assert!(token < self.most_pieces, "the scheduler granted more than there is room for");
        token
    }

    /// Gives a piece back that is not under way.
    pub(crate) fn remove(&mut self, token: usize) -> Held<T> {
        assert!(!self.pieces[token].memory.is_in_flight(), "the kernel still has it");
        self.pieces.remove(token)
    }

    /// What its owner knows of a piece.
    pub(crate) fn about(&self, token: usize) -> &T {
        &self.pieces[token].about
    }

    /// The same, to be changed; the piece may be under way.
    pub(crate) fn about_mut(&mut self, token: usize) -> &mut T {
        &mut self.pieces[token].about
    }

    /// A piece that is not under way.
    pub(crate) fn idle_mut(&mut self, token: usize) -> &mut Held<T> {
        let piece = &mut self.pieces[token];
        assert!(!piece.memory.is_in_flight(), "the kernel still has it");
        piece
    }

    /// Has the engine move what of a piece is still missing. Its first byte is, or is to be, at `start_bytes` of `file`.
    pub(crate) fn start(
        &mut self,
        token: usize,
        (file, start_bytes): (RawFd, u64),
    ) -> Result<(), EngineError> {
        let piece = &mut self.pieces[token];
        piece.since = Some(Instant::now());
        let write_stream = piece.write_stream;
        let memory = &mut piece.memory;
        assert!(!memory.is_in_flight(), "it is under way already");
        let action = if memory.is_write() { Action::Write } else { Action::Read };
        let offset_bytes = start_bytes + memory.moved_bytes() as u64;
        let (vectors, vector_count) = memory.begin_flight();
        // SAFETY: `insert` has seen that the token is in bounds. Nothing of this token is under way.
        let own_vectors = unsafe {
            let own = self.vectors.add(token);
            own.write(vectors);
            own.cast_const().cast()
        };
        let transfer = Transfer {
            offset_bytes,
            vectors: own_vectors,
            vector_count,
            write_stream,
            ..Transfer::without_memory(action, file, token)
        };
        // SAFETY: the vectors stay as they are until the transfer is reaped, or all is leaked. The piece has the bounce memory, and
        // is neither removed nor given out to be changed before. The caller's memory is valid until the answer, which comes after
        // the reaping.
        let submitted = unsafe { self.submit(transfer) };
        submitted.inspect_err(|_| self.pieces[token].memory.end_flight())
    }

    /// Has the engine do something without memory; `name` is that of the file to open.
    pub(crate) fn request(
        &mut self,
        transfer: Transfer,
        name: Option<&CStr>,
    ) -> Result<(), EngineError> {
        let mut transfer = Transfer {
            offset_bytes: transfer.offset_bytes,
            ..Transfer::without_memory(transfer.action, transfer.file, transfer.token)
        };
        assert!(!matches!(transfer.action, Action::Read | Action::Write), "that takes memory");
        assert_eq!(matches!(transfer.action, Action::Open(_)), name.is_some(), "what is opened?");
        if let Some(name) = name {
            assert!(
                !self.names.contains_key(&transfer.token),
                "two files are opened with one token"
            );
            let own = self.names.entry(transfer.token).or_insert_with(|| name.to_owned());
            transfer.name = own.as_ptr();
        }
        let is_write = match transfer.action {
            Action::Open(flags) => Some(flags & libc::O_CREAT != 0),
            Action::Preallocate | Action::Truncate => Some(true),
            _ => None,
        };
        if let Some(is_write) = is_write {
            let pending = Pending { since: Instant::now(), is_write };
            self.others.insert(transfer.token, pending);
        }
        // SAFETY: it names no memory but the name, whose bytes stay where they are in `names` until it is reaped.
        let submitted = unsafe { self.submit(transfer) };
        submitted.inspect_err(|_| {
            self.names.remove(&transfer.token);
            self.others.remove(&transfer.token);
        })
    }

    /// # Safety
    /// As [`Engine::submit`].
    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        // Before: after a panic in it nobody knows whether the kernel has it.
        self.in_flight += 1;
        // SAFETY: the contract of this function. Files stay open, as the store keeps its own as long as the reactor lives, and
        // an operation its chunk's until nothing of it is under way.
        unsafe { self.engine.submit(transfer) }.inspect_err(|_| self.in_flight -= 1)
    }

    /// As [`Engine::reap`]; what is finished is then for [`Self::take_reaped`]. Says whether something is.
    pub(crate) fn reap(&mut self, timeout: Option<Duration>) -> Result<bool, EngineError> {
        let outcome = self.engine.reap(timeout, &mut self.reaped);
        // They are taken from the end.
        self.reaped.reverse();
        outcome.map(|()| !self.reaped.is_empty())
    }

    /// The next result. A piece is not under way any more then, and a file that was opened is for [`Self::take_opened`].
    pub(crate) fn take_reaped(&mut self) -> Option<Reaped> {
        let done = self.reaped.pop()?;
        self.in_flight -= 1;
        if let Some(piece) = self.pieces.get_mut(done.token) {
            piece.memory.end_flight();
        } else if self.names.remove(&done.token).is_some() && done.result >= 0 {
            // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
            let file = unsafe { OwnedFd::from_raw_fd(done.result) };
            self.opened.insert(done.token, file);
        }
        Some(done)
    }

    /// Since when the transfer was under way that was just reaped with this token, unless it is a sync.
    pub(crate) fn take_pending(&mut self, token: usize) -> Option<Pending> {
        let of_piece = self.pieces.get(token).and_then(Held::pending);
        of_piece.or_else(|| self.others.remove(&token))
    }

    /// Since when the oldest read, or write, is under way. Syncs do not count: they may take as long as others have written.
    pub(crate) fn oldest(&self, is_write: bool) -> Option<Instant> {
        let pieces = self.pieces.iter().map(|(_, piece)| piece);
        let in_flight =
            pieces.filter(|piece| piece.memory.is_in_flight()).filter_map(Held::pending);
        let all = in_flight.chain(self.others.values().copied());
        all.filter(|one| one.is_write == is_write).map(|one| one.since).min()
    }

    /// The file that was opened with this token.
    pub(crate) fn take_opened(&mut self, token: usize) -> Option<OwnedFd> {
        self.opened.remove(&token)
    }

    /// Asks the kernel to cancel what is under way; each request is still reaped. Nothing is submitted after it.
    pub(crate) fn cancel_all(&mut self) {
        self.engine.cancel_all();
    }
}

impl<T> Drop for Requests<T> {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        // SAFETY: each once, and nothing is used after it. The kernel has nothing of them.
        unsafe {
            ManuallyDrop::drop(&mut self.engine);
            ManuallyDrop::drop(&mut self.pieces);
            ManuallyDrop::drop(&mut self.names);
            let vectors = std::ptr::slice_from_raw_parts_mut(self.vectors, self.most_pieces);
            drop(Box::from_raw(vectors));
        }
    }
}

#[cfg(test)]
mod tests;
