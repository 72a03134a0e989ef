//! The file of an operation's chunk in layout `files`: opened before its first piece goes down, closed with the operation.
//!
//! A SET waits until the space that was made for it is there, makes its file, preallocates it, writes, and truncates the
//! padding of the last block. A GET opens its file and looks at its length. Pieces that are granted before the file is
//! ready are held back.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use super::health::Health;
use super::io_error_policy::{
    Attempt, ErrorAction, Failure, FaultScope, Request, is_interruption, is_unsupported, scope_of,
};
use super::piece::{MAX_ATTEMPTS, PieceTarget};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::base::system::fork::ClosedOnFork;
use crate::cache::Cache;
use crate::directory::{Directory, check_opened, make_private, refusal_of};
use crate::engine::{Action, Transfer};
use crate::error::StoreError;
use crate::schedule::Grant;
use crate::store::Store;

/// Tokens from here on are those of requests for chunk files; the rest of them is the operation's id.
pub(super) const CHUNK_FILE_TOKENS: usize = 1 << 62;

/// What is to be done with the file next, or is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileStage {
    /// The files of chunks that were evicted for it have to be removed.
    AwaitSpace,
    Open,
    Preallocate,
    Transfer,
    Truncate,
}

pub(super) struct ChunkFile {
    pub(super) directory: Arc<Directory>,
    name: CString,
    extent: Extent,
    length_bytes: u64,
    /// By a SET; else it is read.
    is_written: bool,
    stage: FileStage,
    open: Option<ClosedOnFork<OwnedFd>>,
    /// Pieces that were granted before it was ready.
    pub(super) held_back: Vec<Grant>,
    attempts: u32,
}

impl ChunkFile {
    pub(super) fn new(
        directory: Arc<Directory>,
        name: CString,
        extent: Extent,
        length_bytes: u64,
        is_written: bool,
    ) -> Self {
        let stage = if is_written { FileStage::AwaitSpace } else { FileStage::Open };
        let (open, held_back, attempts) = (None, Vec::new(), 0);
        Self { directory, name, extent, length_bytes, is_written, stage, open, held_back, attempts }
    }

    pub(super) fn begin_again(&mut self) {
        if self.stage == FileStage::Truncate {
            self.stage = FileStage::Transfer;
        }
    }

    /// Its descriptor; -1 while it is not open.
    pub(super) fn descriptor(&self) -> RawFd {
        self.open.as_ref().map_or(-1, |open| open.as_raw_fd())
    }

    /// Where the chunk is, once its pieces may be transferred.
    pub(super) fn target(&self) -> Option<PieceTarget> {
        let request = if self.is_written { Request::WriteChunkFile } else { Request::Read };
        let file = self.descriptor();
        let target = PieceTarget { request, file, chunk_offset_bytes: 0 };
        (self.stage == FileStage::Transfer).then_some(target)
    }

    /// Looks at what was opened to be read, which has to be a file with the length of the chunk.
    fn check(&self, flags: i32) -> io::Result<()> {
        let open = self.open.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let found_bytes = check_opened(open, self.directory.file.as_fd(), flags)?;
        match self.length_bytes {
            expected if found_bytes == expected => Ok(()),
            expected => {
                Err(io::Error::other(format!("its file has {found_bytes} bytes, not {expected}")))
            }
        }
    }

    /// The next request for it, with the name of what it opens; none while the space that was made for it is not there. `store`
    /// has the space.
    pub(super) fn next(
        &mut self,
        token: usize,
        store: &dyn Store,
    ) -> Result<Option<(Transfer, Option<&CStr>)>, StoreError> {
        if self.stage == FileStage::AwaitSpace && store.space_ready(self.extent)? {
            self.stage = FileStage::Open;
        }
        let (action, descriptor, offset_bytes) = match self.stage {
            FileStage::AwaitSpace | FileStage::Transfer => return Ok(None),
            FileStage::Open => {
                let purpose = match self.is_written {
                    true => libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL,
                    // A FIFO, for one, would wait for a writer.
                    false => libc::O_RDONLY | libc::O_NONBLOCK,
                };
                let flags = purpose | direct_flag(store) | libc::O_CLOEXEC | libc::O_NOFOLLOW;
                (Action::Open(flags), self.directory.file.as_raw_fd(), 0)
            }
            FileStage::Preallocate => (Action::Preallocate, self.descriptor(), self.length_bytes),
            FileStage::Truncate => (Action::Truncate, self.descriptor(), self.length_bytes),
        };
        self.attempts += 1;
        let token = CHUNK_FILE_TOKENS | token;
        let request = Transfer::without_memory(action, descriptor, token);
        let name = matches!(action, Action::Open(_)).then_some(&*self.name);
        Ok(Some((Transfer { offset_bytes, ..request }, name)))
    }

    pub(super) fn awaits_space(&self) -> bool {
        self.stage == FileStage::AwaitSpace
    }

    /// Whether it does not wait for space, or the space is there.
    pub(super) fn can_go_on(&self, store: &dyn Store) -> bool {
        !self.awaits_space() || !matches!(store.space_ready(self.extent), Ok(false))
    }

    /// Takes the file that was opened, so that it is closed whatever follows.
    pub(super) fn set_opened(&mut self, file: OwnedFd) {
        if self.is_written {
            make_private(file.as_fd());
        }
        self.open = Some(ClosedOnFork::new(file));
    }

    /// Takes the result of a request into account. Says whether the operation has nothing more to do with the file.
    pub(super) fn finish(
        &mut self,
        result: i32,
        cache: &Cache,
        health: &Health,
    ) -> Result<bool, Failure> {
        let (stage, store) = (self.stage, &*cache.store);
        let request = match self.is_written {
            true => Request::MakeChunkFile,
            false => Request::OpenChunkFile,
        };
        let failure_of = |error: io::Error| match error.raw_os_error() {
            Some(errno) => {
                let path = cache.config.path();
                health.judge(request, errno, Attempt::Alone, path, Instant::now())
            }
            // It is not the file of the chunk.
            None => Failure::Transfer(error, ErrorAction::Drop),
        };
        match result.min(0).abs() {
            0 => {}
            errno if is_interruption(errno) && self.attempts < MAX_ATTEMPTS => return Ok(false),
            errno if !self.is_written => {
                let error = io::Error::from_raw_os_error(errno);
                // Without an errno if what has its name is no file.
                return Err(failure_of(refusal_of(
                    self.directory.file.as_fd(),
                    &*self.name,
                    error,
                )));
            }
            // Writes may find the file system full.
            errno if stage == FileStage::Preallocate && is_unsupported(errno) => {}
            errno => {
                let error = || io::Error::from_raw_os_error(errno);
                if stage != FileStage::Truncate && scope_of(request, errno) == FaultScope::Room {
                    let refused = store.creation_done(self.extent, Err(error()));
                    refused.map_err(Failure::NoRoom)?;
                }
                return Err(failure_of(error()));
            }
        }
        self.attempts = 0;
        self.stage = match stage {
            FileStage::Open if self.is_written => FileStage::Preallocate,
            FileStage::Open => {
                self.check(direct_flag(store)).map_err(failure_of)?;
                FileStage::Transfer
            }
            FileStage::Preallocate => {
                // It cannot refuse what went well.
                let _ = store.creation_done(self.extent, Ok(()));
                FileStage::Transfer
            }
            FileStage::Truncate => return Ok(true),
            stage => stage,
        };
        Ok(false)
    }

    /// All pieces went through, with O_DIRECT. Says whether padding was written behind the chunk, and has to be truncated.
    pub(super) fn begin_truncate(&mut self) -> bool {
        let is_due = self.is_written
            && self.stage == FileStage::Transfer
            && !self.length_bytes.is_multiple_of(BLOCK_BYTES);
        if is_due {
            self.stage = FileStage::Truncate;
        }
        is_due
    }
}

fn direct_flag(store: &dyn Store) -> i32 {
    if store.geometry().direct { libc::O_DIRECT } else { 0 }
}
