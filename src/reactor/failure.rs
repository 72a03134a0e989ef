//! Why an operation did not do what it was asked.

use std::io;
use std::sync::Arc;

use super::errnos::{Attempt, END_OF_FILE, Fate, Request, Verdict, is_no_space, judge};
use super::health::DeviceState;
use crate::error::StoreError;

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
