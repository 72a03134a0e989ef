//! What the errno of a failed transfer says, and what follows from it. Errnos are judged here alone.

use std::io;
use std::sync::Arc;

use libc::{
    EACCES, EAGAIN, EBADE, EBADF, EBADMSG, ECANCELED, EDQUOT, EEXIST, EFAULT, EILSEQ, EINTR, EIO,
    EISDIR, ELOOP, EMFILE, ENFILE, ENODATA, ENODEV, ENOENT, ENOLINK, ENOMEDIUM, ENOMEM, ENOSPC,
    ENOTDIR, ENXIO, EOPNOTSUPP, EPERM, EREMOTEIO, EROFS, ETIMEDOUT, EUCLEAN,
};

use super::health::{DeviceState, Direction};
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

    fn is_transfer(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::WriteDataFile | Self::WriteChunkFile)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
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
pub(super) enum Fate {
    /// The failure says nothing of it: it stays as it is.
    Keep,
    /// It may be unusable: it is, if it fails again although others do not.
    Doubt,
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Nothing,
    Counts,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    First,
    /// The second one, with nothing of its kind beside it.
    Alone,
    /// The same, and others of its kind succeeded between the two.
    AmongSuccesses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is asked for once more, with nothing of its kind beside it.
    RetryAlone,
    Fail(Fate, Weight),
}

/// Judges the failure of a `request` with `errno`. `state` is that of the device, in the direction of the request.
pub(super) fn judge(request: Request, errno: i32, attempt: Attempt, state: DeviceState) -> Verdict {
    let subject = subject_of(request, errno);
    let can_retry =
        request.is_transfer() && attempt == Attempt::First && state != DeviceState::Fails;
    match subject {
        Subject::Extent if can_retry => Verdict::RetryAlone,
        Subject::Extent if state == DeviceState::Works => {
            let is_unreadable = request == Request::Read && attempt == Attempt::AmongSuccesses;
            Verdict::Fail(if is_unreadable { Fate::Drop } else { Fate::Doubt }, Weight::Counts)
        }
        Subject::Extent | Subject::Device => Verdict::Fail(Fate::Keep, Weight::Counts),
        Subject::Gone => Verdict::Fail(Fate::Keep, Weight::Gone),
        Subject::ChunkFile => Verdict::Fail(Fate::Drop, Weight::Nothing),
        Subject::Room | Subject::Process => Verdict::Fail(Fate::Keep, Weight::Nothing),
    }
}

pub(super) fn is_no_space(request: Request, errno: i32) -> bool {
    subject_of(request, errno) == Subject::Room
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

/// What a failure says of the path, whatever becomes of its operation.
pub(super) fn weight_of(request: Request, errno: i32) -> Weight {
    match judge(request, errno, Attempt::Alone, DeviceState::Fails) {
        Verdict::Fail(_, weight) => weight,
        Verdict::RetryAlone => Weight::Nothing,
    }
}

/// Whether `errno`, of an attempt to open a path, says that the device below it is lost.
pub(crate) fn is_gone(errno: i32) -> bool {
    match subject_of(Request::Read, errno) {
        Subject::Extent | Subject::Gone => true,
        _ => matches!(errno, EROFS | ETIMEDOUT | ENOLINK | EBADE),
    }
}

/// Errors of the block layer are those that `blk_errors` in the kernel's block/blk-core.c names. A medium error of an NVMe
/// drive is ENODATA there. File systems answer EUCLEAN or EBADMSG for structures of theirs that are damaged.
fn subject_of(request: Request, errno: i32) -> Subject {
    use Request::{Grow, MakeChunkFile, OpenChunkFile, WriteChunkFile, WriteDataFile};
    match (request, errno) {
        (_, ENOMEM | EMFILE | ENFILE | EBADF | EFAULT | ECANCELED) => Subject::Process,
        (OpenChunkFile, EACCES | EPERM) => Subject::Process,
        // ENXIO: a socket, or a special file of no device, has its name.
        (OpenChunkFile, ENOENT | ENXIO | ELOOP | EISDIR | ENOTDIR) => Subject::ChunkFile,
        (MakeChunkFile, EEXIST | ENXIO) => Subject::ChunkFile,
        (MakeChunkFile | WriteChunkFile | WriteDataFile | Grow, ENOSPC | EDQUOT) => Subject::Room,
        // No file system and no device of their own says so.
        (OpenChunkFile | MakeChunkFile, ENODEV | ENOMEDIUM) => Subject::Device,
        (_, ENODEV | ENXIO | ENOMEDIUM) => Subject::Gone,
        // The space is there by what the device says, and is not: behind what it has by now, or it gives out more than it has.
        (Request::Write, ENOSPC | EDQUOT) => Subject::Extent,
        (_, END_OF_FILE | EIO | ENODATA | EILSEQ | EREMOTEIO | EUCLEAN | EBADMSG) => {
            Subject::Extent
        }
        _ => Subject::Device,
    }
}

/// Why an operation did not do what it was asked.
pub(super) enum Failure {
    /// It got no extent, or was refused before any transfer.
    NoRoom(StoreError),
    /// The next open would not find it, for this reason.
    Missed(Arc<str>),
    /// The device or the file system said no; what that means for the chunk to be read, or the extent to be written.
    Transfer(io::Error, Fate),
    Sync(io::Error),
    /// It waited for a SET of its key with the same bytes that failed, with this message.
    Joined(String),
    Closed,
}

impl Failure {
    /// That of a `request` in the store at `path` that failed with `errno` and is not tried again.
    pub(super) fn of(
        request: Request,
        errno: i32,
        attempt: Attempt,
        state: DeviceState,
        path: &std::path::Path,
    ) -> Self {
        if request == Request::WriteDataFile && is_no_space(request, errno) {
            let source = Arc::new(io::Error::from_raw_os_error(errno));
            return Self::NoRoom(StoreError::NoBlocks { path: path.to_owned(), source });
        }
        let error = match errno {
            END_OF_FILE => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the chunk does")
            }
            errno => io::Error::from_raw_os_error(errno),
        };
        let fate = match judge(request, errno, attempt, state) {
            Verdict::Fail(fate, _) => fate,
            Verdict::RetryAlone => Fate::Keep,
        };
        Self::Transfer(error, fate)
    }

    /// What is said of it, about `what` was to be written.
    pub(super) fn text(&self, what: impl FnOnce() -> String) -> String {
        match self {
            Self::NoRoom(error) => error.to_string(),
            Self::Missed(reason) => format!(
                "nothing is stored any more: {reason}; put it back, or open the store again (what is stored is still loaded)"
            ),
            Self::Transfer(error, _) => format!("cannot write {}: {error}", what()),
            Self::Sync(error) => format!("cannot make {} durable: {error}", what()),
            Self::Joined(message) => message.clone(),
            Self::Closed => "the connector was closed before the chunk was written".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Verdict = Verdict::Fail(Fate::Keep, Weight::Counts);
    const NOTHING: Verdict = Verdict::Fail(Fate::Keep, Weight::Nothing);
    const DROPPED: Verdict = Verdict::Fail(Fate::Drop, Weight::Nothing);
    const DOUBTED: Verdict = Verdict::Fail(Fate::Doubt, Weight::Counts);

    #[test]
    fn what_may_be_one_place_is_tried_alone_and_doubted_where_the_device_works() {
        for errno in [EIO, ENODATA, EILSEQ, EREMOTEIO, EUCLEAN, END_OF_FILE] {
            for request in [Request::Read, Request::Write, Request::WriteDataFile] {
                let judged = |attempt, state| judge(request, errno, attempt, state);
                assert_eq!(judged(Attempt::First, DeviceState::Works), Verdict::RetryAlone);
                assert_eq!(judged(Attempt::First, DeviceState::Falters), Verdict::RetryAlone);
                assert_eq!(judged(Attempt::First, DeviceState::Fails), KEPT);
                assert_eq!(judged(Attempt::Alone, DeviceState::Works), DOUBTED);
                assert_eq!(judged(Attempt::Alone, DeviceState::Falters), KEPT);
                assert_eq!(judged(Attempt::AmongSuccesses, DeviceState::Falters), KEPT);
            }
        }
        let among = |request| judge(request, EIO, Attempt::AmongSuccesses, DeviceState::Works);
        assert_eq!(among(Request::Read), Verdict::Fail(Fate::Drop, Weight::Counts));
        assert_eq!(among(Request::Write), DOUBTED);
        assert_eq!(judge(Request::Sync, EIO, Attempt::First, DeviceState::Fails), KEPT);
    }

    #[test]
    fn only_what_speaks_of_the_chunk_drops_it() {
        let first = |request, errno| judge(request, errno, Attempt::First, DeviceState::Works);
        for errno in [ETIMEDOUT, ENOLINK, EROFS, EBADE] {
            assert_eq!(first(Request::Read, errno), KEPT);
            assert_eq!(first(Request::Write, errno), KEPT);
        }
        for errno in [ENOMEM, EMFILE, ENFILE, EACCES] {
            assert_eq!(first(Request::OpenChunkFile, errno), NOTHING);
        }
        for errno in [ENOENT, ENXIO, ELOOP] {
            assert_eq!(first(Request::OpenChunkFile, errno), DROPPED);
        }
        assert_eq!(first(Request::OpenChunkFile, EIO), DOUBTED);
    }

    #[test]
    fn a_full_file_system_is_no_failure_and_a_device_without_its_space_is() {
        for errno in [ENOSPC, EDQUOT] {
            assert_eq!(weight_of(Request::Grow, errno), Weight::Nothing);
            assert_eq!(weight_of(Request::MakeChunkFile, errno), Weight::Nothing);
            assert_eq!(weight_of(Request::WriteDataFile, errno), Weight::Nothing);
            assert_eq!(weight_of(Request::Write, errno), Weight::Counts);
            assert_eq!(weight_of(Request::Sync, errno), Weight::Counts);
        }
    }

    #[test]
    fn a_device_is_gone_by_its_transfers_and_not_by_one_file() {
        for errno in [ENODEV, ENXIO, ENOMEDIUM] {
            assert_eq!(weight_of(Request::Read, errno), Weight::Gone);
            assert_ne!(weight_of(Request::OpenChunkFile, errno), Weight::Gone);
            assert!(is_gone(errno));
        }
        assert!(is_gone(EIO) && is_gone(EROFS) && !is_gone(ENOENT) && !is_gone(ENOSPC));
    }
}
