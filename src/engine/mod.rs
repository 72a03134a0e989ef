//! Submitting and reaping transfers. The trait is the seam for other engines and for faults in tests.

#![allow(unsafe_code, reason = "the kernel is given addresses")]

mod buffer_table;
mod files;
mod piece_memory;
pub(crate) mod posix;
mod refusal;
mod registered_memory;
mod requests;
pub(crate) mod uring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::eventfd::EfdFlags;

use crate::base::sync::EventFd;
use crate::base::sync::atomic::{AtomicBool, Ordering};

pub use files::{FileOperations, SystemFiles};
pub(crate) use files::{SyncListener, WatchedFiles};
pub(crate) use piece_memory::PieceMemory;
pub use refusal::{EngineError, Refusal};
pub(crate) use registered_memory::RegisteredMemory;
pub use registered_memory::{MemoryError, MemoryHandle};
pub(crate) use requests::{Held, Requests};

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// From disk to memory.
    Read,
    /// From memory to disk.
    Write,
    /// Makes durable what was written to the file and completed before (fdatasync).
    Sync,
    /// Makes durable which names are in the directory `file` (fsync).
    SyncDirectory,
    /// Opens the file called `name` in the directory `file` with these flags of openat(2), making it, for its owner alone,
    /// if they say so. The result is its descriptor.
    Open(i32),
    /// Gives the first `offset_bytes` bytes of the file blocks (fallocate); the file is at least as long then.
    Preallocate,
    /// Makes the file `offset_bytes` bytes long (ftruncate).
    Truncate,
}

/// One vectored transfer at one place of one file, or something else that the disk has to be asked for.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// What it does.
    pub action: Action,
    /// Open file.
    pub file: RawFd,
    /// Where in the file, or how long it is to be.
    pub offset_bytes: u64,
    /// Memory, in order; lives at a stable address until the transfer is reaped.
    pub vectors: *const libc::iovec,
    /// Number of vectors; at least 1 to read and write, else 0.
    pub vector_count: usize,
    /// Write stream of the block device that `file` is; 0 for none. Kernels before 6.16 ignore it.
    pub write_stream: u8,
    /// Name of the file to open, ended by NUL; lives at a stable address until the transfer is reaped. Else null.
    pub name: *const libc::c_char,
    /// Given back when the transfer is reaped.
    pub token: usize,
}

// SAFETY: it only names memory; who submits it vouches for that until it is reaped, whichever thread moves the bytes.
unsafe impl Send for Transfer {}

impl Transfer {
    /// One that moves no bytes.
    pub fn without_memory(action: Action, file: RawFd, token: usize) -> Self {
        Self {
            action,
            file,
            offset_bytes: 0,
            vectors: std::ptr::null(),
            vector_count: 0,
            write_stream: 0,
            name: std::ptr::null(),
            token,
        }
    }
}

/// A transfer that the kernel is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// Its token.
    pub token: usize,
    /// Bytes moved, the descriptor opened, or 0; or a negative errno.
    pub result: i32,
}

/// Moves bytes. Owned by one thread, the reactor's; made on it too.
pub trait Engine {
    /// Its name and what of the kernel it uses, for `stats()`.
    fn description(&self) -> String;

    /// Most reads and writes that it works on at a time. More would wait in it, where no read overtakes a write.
    fn depth(&self) -> usize {
        usize::MAX
    }

    /// Whether it hands [`Transfer::write_stream`] on.
    fn takes_write_streams(&self) -> bool {
        false
    }

    /// Takes a transfer; it reaches the kernel at the latest with the next [`Engine::reap`].
    ///
    /// # Safety
    /// The vectors and the memory they name, and the name, stay valid until the transfer is reaped or the engine is leaked.
    /// So does the file stay open.
    ///
    /// # Errors
    /// `EngineError::Failed` when the kernel takes nothing any more; the transfer is then not under way.
    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError>;

    /// Hands everything submitted to the kernel and adds what is finished to `reaped`. With nothing finished it waits
    /// for a transfer, the waker, or `timeout` (`None`: without end; zero: not at all).
    ///
    /// # Errors
    /// `EngineError::Failed` when the kernel refuses; transfers may then still be under way.
    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError>;

    /// Asks the kernel to cancel what is under way; each transfer is still reaped. Nothing is submitted after it.
    fn cancel_all(&mut self);
}

/// Wakes the thread that waits in [`Engine::reap`]; a system call only if it really sleeps.
pub struct Waker {
    pub(crate) event: EventFd,
    sleeping: AtomicBool,
}

impl Waker {
    /// A waker for one engine.
    ///
    /// # Errors
    /// What eventfd(2) says.
    pub fn new() -> io::Result<Arc<Self>> {
        // Blocking: io_uring completes a read of a non-blocking eventfd with EAGAIN instead of waiting for it.
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        Ok(Arc::new(Self { event, sleeping: AtomicBool::new(false) }))
    }

    /// Call after publishing work.
    pub fn wake(&self) {
        // All changes of it are swaps, so they have one order: in that, either this one is first, and the sleeper sees the work, or we
        // see that it sleeps.
        if self.sleeping.swap(false, Ordering::AcqRel) {
            // EAGAIN cannot happen: one ring per sleep. Any other error would mean that the descriptor is gone.
            let _ = self.event.write(1);
        }
    }

    /// Announces the intention to sleep. Look for work once more after it, and sleep only if there is none.
    pub fn prepare_sleep(&self) {
        self.sleeping.swap(true, Ordering::AcqRel);
    }

    /// Whether the thread sleeps, or is about to. If not, it sees what was published before.
    pub(crate) fn sleeps(&self) -> bool {
        // No load: it has its place in the order of the swaps.
        self.sleeping.fetch_or(false, Ordering::AcqRel)
    }

    /// Takes the announcement back.
    pub fn awake(&self) {
        self.sleeping.swap(false, Ordering::AcqRel);
    }

    /// The eventfd that a wait must end for; an engine reads it when it does.
    pub fn descriptor(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
