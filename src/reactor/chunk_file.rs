//! The file of an operation's chunk in layout `files`: opened before its first piece goes down, closed with the operation.
//!
//! A SET waits until the space that was made for it is there, makes its file, preallocates it, writes, and truncates the
//! padding of the last block. A GET opens its file and looks at its length. Pieces that are granted before the file is
//! ready are held back.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::errnos::{
    Attempt, Failure, Fate, Request, is_interruption, is_no_space, is_unsupported,
};
use super::health::Health;
use super::piece::MAX_ATTEMPTS;
use crate::block::Extent;
use crate::cache::Cache;
use crate::directory::{check_opened, make_private, refusal_of};
use crate::engine::{Action, Transfer};
use crate::error::StoreError;
use crate::fork::ClosedOnFork;
use crate::schedule::Grant;
use crate::store::Store;

/// Tokens from here on are those of requests for chunk files; the rest of them is the operation's id.
pub(super) const CHUNK_FILE_TOKENS: usize = 1 << 62;

/// What is to be done with the file next, or is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileStage {
    /// The files of chunks that were evicted for it have to be removed.
    AwaitSpace,
    Open,
    Preallocate,
    Transfer,
    Truncate,
}

pub(super) struct ChunkFile {
    directory: RawFd,
    /// At a fixed address, as the kernel reads it.
    name: CString,
    stage: FileStage,
    open: Option<OpenFile>,
    held_back: Vec<Grant>,
    attempts: u32,
}

#[derive(Clone, Copy)]
pub(super) struct ChunkOfFile {
    pub(super) extent: Extent,
    pub(super) length_bytes: u64,
    pub(super) is_written: bool,
}

pub(super) enum NextRequest {
    Wait,
    Submit(Transfer),
    Pieces(Vec<Grant>),
    Fail(StoreError),
}

struct OpenFile {
    // Before the file is closed.
    _closed_on_fork: ClosedOnFork,
    file: OwnedFd,
}

impl ChunkFile {
    pub(super) fn new(directory: RawFd, name: CString) -> Self {
        Self {
            directory,
            name,
            stage: FileStage::AwaitSpace,
            open: None,
            held_back: Vec::new(),
            attempts: 0,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.stage == FileStage::Transfer
    }

    /// Keeps a piece until the file is ready. Says whether it is the first one.
    pub(super) fn hold_back(&mut self, grant: Grant) -> bool {
        self.held_back.push(grant);
        self.held_back.len() == 1
    }

    pub(super) fn begin_again(&mut self) {
        if self.stage == FileStage::Truncate {
            self.stage = FileStage::Transfer;
        }
    }

    /// Its descriptor; -1 while it is not open.
    pub(super) fn descriptor(&self) -> RawFd {
        self.open.as_ref().map_or(-1, |open| open.file.as_raw_fd())
    }

    pub(super) fn directory(&self) -> RawFd {
        self.directory
    }

    fn open_directory(&self) -> BorrowedFd<'_> {
        // SAFETY: the directory is open as long as the store.
        unsafe { BorrowedFd::borrow_raw(self.directory) }
    }

    /// Looks at what was opened to be read, which has to be a file with this length.
    fn check(&self, length_bytes: u64, flags: i32) -> io::Result<()> {
        let open = self.open.as_ref().ok_or(io::ErrorKind::NotFound)?;
        match check_opened(&open.file, self.open_directory(), flags)? {
            found_bytes if found_bytes == length_bytes => Ok(()),
            found_bytes => Err(io::Error::other(format!(
                "its file has {found_bytes} bytes, not {length_bytes}"
            ))),
        }
    }

    /// Why it could not be opened: an error without an errno if what has its name is no file.
    fn refusal(&self, errno: i32) -> io::Error {
        refusal_of(self.open_directory(), &*self.name, io::Error::from_raw_os_error(errno))
    }

    /// What comes next for it, in an operation with this chunk that `is_written`, or read. `store` has the space for it.
    pub(super) fn next(
        &mut self,
        chunk: ChunkOfFile,
        token: usize,
        store: &dyn Store,
    ) -> NextRequest {
        if self.stage == FileStage::AwaitSpace {
            let is_ready = match chunk.is_written {
                true => store.space_ready(chunk.extent),
                false => Ok(true),
            };
            match is_ready {
                Ok(true) => self.stage = FileStage::Open,
                Ok(false) => return NextRequest::Wait,
                Err(error) => return NextRequest::Fail(error),
            }
        }
        let (action, descriptor, offset_bytes) = match self.stage {
            FileStage::AwaitSpace => return NextRequest::Wait,
            FileStage::Transfer => return NextRequest::Pieces(mem::take(&mut self.held_back)),
            FileStage::Open => {
                let purpose = match chunk.is_written {
                    true => libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL,
                    // A FIFO, for one, would wait for a writer.
                    false => libc::O_RDONLY | libc::O_NONBLOCK,
                };
                let flags = purpose | direct_flag(store) | libc::O_CLOEXEC | libc::O_NOFOLLOW;
                (Action::Open(flags), self.directory, 0)
            }
            FileStage::Preallocate => (Action::Preallocate, self.descriptor(), chunk.length_bytes),
            FileStage::Truncate => (Action::Truncate, self.descriptor(), chunk.length_bytes),
        };
        self.attempts += 1;
        NextRequest::Submit(Transfer {
            offset_bytes,
            name: self.name.as_ptr(),
            ..Transfer::without_memory(action, descriptor, CHUNK_FILE_TOKENS | token)
        })
    }

    /// Whether it does not wait for space, or the space is there.
    pub(super) fn can_go_on(&self, chunk: ChunkOfFile, store: &dyn Store) -> bool {
        self.stage != FileStage::AwaitSpace || !matches!(store.space_ready(chunk.extent), Ok(false))
    }

    /// Takes the file that was opened, so that it is closed whatever follows.
    pub(super) fn take_opened(&mut self, chunk: ChunkOfFile, result: i32) {
        if self.stage != FileStage::Open || result < 0 {
            return;
        }
        // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
        let file = unsafe { OwnedFd::from_raw_fd(result) };
        let _closed_on_fork = ClosedOnFork::new(result);
        if chunk.is_written {
            make_private(file.as_fd());
        }
        self.open = Some(OpenFile { _closed_on_fork, file });
    }

    /// Takes the result of a request into account. Says whether the operation has nothing more to do with the file.
    pub(super) fn finish(
        &mut self,
        chunk: ChunkOfFile,
        result: i32,
        cache: &Cache,
        health: &Health,
    ) -> Result<bool, Failure> {
        let (stage, store) = (self.stage, &*cache.store);
        let is_opened_to_read = stage == FileStage::Open && !chunk.is_written;
        let request = match is_opened_to_read {
            true => Request::OpenChunkFile,
            false => Request::MakeChunkFile,
        };
        let failure_of = |error: io::Error| match error.raw_os_error() {
            Some(errno) => {
                let state = health.state(request.direction());
                health.note_failure(request, errno, Instant::now());
                let path = cache.config.path();
                Failure::of(request, errno, Attempt::First, state, path)
            }
            // It is not the file of the chunk.
            None => Failure::Transfer(error, Fate::Drop),
        };
        let is_making = chunk.is_written && stage != FileStage::Truncate;
        match result.min(0).abs() {
            0 => {}
            errno if is_interruption(errno) && self.attempts < MAX_ATTEMPTS => return Ok(false),
            errno if is_opened_to_read => return Err(failure_of(self.refusal(errno))),
            errno if is_making && is_no_space(request, errno) => {
                let error = || io::Error::from_raw_os_error(errno);
                return Err(match store.creation_done(chunk.extent, Err(error())) {
                    Err(error) => Failure::NoRoom(error),
                    Ok(()) => failure_of(error()),
                });
            }
            // Writes may find the file system full.
            errno if stage == FileStage::Preallocate && is_unsupported(errno) => {}
            errno => return Err(failure_of(io::Error::from_raw_os_error(errno))),
        }
        self.attempts = 0;
        self.stage = match stage {
            FileStage::Open if chunk.is_written => FileStage::Preallocate,
            FileStage::Open => {
                self.check(chunk.length_bytes, direct_flag(store)).map_err(failure_of)?;
                FileStage::Transfer
            }
            FileStage::Preallocate => {
                // It cannot refuse what went well.
                let _ = store.creation_done(chunk.extent, Ok(()));
                FileStage::Transfer
            }
            FileStage::Truncate => return Ok(true),
            stage => stage,
        };
        Ok(false)
    }

    /// All pieces are written. Says whether the padding behind the chunk has to be truncated.
    pub(super) fn begin_truncate(&mut self) -> bool {
        let is_due = self.stage == FileStage::Transfer;
        if is_due {
            self.stage = FileStage::Truncate;
        }
        is_due
    }

    pub(super) fn take_held_back(&mut self) -> Vec<Grant> {
        mem::take(&mut self.held_back)
    }
}

fn direct_flag(store: &dyn Store) -> i32 {
    if store.geometry().direct { libc::O_DIRECT } else { 0 }
}
