//! What the errno of a failed transfer says, and what follows from it. Errnos are judged here alone.

use std::io;
use std::path::Path;
use std::sync::Arc;

use libc::{
    EACCES, EAGAIN, EBADE, EBADF, EBADMSG, ECANCELED, EDQUOT, EEXIST, EFAULT, EILSEQ, EINTR, EIO,
    EISDIR, ELOOP, EMFILE, ENFILE, ENODATA, ENODEV, ENOENT, ENOLINK, ENOMEDIUM, ENOMEM, ENOSPC,
    ENOTDIR, ENXIO, EOPNOTSUPP, EPERM, EREMOTEIO, EROFS, ETIMEDOUT, EUCLEAN,
};

use crate::batch::completion_queue::{FailureCode, FailureReason};
use crate::error::StoreError;

/// What stands for an errno where a file, or a device, ends before the chunk does.
pub(super) const END_OF_FILE: i32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Read,
    Write,
    /// Into a data file, which has the space for it unless it shares blocks with a copy or has holes.
    WriteDataFile,
    Sync,
    /// Into the file of one chunk, which may not have all of its space.
    WriteChunkFile,
    /// To open the file of one chunk that is to be read.
    OpenChunkFile,
    /// To make the file of one chunk, to reserve its space, or to cut it.
    MakeChunkFile,
    /// To lengthen what holds many chunks, or the index.
    Grow,
}

impl Request {
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::Read | Self::OpenChunkFile => Direction::Read,
            Self::Write
            | Self::WriteDataFile
            | Self::WriteChunkFile
            | Self::MakeChunkFile
            | Self::Grow => Direction::Write,
            Self::Sync => Direction::Sync,
        }
    }
}

/// What a failure speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultScope {
    /// One extent, or the whole device: nobody can tell from one failure.
    Extent,
    Device,
    Gone,
    /// The file of one chunk: it is not there, or something else has its name.
    ChunkFile,
    Room,
    /// This process, or what it may have.
    Process,
}

/// What becomes of the chunk that a read was for, or of the extent that a write was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorAction {
    /// The failure says nothing of it: it stays as it is.
    Keep,
    /// It may be unusable: it is, if it fails again although others do not.
    Doubt,
    Drop,
}

/// How a request that failed was made. The kernel joins requests for neighbours, and fails all of them for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Others of its kind may have been beside it: it says nothing of one extent.
    First,
    /// With nothing of its kind beside it.
    Alone,
    /// The same, and others of its kind succeeded since its first attempt.
    AmongSuccesses,
}

/// Whether a transfer whose first attempt failed is tried once more, with nothing of its kind beside it. `state` is that of the
/// device, in the direction of the request.
pub(super) fn merits_retry(request: Request, errno: i32, state: DeviceState) -> bool {
    state != DeviceState::Fails && scope_of(request, errno) == FaultScope::Extent
}

fn fate_of(request: Request, errno: i32, attempt: Attempt, state: DeviceState) -> ErrorAction {
    match (scope_of(request, errno), attempt) {
        (FaultScope::ChunkFile, _) => ErrorAction::Drop,
        (FaultScope::Extent, Attempt::First) => ErrorAction::Keep,
        (FaultScope::Extent, _) if state != DeviceState::Works => ErrorAction::Keep,
        (FaultScope::Extent, Attempt::AmongSuccesses) if request == Request::Read => {
            ErrorAction::Drop
        }
        (FaultScope::Extent, _) => ErrorAction::Doubt,
        _ => ErrorAction::Keep,
    }
}

/// Whether a request was interrupted and is to be made once more, as it is.
pub(super) fn is_interruption(errno: i32) -> bool {
    matches!(errno, EINTR | EAGAIN)
}

/// Whether a request was cancelled before it began: that says nothing of the device.
pub(super) fn is_cancellation(errno: i32) -> bool {
    errno == ECANCELED
}

pub(super) fn is_unsupported(errno: i32) -> bool {
    errno == EOPNOTSUPP
}

/// Whether `errno`, of an attempt to open a path, says that the device below it is lost.
pub(crate) fn is_gone(errno: i32) -> bool {
    match scope_of(Request::Read, errno) {
        FaultScope::Extent | FaultScope::Gone => true,
        _ => matches!(errno, EROFS | ETIMEDOUT | ENOLINK | EBADE),
    }
}

/// Whether `errno`, of an attempt to write to an index, is of the path, and not of this process or of what the file system has left
/// at this moment.
pub(crate) fn is_of_path(errno: i32) -> bool {
    !matches!(scope_of(Request::Grow, errno), FaultScope::Process | FaultScope::Room)
}

/// Errors of the block layer are those that `blk_errors` in the kernel's block/blk-core.c names. A medium error of an NVMe
/// drive is ENODATA there. File systems answer EUCLEAN or EBADMSG for structures of theirs that are damaged.
pub(super) fn scope_of(request: Request, errno: i32) -> FaultScope {
    use Request::{Grow, MakeChunkFile, OpenChunkFile, WriteChunkFile, WriteDataFile};
    match (request, errno) {
        (_, ENOMEM | EMFILE | ENFILE | EBADF | EFAULT | ECANCELED) => FaultScope::Process,
        (OpenChunkFile, EACCES | EPERM) => FaultScope::Process,
        // ENXIO: a socket, or a special file of no device, has its name.
        (OpenChunkFile, ENOENT | ENXIO | ELOOP | EISDIR | ENOTDIR) => FaultScope::ChunkFile,
        (MakeChunkFile, EEXIST | ENXIO) => FaultScope::ChunkFile,
        (MakeChunkFile | WriteChunkFile | WriteDataFile | Grow, ENOSPC | EDQUOT) => {
            FaultScope::Room
        }
        // No file system and no device of their own says so.
        (OpenChunkFile | MakeChunkFile, ENODEV | ENOMEDIUM) => FaultScope::Device,
        (_, ENODEV | ENXIO | ENOMEDIUM) => FaultScope::Gone,
        // The space is there by what the device says, and is not: behind what it has by now, or it gives out more than it has.
        (Request::Write, ENOSPC | EDQUOT) => FaultScope::Extent,
        (_, END_OF_FILE | EIO | ENODATA | EILSEQ | EREMOTEIO | EUCLEAN | EBADMSG) => {
            FaultScope::Extent
        }
        _ => FaultScope::Device,
    }
}

/// The error of a failed request.
pub(super) fn error_of(errno: i32) -> io::Error {
    match errno {
        END_OF_FILE => io::Error::other("the file or device ends before the chunk does"),
        errno => io::Error::from_raw_os_error(errno),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
    Sync,
}

impl Direction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Sync => "syncs",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeviceState {
    /// A failure may be the fault of one extent.
    #[default]
    Works,
    /// So much fails that a failure says nothing of one extent.
    Falters,
    Fails,
}

/// Why an operation did not do what it was asked.
pub(super) enum Failure {
    /// It got no extent, or was refused before any transfer.
    NoRoom(StoreError),
    /// For this reason: the next open would not find it, or the SET of its key with the same bytes failed for which it waited.
    Other(FailureReason),
    /// The device or the file system said no; what that means for the chunk to be read, or the extent to be written.
    Transfer(io::Error, ErrorAction),
    /// A sync failed, with this errno.
    Sync(i32),
    /// It could not start in time.
    Late,
    /// The reactor ends: the connector is being closed, or the engine has failed.
    Closed,
}

impl Failure {
    /// That of a `request` in the store at `path` that failed with `errno` and is not tried again.
    pub(super) fn of(
        request: Request,
        errno: i32,
        attempt: Attempt,
        state: DeviceState,
        path: &Path,
    ) -> Self {
        if request == Request::WriteDataFile && scope_of(request, errno) == FaultScope::Room {
            let source = Arc::new(io::Error::from_raw_os_error(errno));
            return Self::NoRoom(StoreError::NoBlocks { path: path.to_owned(), source });
        }
        Self::Transfer(error_of(errno), fate_of(request, errno, attempt, state))
    }

    pub(super) fn code(&self) -> FailureCode {
        match self {
            Self::NoRoom(error) => FailureReason::from(error).code,
            Self::Other(reason) => reason.code,
            Self::Transfer(..) | Self::Sync(_) => FailureCode::Io,
            // A load alone is late, and that is a miss.
            Self::Late | Self::Closed => FailureCode::Closed,
        }
    }

    /// What is said of it, about `what` was to be written.
    pub(super) fn text(&self, what: impl FnOnce() -> String) -> String {
        match self {
            Self::NoRoom(error) => error.to_string(),
            Self::Other(reason) => reason.message.clone(),
            Self::Transfer(error, _) => format!("cannot write {}: {error}", what()),
            Self::Sync(errno) => format!("cannot make {} durable: {}", what(), error_of(*errno)),
            Self::Late => "it could not start in time".into(),
            Self::Closed => "the connector was closed before the chunk was written".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_one_place_is_tried_alone_and_doubted_where_the_device_works() {
        for errno in [EIO, ENODATA, EILSEQ, EREMOTEIO, EUCLEAN, END_OF_FILE] {
            for request in [Request::Read, Request::Write, Request::WriteDataFile] {
                assert!(merits_retry(request, errno, DeviceState::Works));
                assert!(merits_retry(request, errno, DeviceState::Falters));
                assert!(!merits_retry(request, errno, DeviceState::Fails));
                assert_eq!(scope_of(request, errno), FaultScope::Extent);
                let action = |attempt, state| fate_of(request, errno, attempt, state);
                assert_eq!(action(Attempt::First, DeviceState::Works), ErrorAction::Keep);
                assert_eq!(action(Attempt::Alone, DeviceState::Works), ErrorAction::Doubt);
                assert_eq!(action(Attempt::Alone, DeviceState::Falters), ErrorAction::Keep);
                assert_eq!(
                    action(Attempt::AmongSuccesses, DeviceState::Falters),
                    ErrorAction::Keep
                );
            }
        }
        let among = |request| fate_of(request, EIO, Attempt::AmongSuccesses, DeviceState::Works);
        assert_eq!(among(Request::Read), ErrorAction::Drop);
        assert_eq!(among(Request::Write), ErrorAction::Doubt);
        assert_eq!(scope_of(Request::Sync, EIO), FaultScope::Extent);
    }

    #[test]
    fn only_what_speaks_of_the_chunk_drops_it() {
        let judged = |request, errno| {
            let action = fate_of(request, errno, Attempt::Alone, DeviceState::Works);
            (action, scope_of(request, errno))
        };
        for errno in [ETIMEDOUT, ENOLINK, EROFS, EBADE] {
            for request in [Request::Read, Request::Write] {
                assert!(!merits_retry(request, errno, DeviceState::Works));
                assert_eq!(judged(request, errno), (ErrorAction::Keep, FaultScope::Device));
            }
        }
        for errno in [ENOMEM, EMFILE, ENFILE, EACCES] {
            assert_eq!(
                judged(Request::OpenChunkFile, errno),
                (ErrorAction::Keep, FaultScope::Process)
            );
        }
        for errno in [ENOENT, ENXIO, ELOOP] {
            assert_eq!(
                judged(Request::OpenChunkFile, errno),
                (ErrorAction::Drop, FaultScope::ChunkFile)
            );
        }
        assert_eq!(judged(Request::OpenChunkFile, EIO), (ErrorAction::Doubt, FaultScope::Extent));
    }

    #[test]
    fn what_has_the_name_of_a_chunk_file_says_nothing_of_the_device() {
        for errno in [EEXIST, ENXIO] {
            assert_eq!(scope_of(Request::MakeChunkFile, errno), FaultScope::ChunkFile);
        }
        assert!(is_cancellation(ECANCELED) && !is_cancellation(EIO));
        assert!(is_unsupported(EOPNOTSUPP) && !is_unsupported(EIO));
    }

    #[test]
    fn a_full_file_system_is_no_failure_and_a_device_without_its_space_is() {
        for errno in [ENOSPC, EDQUOT] {
            assert_eq!(scope_of(Request::Grow, errno), FaultScope::Room);
            assert_eq!(scope_of(Request::MakeChunkFile, errno), FaultScope::Room);
            assert_eq!(scope_of(Request::WriteDataFile, errno), FaultScope::Room);
            assert_eq!(scope_of(Request::Write, errno), FaultScope::Extent);
            assert_eq!(scope_of(Request::Sync, errno), FaultScope::Device);
        }
    }

    #[test]
    fn a_device_is_gone_by_its_transfers_and_not_by_one_file() {
        for errno in [ENODEV, ENXIO, ENOMEDIUM] {
            assert_eq!(scope_of(Request::Read, errno), FaultScope::Gone);
            assert_ne!(scope_of(Request::OpenChunkFile, errno), FaultScope::Gone);
            assert!(is_gone(errno));
        }
        assert!(is_of_path(EIO) && is_of_path(EROFS) && is_of_path(ENXIO));
        assert!(![EMFILE, ENFILE, ENOMEM, ENOSPC].into_iter().any(is_of_path));
        assert!(is_gone(EIO) && is_gone(EROFS) && !is_gone(ENOENT) && !is_gone(ENOSPC));
    }
}
